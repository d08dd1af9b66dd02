"""The examples run, on the session's servers: each as the function it is, for a process would
import SGLang again.
"""

from pathlib import Path

import pytest
from click.testing import CliRunner

from lr_sglang.config import ROLES
from tests import FULL, ROOT, loaded, records
from tests.called import called
from tests.commands import Command, commands
from tests.e2e.conftest import Pocket

EXAMPLES = ROOT / "examples"
# It needs TRL, which is not among our packages; docs/training-drafts.md has its run.
BY_HAND = ("train_draft",)
QUESTION = (
    "Jack starts with 5 stickers. Emma brings 2 boxes with 6 stickers each. How many has Jack?"
)


@pytest.fixture
def running(pocket: Pocket, tmp_path: Path) -> Path:
    """A deployment file of the servers that are up: greedy, in the schedule in which no draft comes
    too late.
    """
    path = tmp_path / "running.toml"
    runtimes = "".join(f'[runtimes.{role}]\nurl = "{pocket.fleet.urls[role]}"\n' for role in ROLES)
    how = '[lookahead]\nschedule = "sync"\n[sampling]\ntemperature = 0.0\n'
    path.write_text(f'name = "running"\njudge_prompt = "pocket"\n{runtimes}{how}')
    return path


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("ask", [QUESTION], "tokens"),
        ("stream", [QUESTION, "--compare"], "by the target alone"),
        ("events", [QUESTION], "ended 1"),
        ("custom_program", [QUESTION], "{'lookahead': 2}"),
        ("unchanged_program", [QUESTION], "'select': 1"),
        ("batch", [str(EXAMPLES / "questions.jsonl")], " right"),
        ("custom_verifier", [QUESTION], "['"),
        ("composed_verifier", [QUESTION], "accepted"),
    ],
)
def test_an_example(
    running: Path,
    name: str,
    arguments: list[str],
    said: str,
    here: Path,
) -> None:
    done = CliRunner().invoke(
        loaded(EXAMPLES / f"{name}.py").main, [*arguments, "--deployment", str(running)]
    )
    assert done.exit_code == 0, done.output
    assert said in done.output
    assert "\\boxed{" in done.output or name == "batch"


def test_every_example_is_run() -> None:
    source = Path(__file__).read_text("utf-8")
    names = {path.stem for path in EXAMPLES.glob("*.py")}.difference(BY_HAND)
    assert not [name for name in names if name not in source]


# -- commands of the pages


PAGE = "docs/getting-started.md"
RECORDS = ("run", "report")
FEW = 1  # question, in place of the ten that the page asks for


def runnable(one: Command) -> bool:
    """With records or a question, and on the pocket deployment (--attach needs one that is
    launched).
    """
    return (
        one.page == PAGE
        and not one.title
        and one.arguments[0] in RECORDS
        and "--attach" not in one.arguments
    )


def test_a_first_hour(pocket: Pocket, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Getting started, from top to bottom in one folder. Variables say where the servers are.

    All is as on the page but the number of questions, unless in the full run. The commands run in
    this process, which need not import everything again (test_run_cli.py has some in processes of
    their own).
    """
    shown = [one for one in commands() if one.words[0] == "lr-sglang" and runnable(one)]
    assert [one.arguments[0] for one in shown] == ["run", "run", "report", "report", "run"]
    (here / "examples").symlink_to(ROOT / "examples")
    for role in ROLES:
        monkeypatch.setenv(f"LR_SGLANG_RUN_{role}".upper(), pocket.fleet.urls[role])
    for one in shown:
        arguments = (
            one.arguments
            if FULL
            else [str(FEW) if word == "10" else word for word in one.arguments]
        )
        assert called(*arguments).stdout.strip(), f"{one} says nothing"
    first = records(here / "runs/first")
    assert {record["mode"] for record in first} == {"autoregressive", "lookahead"}
    assert all(record["error"] is None for record in first)
    assert len(first) == 2 * (10 if FULL else FEW)
    assert (here / "runs/first/page.html").is_file()
