"""The headroom of an answer: its recorded steps, timed again as if something had been better.

The schedules of ``programs/lookahead.py`` are followed step by step with the recorded times of
drafts, target steps and verdicts (docs/theory.md). Like the formulas, this leaves out that other
numbers of branches at once would change the times themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

from lr_sglang.theory.measured import AHEAD, finished


class Timed(NamedTuple):
    """A step of an answer, with its times in seconds.

    Attributes:
        draft: of the drafted version; the mean of the others if there was none.
        drafted: whether there was one.
        accepted: whether it was accepted; one that came too late was not.
    """

    target: float
    draft: float
    drafted: bool
    verdict: float
    accepted: bool


Steps = Sequence[Timed]
FASTER = 2.0  # speed-up of a draft's token layer

WHAT_IF: Mapping[str, Callable[[Timed], Timed]] = {
    "as it was": lambda step: step,
    "free judge": lambda step: step._replace(verdict=0.0),
    "perfect draft": lambda step: step._replace(verdict=0.0, drafted=True, accepted=True),
    f"draft {FASTER:g}x as fast": lambda step: step._replace(draft=step.draft / FASTER),
}


def headroom(record: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of an answer under each of ``WHAT_IF`` and under all together.

    Empty for what cannot be replayed: answers of programs or of another mode, with errors, several
    versions of a step, a depth that was adapted, or drafts that were read.
    """
    look = record["config"].get("lookahead") if record["mode"] in AHEAD else None
    steps = record["steps"]
    if not look or "program" in record or record["error"] or not steps:
        return {}
    if look["width"] > 1 or look.get("policy", "fixed") != "fixed" or record.get("read_tokens"):
        return {}
    found = timed(record)
    if len(found) != len(steps):
        return {}
    replayed = asynchronous if look["schedule"] == "async" else synchronous
    made = {
        name: replayed([change(step) for step in found], look["depth"])
        for name, change in WHAT_IF.items()
    }
    for change in WHAT_IF.values():
        found = [change(step) for step in found]
    return made | {"all of it": replayed(found, look["depth"])}


def timed(record: Mapping[str, Any]) -> list[Timed]:
    """The steps of a record, up to the first whose target step has no time.

    A draft that came too late was stopped: it counts with the mean time of a draft, if that is
    longer.
    """
    took = {
        (role, branch["position"]): branch["ended"] - branch["started"]
        for role in ("target", "draft")
        for branch in finished(record, role)
    }
    usual = fmean([*(one for (role, _), one in took.items() if role == "draft")] or [0.0])
    found = []
    for number, step in enumerate(record["steps"]):
        if (target := took.get(("target", number))) is None:
            break
        (verdict,) = step["verdicts"] or (None,)
        draft, drafted = took.get(("draft", number), usual), ("draft", number) in took
        if verdict is not None and verdict["by"] == "late":
            draft = max(draft, usual, target * 1.001)
        asked = verdict["seconds"] if verdict is not None else 0.0
        found.append(Timed(target, draft, drafted, asked, step["source"] == "draft"))
    return found


def asynchronous(steps: Steps, depth: int) -> float:
    """Seconds of an answer in the async schedule."""
    kept: list[float] = []  # when each step was kept
    ready = 0.0  # when the prefix of the next step is there
    for number, step in enumerate(steps):
        began = max(ready, kept[number - depth] if number >= depth else 0.0)
        decided = began + step.target
        drafted = began + step.draft if step.drafted else inf
        if drafted <= decided:
            decided += step.verdict
            ready = drafted if step.accepted else decided
        else:
            ready = decided
        kept.append(max(decided, kept[-1] if kept else 0.0))
    return kept[-1]


def synchronous(steps: Steps, depth: int) -> float:
    """Seconds of an answer in the sync schedule, cycle by cycle."""
    seconds, first = 0.0, 0
    while first < len(steps):
        cycle = steps[first : first + depth + 1]
        drafts = list(takewhile(lambda step: step.drafted, cycle[:depth]))
        seconds += sum(step.draft for step in drafts)
        seconds += max(step.target for step in cycle[: len(drafts) + 1])
        seconds += max((step.verdict for step in drafts), default=0.0)
        refused = (n for n, step in enumerate(drafts) if not step.accepted)
        first += next(refused, len(drafts)) + 1
    return seconds
