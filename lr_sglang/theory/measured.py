"""What the formulas ask for, measured from the records of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lr_sglang.errors import ConfigError

# Branches that went on to their end: the target's that are in the answer, or agreed with what is; the draft's that a
# verdict was given on. A late draft, stopped when it was refused, is among them with the time it had.
_FINISHED = {"target": ("accepted", "corrected", "bonus"), "draft": ("accepted", "rejected")}
# Not the verdict of a verifier: the draft was too late, or had failed.
_NO_VERDICT = ("late", "draft")


@dataclass(frozen=True)
class Measured:
    """Means of a run. ``judge`` and ``c1`` are in units of ``step_seconds``, a target step among parallel branches.

    Attributes:
        alpha: share of judged steps that were accepted; a late draft counts as refused.
        judge: of all verdicts, those included that needed no question.
        slowdown: seconds per token of such a target step over those of the run's autoregressive samples; None if it
            has none. ``speedup`` is that of the run, in tokens per second, under the same condition.
        steps: per answer, rounded.
        schedule, depth, width: what the run was made with.
    """

    alpha: float
    c1: float
    judge: float
    step_seconds: float
    slowdown: float | None
    speedup: float | None
    steps: int
    schedule: str
    depth: int
    width: int
    samples: int
    judged: int


def measure(records: Iterable[dict[str, Any]]) -> Measured:
    """Measures from the lookahead samples of one run, and from its autoregressive ones if there are any.

    Raises:
        ConfigError: there is nothing to measure from, or the samples were made in different ways.
    """
    ended = [r for r in records if r["error"] is None]
    ahead = [r for r in ended if r["mode"].startswith("lookahead")]
    alone = [r for r in ended if r["mode"] == "autoregressive"]
    if not ahead:
        raise ConfigError("the records have no lookahead sample that ended well", hint="measure a run with lookahead")
    ways = {(c["schedule"], c["depth"], c["width"]) for c in (r["config"]["lookahead"] for r in ahead)}
    if len(ways) > 1 or len({r["mode"] for r in ahead}) > 1:
        raise ConfigError("the records are of different schedules, depths, widths or modes", hint="measure one run")
    judged = sum(r["judged"] for r in ahead)
    step = _mean([b["ended"] - b["started"] for b in _finished(ahead, "target")], "target step")
    draft = _mean([b["ended"] - b["started"] for b in _finished(ahead, "draft")], "judged draft step")
    verdict = _mean(list(_verdicts(ahead)), "verdict")
    slowdown = speedup = None
    if alone:
        pace = sum(r["seconds"] for r in alone) / max(1, sum(r["tokens"]["used"] for r in alone))
        tokens = sum(b["generated"] for b in _finished(ahead, "target"))
        slowdown = sum(b["ended"] - b["started"] for b in _finished(ahead, "target")) / max(1, tokens) / pace
        speedup = pace * sum(r["tokens"]["used"] for r in ahead) / sum(r["seconds"] for r in ahead)
    schedule, depth, width = ways.pop()
    return Measured(
        alpha=sum(r["accepted"] for r in ahead) / judged,
        c1=draft / step,
        judge=verdict / step,
        step_seconds=step,
        slowdown=slowdown,
        speedup=speedup,
        steps=max(1, round(sum(len(r["steps"]) for r in ahead) / len(ahead))),
        schedule=schedule,
        depth=depth,
        width=width,
        samples=len(ahead),
        judged=judged,
    )


def _finished(records: list[dict[str, Any]], role: str) -> Iterator[dict[str, Any]]:
    for record in records:
        for branch in record["branches"]:
            whole = branch["ended"] is not None and not branch["error"]
            if whole and branch["role"] == role and branch["outcome"] in _FINISHED[role]:
                yield branch


def _verdicts(records: list[dict[str, Any]]) -> Iterator[float]:
    for record in records:
        for step in record["steps"]:
            for verdict in step["verdicts"]:
                if verdict is not None and not verdict["failed"] and verdict["by"] not in _NO_VERDICT:
                    yield verdict["seconds"]


def _mean(values: list[float], what: str) -> float:
    if not values or (what != "verdict" and not sum(values)):
        raise ConfigError(f"the records have no {what} with a time", hint="measure a run with more questions")
    return sum(values) / len(values)
