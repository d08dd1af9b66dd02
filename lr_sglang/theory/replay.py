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

from lr_sglang.theory.measured import MODES_AHEAD, finished, seconds_of


class Timed(NamedTuple):
    """A step of an answer, with its times in seconds.

    Attributes:
        target: until the target's version was there; if it read the drafted one first, from where
            that began.
        draft: of the drafted version; the mean of the others if there was none.
        drafted: whether there was one.
        accepted: whether it was accepted; one that came too late was not.
        read: of the first read of the drafted version; 0 if the target wrote at once.
    """

    target: float
    draft: float
    drafted: bool
    verdict: float
    accepted: bool
    read: float = 0.0

    def perfect(self) -> Timed:
        """With a draft that is accepted without a verdict."""
        target = self.draft + self.read if self.read else self.target
        return self._replace(target=target, verdict=0.0, drafted=True, accepted=True)

    def drafted_faster(self) -> Timed:
        """With a draft that is FASTER."""
        draft = self.draft / DRAFT_LAYER_SPEEDUP
        saved = self.draft - draft if self.read else 0.0
        return self._replace(target=self.target - saved, draft=draft)


Steps = Sequence[Timed]
DRAFT_LAYER_SPEEDUP = 2.0  # speed-up of a draft's token layer

WHAT_IF: Mapping[str, Callable[[Timed], Timed]] = {
    "as it was": lambda step: step,
    "free judge": lambda step: step._replace(verdict=0.0),
    "perfect draft": Timed.perfect,
    f"draft {DRAFT_LAYER_SPEEDUP:g}x as fast": Timed.drafted_faster,
}


def headroom(record: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of an answer under each of ``WHAT_IF`` and under all together.

    Empty for what cannot be replayed: answers of programs or of another mode, with errors, several
    versions of a step, a depth that was adapted, or drafts that were read in the sync schedule.
    """
    look = record["config"].get("lookahead") if record["mode"] in MODES_AHEAD else None
    steps = record["steps"]
    if not look or "program" in record or record["error"] or not steps:
        return {}
    if look["width"] > 1 or look.get("policy", "fixed") != "fixed":
        return {}
    if record.get("read_tokens") and look["schedule"] == "sync":
        return {}
    found = timed(record)
    if len(found) != len(steps):
        return {}
    replayed = async_seconds if look["schedule"] == "async" else sync_seconds
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
    drafts = [*finished(record, "draft")]
    targets = {branch["position"]: branch for branch in finished(record, "target")}
    usual = fmean([*map(seconds_of, drafts)] or [0.0])
    found = []
    ready = 0.0  # when the prefix of the step was there
    for number, step in enumerate(record["steps"]):
        if (target := targets.get(number)) is None:
            break
        here = (one for one in drafts if one["position"] == number and one["started"] >= ready)
        drafted = next(here, None)
        draft = seconds_of(drafted) if drafted else usual
        written = seconds_of(target)
        read = 0.0
        if drafted and record.get("read_tokens") and target["started"] >= drafted["ended"]:
            written = target["ended"] - drafted["started"]
            read = first_read(record, drafted)
        (verdict,) = step["verdicts"] or (None,)
        if verdict is not None and verdict["by"] == "late":
            draft = max(draft, usual, written * 1.001)
        accepted = step["source"] == "draft"
        asked = verdict["seconds"] if verdict else 0.0
        found.append(Timed(written, draft, drafted is not None, asked, accepted, read))
        ready = drafted["ended"] if drafted and accepted else target["ended"]
    return found


def first_read(record: Mapping[str, Any], drafted: Mapping[str, Any]) -> float:
    """Seconds of the target's first read of a drafted step."""
    return next(
        seconds_of(one)
        for one in record["branches"]
        if (one["role"], one["position"]) == ("target", drafted["position"])
        and one["started"] >= drafted["ended"]
    )


def async_seconds(steps: Steps, depth: int) -> float:
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


def sync_seconds(steps: Steps, depth: int) -> float:
    """Seconds of an answer in the sync schedule, cycle by cycle."""
    seconds = 0.0
    first = 0
    while first < len(steps):
        cycle = steps[first : first + depth + 1]
        drafts = list(takewhile(lambda step: step.drafted, cycle[:depth]))
        seconds += sum(step.draft for step in drafts)
        seconds += max(step.target for step in cycle[: len(drafts) + 1])
        seconds += max((step.verdict for step in drafts), default=0.0)
        refused = (n for n, step in enumerate(drafts) if not step.accepted)
        first += next(refused, len(drafts)) + 1
    return seconds
