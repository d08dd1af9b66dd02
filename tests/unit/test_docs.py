"""What the pages say is so: commands, options, files and metrics exist."""

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from lr_sglang.api import session
from lr_sglang.cli import cli
from lr_sglang.serve.monitoring import Metrics
from tests import ROOT, loaded
from tests.called import called
from tests.commands import Block, Command, blocks, commands, pages, parsed

DOCS = ROOT / "docs"
COMMANDS = commands()
OURS = [one for one in COMMANDS if one.words[0] == "lr-sglang"]


@pytest.fixture
def any_path(monkeypatch):
    """Files that a page names need not be here."""
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: Path(value))


def test_pages_have_commands():
    assert len(OURS) > 40
    assert {one.page for one in OURS} >= {"README.md", "docs/getting-started.md", "docs/serving.md"}


def test_a_benchmark_is_started_as_a_module_for_it_imports_the_tests():
    sources = (ROOT / "benchmarks").glob("*.py")
    told = [*pages().values(), *(one.read_text("utf-8") for one in sources)]
    assert not [text for text in told if "python benchmarks/" in text]
    named = {name for text in told for name in re.findall(r"python -m benchmarks\.(\w+)", text)}
    assert len(named) > 8
    assert not [name for name in named if not (ROOT / "benchmarks" / f"{name}.py").is_file()]


@pytest.mark.parametrize("one", OURS, ids=str)
def test_a_command_is_one_that_there_is(one: Command, any_path):
    if one.arguments and not one.arguments[0].startswith("-"):
        parsed(one.arguments)


class Reached(BaseException):
    """Everything is checked, and servers would be started now."""


def reached(*_, **__):
    raise Reached


# They need a server elsewhere, one that `launch` keeps up, the hub, or what an earlier command makes.
ELSEWHERE = ("--attach", "http://", "humaneval", "gsm8k", "examples/custom_verifier.py", "build/")
STARTING = [
    one
    for one in OURS
    if one.arguments
    and one.arguments[0] in ("run", "bench", "serve")
    and not any(word.startswith(ELSEWHERE) for word in one.arguments)
]


@pytest.mark.parametrize("one", STARTING, ids=str)
def test_a_command_runs_as_written_up_to_the_start_of_servers(one, here, monkeypatch):
    monkeypatch.setattr(session, "session", reached)
    (here / "examples").symlink_to(ROOT / "examples")
    (here / "keys.txt").write_text("a-key-of-sixteen-or-more\n", "utf-8")
    for name, function in (("mine", "def twice("), ("thinking", "def thinking(")):
        code = next(b.body for b in blocks() if function in b.body)
        code = code.partition("\nwith lr.deployment")[0]
        (here / f"{name}.py").write_text(code, "utf-8")
    arguments = list(one.arguments)
    if arguments[0] == "serve":
        arguments += ["--port", "0"]
    with nullcontext() if "--print" in arguments else pytest.raises(Reached):
        called(*arguments)


@pytest.mark.parametrize(
    "one", [one for one in COMMANDS if one.words[0] in ("make", "python")], ids=str
)
def test_what_else_is_called_is_there(one: Command):
    target = one.arguments[0]
    if one.words[0] == "make":
        assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text("utf-8"), re.M)
    elif target.endswith(".py"):
        assert (ROOT / target).is_file()


@pytest.mark.parametrize(
    "block", [b for b in blocks() if b.info.startswith("python")], ids=lambda b: b.page
)
def test_python_compiles(block: Block):
    compile(block.body, block.page, "exec", flags=0x2000)  # top-level await, as in a notebook


# -- what a contributor adds

EXAMPLES = {
    re.search(r'title="(.*)"', b.info)[1]: b.body
    for b in blocks()
    if b.page in ("CONTRIBUTING.md", "docs/programs.md") and "title=" in b.info
}


