"""Every program of the gallery on real SGLang servers, and --program on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import lr_sglang as lr
from lr_sglang import tasks
from lr_sglang.api.configuration import Settings
from lr_sglang.api.runner import Runner
from lr_sglang.cli import cli
from lr_sglang.tasks.question import plan
from lr_sglang.user_programs import program_registry
from tests.e2e.conftest import Pocket

full = os.environ.get("LR_SGLANG_FULL") == "1"
# Smaller than their defaults: real models on a CPU.
OPTIONS = {
    "self_consistency": ":samples=3",
    "best_of_n": ":samples=2",
    "tree_search": ":beam=1,width=2,most=12",
    "plan_then_solve": ":plan_tokens=100",
    "budget_forcing": ":most=300",
}
# Of those the pocket models know the prompt; they were never taught to plan or to wait.
KNOWN = (
    "lookahead",
    "autoregressive",
    "self_consistency",
    "best_of_n",
    "specreason",
    "tree_search",
)


@pytest.mark.parametrize("name", program_registry.NAMES)
def test_the_gallery(pocket: Pocket, name: str) -> None:
    questions = tasks.load("pocket", 10 if full else 1)
    settings = Settings(
        lookahead=lr.Lookahead(depth=4),
        limits=lr.Limits(max_tokens=300),
        judge_prompt="pocket",
        program=name + OPTIONS.get(name, ""),
    )
    with Runner(pocket.roles, settings, 2) as runner:
        records = list(runner.run(plan(questions, ("lookahead",))))
    for record in records:
        assert record["error"] is None and record["text"].strip() and record["steps"]
        assert (
            record["tokens"]["used"] + record["tokens"]["wasted"] == record["tokens"]["generated"]
        )
        assert record["program"]["generations"] or name in ("lookahead", "autoregressive")
    if name in KNOWN:
        assert sum(record["answer"] is not None for record in records) > len(records) / 2


def test_the_command_line_and_a_file(pocket: Pocket, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import sglang as sgl\nimport lr_sglang as lr\n\n\n"
        "@sgl.function\ndef mine(s, messages, word='Hm. '):\n"
        "    lr.converse(s, messages)\n    s += lr.lookahead('answer', max_tokens=200)\n"
        "    s['answer'] = word + s['answer']\n"
    )
    question = (
        "Jack starts with 5 stickers. Emma brings 2 boxes with 6 stickers each. How many has Jack?"
    )
    given = [
        "run",
        question,
        "--program",
        f"{file}:mine:word=So: ",
        "-o",
        "judge_prompt=pocket",
        "--json",
    ]
    done = CliRunner().invoke(cli, [*given, *pocket.attach, "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "out" / "records.jsonl").read_text().splitlines()[0])
    assert record["text"].startswith("So: ") and record["config"]["program"].endswith("word=So: ")
    assert record["program"]["answered"] == {"lookahead": 1}
