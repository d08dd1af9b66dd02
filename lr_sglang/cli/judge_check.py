"""Asks a judge, before anything is answered, about steps that differ; says so where it is not to be trusted."""

from __future__ import annotations

from collections.abc import Collection

from lr_sglang.api.configuration import Plan
from lr_sglang.cli.display import Display
from lr_sglang.cli.session import Session
from lr_sglang.modes import MODES


def report(plan: Plan, modes: Collection[str], live: Session, display: Display) -> None:
    """A warning where the judge accepts so many that nothing will be drafted for it."""
    judged = any("judge" in plan.roles(mode) for mode in modes if MODES[mode].ahead)
    if not judged or "judge" not in live.roles or plan.lookahead.max_false_accepts == 1:
        return
    from lr_sglang.engine.loop import call
    from lr_sglang.verifiers import known_pairs

    judge = live.roles["judge"]
    if judge.false_accepts is not None:  # known, and said, already
        return
    found = call(known_pairs.check(judge, plan.judge_prompt), judge.loop)
    if wrong := known_pairs.distrust(found, plan.lookahead.max_false_accepts):
        display.warn(wrong)