@pytest.mark.parametrize(
    ("what", "file", "arguments"),
    [
        ("verifier", "rule.py", ["how many?", "--verifier", "rule.py:Length:5"]),
        ("program", "brief.py", ["how many?", "--program", "brief.py:brief:tokens=50"]),
        ("method", "thinking.py", ["how many?", "--program", "thinking.py:thinking"]),
        ("task", "capitals.py", ["--task", "capitals.py:TASK", "--verifier", "exact"]),
    ],
)
@pytest.mark.usefixtures("servers")
def test_an_example_runs(what, file, arguments):
    Path(file).write_text(EXAMPLES[what], "utf-8")
    called("run", *arguments, "--output", "out", "--json")
    record = json.loads(Path("out/records.jsonl").read_text("utf-8"))
    assert record["error"] is None and record["text"]
    seen = {
        "verifier": {v["by"] for step in record["steps"] for v in step["verdicts"] or () if v}
        & {"length"},
        "program": record.get("program", {}).get("generations"),
        "method": {step["source"] for step in record["steps"]} & {"draft"},
        "task": record["correct"] is False,
    }
    assert seen[what], record


@pytest.mark.parametrize(
    ("page", "module"), [("docs/programs.md", "mine"), ("docs/verifiers.md", "same_numbers")]
)
def test_a_test_that_a_page_shows_passes(page, module, here, monkeypatch):
    shown = [b for b in blocks() if b.page == page and b.info.startswith("python")]
    wanted = {"mine": "def twice(", "same_numbers": "class SameNumbers"}[module]
    code = next(b.body for b in shown if wanted in b.body).partition("\nwith lr.deployment")[0]
    (here / f"{module}.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(sys.modules, module, raising=False)
    names: dict = {}
    file = here / "shown.py"
    file.write_text(next(b.body for b in shown if 'title="test_' in b.info), "utf-8")
    exec(compile(file.read_text("utf-8"), str(file), "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


# -- links


@pytest.mark.parametrize("page", [name for name in pages() if not name.startswith("docs/")])
def test_links_of_the_root_lead_somewhere(page):
    """Those of docs/ are looked at when the site is built."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", pages()[page])
    inside = [link for link in links if "://" not in link]
    assert inside
    assert not [link for link in inside if not (ROOT / link).exists()]


def test_a_test_that_a_page_names_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", pages()["docs/features.md"])
    assert named
    assert not [
        (path, name)
        for path, name in named
        if f"def {name}(" not in (ROOT / path).read_text("utf-8")
    ]


# -- metrics


def test_every_metric_is_on_its_page():
    text = (DOCS / "metrics.md").read_text("utf-8")
    said = set()
    for kind in ("counter", "gauge", "histogram"):
        _, _, listed = text.partition(f"**{kind.capitalize()}s**\n\n")
        listed, _, _ = listed.partition("\n\n")
        for name, labels in re.findall(r"^- `(lr_sglang_\w+)`(?: \(([^)]*)\))?:", listed, re.M):
            said.add((name, kind, tuple(re.findall(r"`(\w+)`", labels))))
    real = set()
    for collector in Metrics().registry._collector_to_names:
        name = collector._name + ("_total" if collector._type == "counter" else "")
        real.add((name, collector._type, tuple(collector._labelnames)))
    assert said == real


# -- the page of commands


cli_page = loaded(ROOT / "scripts/cli_page.py")
BY_PATH = {path: command for path, command, _ in cli_page.walk(cli)}
OPTIONS = [
    (path, option) for path, command in BY_PATH.items() for option in cli_page.options(command)
]
IDS = [f"{' '.join(path)} {cli_page.long_name(option)}" for path, option in OPTIONS]


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=IDS)
def test_every_option_has_help(path, option):
    assert option.help, "say what it does, or what its default is"


def test_several_values_of_a_variable_have_spaces_between_them(monkeypatch):
    run = BY_PATH[("run",)]
    monkeypatch.setenv("LR_SGLANG_RUN_MODE", "autoregressive lookahead")
    monkeypatch.setenv("LR_SGLANG_RUN_DEPTH", "3")
    monkeypatch.setenv("LR_SGLANG_RUN_OPTION", "lookahead.width=2 sampling.top_k=20")
    with click.Context(cli, info_name="lr-sglang", auto_envvar_prefix=cli_page.PREFIX) as parent:
        context = run.make_context("run", ["how many?"], parent=parent)
        assert context.params["mode"] == ("autoregressive", "lookahead")
        assert context.params["depth"] == 3
        assert context.params["option"] == {"lookahead": {"width": 2}, "sampling": {"top_k": 20}}
        # The command line goes before it.
        context = run.make_context("run", ["how many?", "--mode", "sd"], parent=parent)
        assert context.params["mode"] == ("sd",)
