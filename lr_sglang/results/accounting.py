"""Where the time of an answer went: its critical path, followed back from the last step to the
question.

A kept step waited for its verdict, its versions or the previous step, whichever ended last; a
branch waited for its prefix, or else for the last event before it. The spans are contiguous and sum
to the answer's time (docs/reports.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

AnyRecord = Mapping[str, Any]  # as ``results.record`` makes it
MEANING = {
    "target": "target decoding",
    "late": "target decoding after a late draft",
    "draft": "waiting for the draft",
    "judge": "waiting for the verdict",
    "prefill": "prefill",
    "queue": "queueing in a runtime",
    "controller": "controller",
}
PARTS = tuple(MEANING)
# Seconds: a branch that begins so soon after its prefix was complete was caused by it.
CAUSED_WITHIN = 0.005
_SAME = 1e-5  # times in records are rounded


@dataclass(frozen=True)
class Span:
    """A stretch of the critical path, in seconds since the question was asked."""

    part: str
    start: float
    end: float
    position: int


@dataclass(frozen=True)
class _End:
    """An event that others may have waited for: a step is kept (``kind`` "keep"), or a branch of
    that role ends.
    """

    when: float
    position: int
    kind: str
    start: float = 0.0
    queued: float = 0.0
    prefill: float = 0.0

    @property
    def rank(self) -> tuple[float, bool, float, int]:
        return self.when, self.kind != "keep", self.start, self.position

    def before(self, now: float, below: _End | None) -> bool:
        """Whether it can have caused ``below``, which began at ``now``. Of steps kept together,
        earlier cause later.
        """
        if self.when > now + _SAME or self is below:
            return False
        if self.kind == "keep":
            return below is None or below.kind != "keep" or self.position < below.position
        return self.start < now - _SAME

    def spans(self, part: str, began: float, now: float) -> Iterator[Span]:
        """A branch's writing, prefill and queueing up to ``now``, in this order (backwards in
        time).
        """
        start = max(began, self.start)
        queued = min(start + self.queued, now)
        wrote = min(queued + self.prefill, now)
        for name, first, last in (
            (part, wrote, now),
            ("prefill", queued, wrote),
            ("queue", start, queued),
        ):
            yield Span(name, first, last, self.position)


def parts(record: AnyRecord) -> dict[str, float]:
    """Seconds of the answer by part (see ``PARTS``); they sum to ``record["seconds"]``."""
    sums = dict.fromkeys(PARTS, 0.0)
    for piece in critical_path(record):
        sums[piece.part] += piece.end - piece.start
    return sums


def critical_path(record: AnyRecord) -> list[Span]:
    """From the question to the last step that was kept; no gaps, no overlaps. Empty for an answer
    without a step.

    A program is assumed to have waited for the generation that ended last; the path goes back along
    it, and so on.
    """
    back = _of_program(record) if "program" in record else _back(record, 0.0)
    return [piece for piece in back if piece.end > piece.start][::-1]


def _of_program(record: AnyRecord) -> Iterator[Span]:
    generations = record["program"]["generations"]
    if not record["steps"] or not all("branches" in one for one in generations):
        return  # a record of an older release
    now = float(record["seconds"])
    branches = iter(record["branches"])
    made = [(one, list(islice(branches, one["branches"]))) for one in generations]
    for one, own in sorted(
        made, key=lambda pair: pair[0]["began"] + pair[0]["seconds"], reverse=True
    ):
        began = one["began"]
        ended = began + one["seconds"]
        if ended > now + _SAME or began >= now:
            continue  # parallel to a generation that is on the path
        yield Span("controller", min(ended, now), now, one["first"])
        yield from _of_generation(record, one, own, min(ended, now))
        now = began
    yield Span("controller", 0.0, now, 0)


def _of_generation(
    record: AnyRecord, one: dict[str, Any], branches: list[dict[str, Any]], ended: float
) -> Iterator[Span]:
    """The path of one generation of a program, computed like that of an answer, whose steps count
    from 0.
    """
    first = one["first"]
    began = one["began"]
    steps = record["steps"][first : first + one["steps"]] if one["in_answer"] else []
    if not one["lookahead"] or not steps:  # one request, or a generation that is not in the answer
        alone = branches[0] if len(branches) == 1 else {}
        return _End(ended, first, one["role"], began, *_waits(alone)).spans(
            one["role"], began, ended
        )
    own = [branch | {"position": branch["position"] - first} for branch in branches]
    found = _back({"seconds": ended, "steps": steps, "branches": own}, began)
    return (replace(piece, position=piece.position + first) for piece in found)


def _back(record: AnyRecord, began: float) -> Iterator[Span]:
    """The path of an answer that began at ``began``, from its last span to its first; some are
    empty.
    """
    steps = record["steps"]
    if not steps:
        return
    kept = [_End(float(step["seconds"]), n, "keep") for n, step in enumerate(steps)]
    of: dict[int, list[_End]] = defaultdict(list)
    for one in chain(_branches(record, kept), _verdicts(record, kept)):
        of[one.position].append(one)
    everything = sorted(chain(kept, *of.values()), key=lambda end: end.rank)

    def cause(now: float, needed: list[_End], below: _End | None) -> _End | None:
        """The last of the ``needed`` ends; if it was long before ``now``, the last end of any kind
        after it.
        """
        ready = max(
            (end for end in needed if end.before(now, below)),
            key=lambda end: end.rank,
            default=None,
        )
        if ready is not None and now - ready.when <= CAUSED_WITHIN:
            return ready
        for number in reversed(
            range(bisect_right(everything, now + _SAME, key=lambda end: end.when))
        ):
            end = everything[number]
            if ready is not None and end.when <= ready.when:
                break
            if end.before(now, below):
                return end
        return ready

    now = float(record["seconds"])
    last = len(steps) - 1
    below: _End | None = None
    needed = [*of[last], *(of[0] if steps[last]["outcome"] == "written" else ()), *kept[:last][-1:]]
    while (end := cause(now, needed, below)) is not None:
        yield Span("controller", end.when, now, end.position)
        now = min(now, end.when)
        below = end
        n = end.position
        if end.kind == "keep":
            needed = [*of[n], *kept[:n][-1:]]
            continue
        late = end.kind == "target" and 0 < n <= len(steps) and _late(steps[n - 1])
        yield from end.spans("late" if late else end.kind, began, now)
        now = min(now, max(began, end.start))
        if end.kind == "judge":  # a verdict needs both versions
            needed = [other for other in of[n] if other.kind != "judge"]
        elif n > 0:  # another branch needs the previous step
            needed = [*of[n - 1], *kept[n - 1 : n]]
        else:  # or, of the first one, the drafted tokens that it has read
            needed = of[0]
    yield Span("controller", began, now, 0)


def _late(step: dict[str, Any]) -> bool:
    return step["source"] == "target" and any(
        v is not None and v["by"] == "late" for v in step["verdicts"]
    )


def _waits(branch: dict[str, Any]) -> tuple[float, float]:
    return branch.get("queued") or 0.0, branch.get("prefill") or 0.0


def _branches(record: AnyRecord, kept: list[_End]) -> Iterator[_End]:
    """The branches that ended before they were given up: the answer can have waited for
    no other.
    """
    corrected = [
        end for end, step in zip(kept, record["steps"], strict=True) if step["source"] == "target"
    ]
    for branch in record["branches"]:
        ended = branch["ended"]
        position = branch["position"]
        started = branch["started"]
        if ended is None:
            continue
        # It was given up when a step up to its own was corrected (steps are kept in order), or at
        # the end.
        first = bisect_right(corrected, started, key=lambda end: end.when)
        within = first < len(corrected) and corrected[first].position <= position
        if (
            branch["outcome"] != "cancelled"
            or ended <= (corrected[first] if within else kept[-1]).when
        ):
            yield _End(ended, position, branch["role"], started, *_waits(branch))


def _verdicts(record: AnyRecord, kept: list[_End]) -> Iterator[_End]:
    """The verdicts of verifiers in this process, which have no branch: each begins when both
    versions are complete.
    """
    asked = {branch["position"] for branch in record["branches"] if branch["role"] == "judge"}
    written: dict[int, list[float]] = defaultdict(list)
    for branch in record["branches"]:
        if (
            branch["ended"] is not None
            and branch["role"] != "judge"
            and branch["outcome"] != "cancelled"
        ):
            written[branch["position"]].append(float(branch["ended"]))
    for n, step in enumerate(record["steps"]):
        seconds = max((v["seconds"] for v in step["verdicts"] if v is not None), default=0.0)
        there = [when for when in written[n] if when + seconds <= kept[n].when + _SAME]
        if n not in asked and seconds > 0 and there:
            yield _End(max(there) + seconds, n, "judge", max(there))
