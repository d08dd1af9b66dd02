"""Where the time of an answer went: its critical path, followed back from the last step to the question.

Going back from the moment in which a step was kept, everything waited for whatever came last: a verdict, a version of
the step, the step before. A branch waited for its prefix, or, if that was there already, for what the program waited
for. The pieces lie end to end, so that they sum to the answer's time. ``docs/reports.md`` says it in full.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from lr_sglang.results.record import Record

PARTS = ("target", "late", "draft", "judge", "prefill", "queue", "controller")
MEANING = {
    "target": "target decoding",
    "late": "target decoding after a late draft",
    "draft": "waiting for the draft",
    "judge": "waiting for the verdict",
    "prefill": "prefill",
    "queue": "queueing in a runtime",
    "controller": "controller",
}

# What begins so soon after its prefix was there, in seconds, began because of it.
AT_ONCE = 0.005
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
    """Something that ended and that others may have waited for."""

    when: float
    position: int
    kind: str  # "keep", or the role of a branch
    start: float = 0.0
    queued: float = 0.0
    prefill: float = 0.0


def parts(record: Record) -> dict[str, float]:
    """Seconds of the answer by part (see ``PARTS``); they sum to ``record["seconds"]``."""
    sums = dict.fromkeys(PARTS, 0.0)
    for piece in critical_path(record):
        sums[piece.part] += piece.end - piece.start
    return sums


def critical_path(record: Record) -> list[Span]:
    """From the question to the last step that was kept; no gaps, no overlaps. Empty for an answer without a step.

    That of a program goes back from its end to the generation that ended last, along that one's own path, and from its
    beginning on likewise: what the program waited for is taken to be what it heard of last.
    """
    return _of_program(record) if "program" in record else _Path(record).pieces


def total(records: Iterable[Record]) -> dict[str, Any]:
    """Of many answers together: seconds by part, their sum, and the wall time that they explain.

    ``waits_known`` says whether the runtimes reported queueing and prefill; else both are in the other parts.
    """
    sums, wall, known = dict.fromkeys(PARTS, 0.0), 0.0, False
    for record in records:
        if record["error"] is None:
            wall += record["seconds"]
            known = known or any(branch.get("prefill") is not None for branch in record["branches"])
            for part, seconds in parts(record).items():
                sums[part] += seconds
    explained = sum(sums.values())
    return {
        "parts": sums,
        "explained": explained,
        "wall": wall,
        "share": explained / wall if wall else None,
        "waits_known": known,
    }


def _of_program(record: Record) -> list[Span]:
    generations = record["program"]["generations"]
    if not record["steps"] or not all("branches" in one for one in generations):
        return []  # a record from before these were kept
    pieces: list[Span] = []
    now, branches = float(record["seconds"]), iter(record["branches"])
    made = [(one, list(islice(branches, one["branches"]))) for one in generations]
    for one, own in sorted(made, key=lambda pair: pair[0]["began"] + pair[0]["seconds"], reverse=True):
        began, ended = one["began"], one["began"] + one["seconds"]
        if ended > now + _SAME or began >= now:
            continue  # it went on beside another one that was waited for
        pieces.append(Span("controller", min(ended, now), now, one["first"]))
        pieces += reversed(_of_generation(record, one, own, min(ended, now)))
        now = began
    pieces.append(Span("controller", 0.0, now, 0))
    return [piece for piece in reversed(pieces) if piece.end > piece.start]


def _of_generation(record: Record, one: dict[str, Any], branches: list[dict[str, Any]], ended: float) -> list[Span]:
    """The path of one generation of a program, as that of an answer of its own; its steps count from 0 there."""
    first, began = one["first"], one["began"]
    steps = one.get("aside") or (record["steps"][first : first + one["steps"]] if one["in_answer"] else [])
    if not one["lookahead"] or not steps:  # one request, or a generation that has failed
        alone = branches[0] if len(branches) == 1 else {}
        queued = min(began + (alone.get("queued") or 0.0), ended)
        wrote = min(queued + (alone.get("prefill") or 0.0), ended)
        spans = (("queue", began, queued), ("prefill", queued, wrote), (one["role"], wrote, ended))
        return [Span(part, start, end, first) for part, start, end in spans]
    own = [branch | {"position": branch["position"] - first} for branch in branches]
    found = _Path({"seconds": ended, "steps": steps, "branches": own}, began).pieces
    return [replace(piece, position=piece.position + first) for piece in found]


@dataclass
class _Path:
    """Followed from ``record["seconds"]`` back to ``began``."""

    record: Record
    began: float = 0.0
    pieces: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps: list[dict[str, Any]] = self.record["steps"]
        self.kept = [float(step["seconds"]) for step in self.steps]
        if not self.steps:
            return
        self.late = {
            n + 1
            for n, step in enumerate(self.steps)
            if step["source"] == "target" and any(v is not None and v["by"] == "late" for v in step["verdicts"])
        }
        self.corrected = [n for n, step in enumerate(self.steps) if step["source"] == "target"]
        ends = [*self._branches(), *self._verdicts_without_a_branch()]
        self.of: dict[int, list[_End]] = defaultdict(list)
        for end in ends:
            self.of[end.position].append(end)
        everything = [*ends, *(_End(when, n, "keep") for n, when in enumerate(self.kept))]
        self.ends = sorted(everything, key=lambda end: (end.when, end.kind != "keep", end.position))
        self.whens = [end.when for end in self.ends]
        self._follow(float(self.record["seconds"]))
        self.pieces.reverse()

    def _branches(self) -> list[_End]:
        found = []
        for branch in self.record["branches"]:
            ended, outcome, position = branch["ended"], branch["outcome"], branch["position"]
            if ended is None:
                continue
            if outcome == "cancelled" and ended > self._dropped(position, branch["started"]):
                continue  # it was stopped, and nobody waited for it
            waits = (branch.get("queued") or 0.0, branch.get("prefill") or 0.0)
            found.append(_End(ended, position, branch["role"], branch["started"], *waits))
        return found

    def _dropped(self, position: int, started: float) -> float:
        """When a branch was given up, at the latest: as a step before it was corrected, or at the end."""
        # Steps are kept one after the other.
        first = bisect_right(self.corrected, started, key=self.kept.__getitem__)
        within = first < len(self.corrected) and self.corrected[first] <= position
        return self.kept[self.corrected[first]] if within else self.kept[-1]

    def _verdicts_without_a_branch(self) -> list[_End]:
        """Of verifiers that work here; their time is counted from when both versions were there."""
        asked = {b["position"] for b in self.record["branches"] if b["role"] == "judge"}
        found = []
        by_position = defaultdict(list)
        for branch in self.record["branches"]:
            if branch["ended"] is not None and branch["role"] != "judge" and branch["outcome"] != "cancelled":
                by_position[branch["position"]].append(float(branch["ended"]))
        for n, step in enumerate(self.steps):
            seconds = max((v["seconds"] for v in step["verdicts"] if v is not None), default=0.0)
            there = [when for when in by_position[n] if when + seconds <= self.kept[n] + _SAME]
            if n not in asked and seconds > 0 and there:
                found.append(_End(max(there) + seconds, n, "judge", max(there)))
        return found

    def _follow(self, now: float) -> None:
        """Back from the last step."""
        last = len(self.steps) - 1
        written = self.steps[last]["outcome"] == "written"
        cause = self._cause(now, [*self.of[last], *(self.of[0] if written else ()), *self._keep(last - 1)])
        while cause is not None:
            now = self._gap(cause, now)
            if cause.kind == "keep":
                n = cause.position
                cause = self._cause(now, [*self.of[n], *self._keep(n - 1)], below=cause)
                continue
            now = self._branch(cause, now)
            before = cause.position - (cause.kind != "judge")
            cause = self._cause(now, self._prefix(before, cause.kind), below=cause) if before >= 0 else None
        self._piece("controller", self.began, now, 0)

    def _prefix(self, position: int, kind: str) -> list[_End]:
        """What a branch needs before it can start: a judge both versions, another one the step before."""
        found = self.of[position]
        return [end for end in found if end.kind != "judge"] if kind == "judge" else [*found, *self._keep(position)]

    def _keep(self, n: int) -> list[_End]:
        return [_End(self.kept[n], n, "keep")] if 0 <= n < len(self.kept) else []

    def _cause(self, now: float, needed: list[_End], below: _End | None = None) -> _End | None:
        """The latest of what was needed; if that was there long before, the latest of anything that was heard of."""
        ready = max((end for end in needed if self._before(end, now, below)), key=self._rank, default=None)
        if ready is not None and now - ready.when <= AT_ONCE:
            return ready
        for number in reversed(range(bisect_right(self.whens, now + _SAME))):
            end = self.ends[number]
            if ready is not None and end.when <= ready.when:
                break
            if self._before(end, now, below):
                return end
        return ready

    def _before(self, end: _End, now: float, below: _End | None) -> bool:
        """Steps of one moment are kept in order, so that of two the earlier one is the cause."""
        if end.when > now + _SAME or end is below:
            return False
        if end.kind == "keep":
            return below is None or below.kind != "keep" or end.position < below.position
        return end.start < now - _SAME

    @staticmethod
    def _rank(end: _End) -> tuple[float, bool, float]:
        return end.when, end.kind != "keep", end.start

    def _gap(self, cause: _End, now: float) -> float:
        self._piece("controller", cause.when, now, cause.position)
        return min(now, cause.when)

    def _branch(self, end: _End, now: float) -> float:
        start = max(self.began, end.start)
        queued = min(start + end.queued, now)
        began = min(queued + end.prefill, now)
        part = "late" if end.kind == "target" and end.position in self.late else end.kind
        self._piece(part, began, now, end.position)
        self._piece("prefill", queued, began, end.position)
        self._piece("queue", start, queued, end.position)
        return min(now, start)

    def _piece(self, part: str, start: float, end: float, position: int) -> None:
        if end > start:
            self.pieces.append(Span(part, start, end, position))
