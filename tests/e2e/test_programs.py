"""Every program of the gallery on real SGLang servers."""

from __future__ import annotations

import os

import pytest

import lr_sglang as lr
from lr_sglang import tasks
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
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
    "early_exit": ":every=16,agree=2",
}
# Of those the pocket models know the prompt; they were never taught to plan or to wait.
KNOWN = (
    "lookahead",
    "autoregressive",
    "self_consistency",
    "best_of_n",
    "conf_spec",
    "early_exit",
    "glimp_router",
    "rsd",
    "spec_cot",
    "specreason",
    "tree_search",
)


@pytest.mark.parametrize("name", program_registry.NAMES)
def test_the_gallery(pocket: Pocket, name: str) -> None:
    questions = tasks.load("pocket", 10 if full else 1)
    given = Plan(program=name + OPTIONS.get(name, "")).with_settings(
        lookahead=lr.Lookahead(depth=4), limits=lr.Limits(max_tokens=300), judge_prompt="pocket"
    )
    runner = Runner(pocket.roles, given, 2)
    records = list(runner.run(plan(questions, ("lookahead",))))
    for record in records:
        assert record["error"] is None and record["text"].strip() and record["steps"]
        assert (
            record["tokens"]["used"] + record["tokens"]["wasted"] == record["tokens"]["generated"]
        )
        assert record["program"]["generations"] or name in ("lookahead", "autoregressive")
    if name in KNOWN:
        assert sum(record["answer"] is not None for record in records) > len(records) / 2
