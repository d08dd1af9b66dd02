"""A report of one or more runs: all figures, the tables, and the verdict in words, which says
whether looking ahead pays here, by how much, and how sure that is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lr_sglang.modes import MODES
from lr_sglang.results import statistics, tables
from lr_sglang.results.collection import Collection
from lr_sglang.results.groups import Group
from lr_sglang.results.measures import Measures, differences, measure, speed
from lr_sglang.results.statistics import Difference, Estimate
from lr_sglang.results.tables import Table

SCHEMA = 1
WARNINGS = {
    "dummy weights": "random weights: times are real, the words are not, so accuracy and "
    "acceptance mean nothing",
    "simulated acceptance": "how many tokens a verification of the token layer gives was asked "
    "for, not measured",
}


LATE = 0.1  # share of judged steps whose draft came too late, above which it is said
ACCURACY = {
    "kept": ", so it is kept",
    "worse": ", which is more than chance",
    "open": ", within chance",
}


@dataclass(frozen=True)
class Verdict:
    """The fastest way with lookahead against the fastest without, on the questions of both.

    Attributes:
        ahead, plain: names of the two groups.
        speed: seconds without lookahead over those with it.
        accuracy: that with lookahead less that without; None if no right answer is known.
        late: share of judged steps whose draft came too late.
    """

    task: str
    concurrency: int
    ahead: str
    plain: str
    speed: Estimate
    accuracy: Difference | None
    late: float

    @property
    def pays(self) -> bool | None:
        """Whether it is faster and not less accurate, both beyond chance; None if the questions are
        too few to tell.
        """
        if self.speed.low is None or self.speed.holds(1.0):
            return None
        worse = self.accuracy is not None and self.accuracy.verdict == "worse"
        return self.speed.low > 1 and not worse

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "pays": self.pays}

    def words(self) -> list[str]:
        """Lines of text: the verdict, the accuracy, and a warning if drafts were late."""
        speed = self.speed
        between = ""
        if speed.low is not None and speed.high is not None:
            between = f" (95 %: {speed.low:.2f} to {speed.high:.2f})"
        answer = {True: "Yes", False: "No", None: "Too few questions to tell"}[self.pays]
        lines = [
            f"Does looking ahead pay for {self.task}, {self.concurrency} at once? {answer}: "
            f"{self.ahead} has {speed.value:.2f}x the speed of {self.plain}{between}, "
            f"{speed.questions} question{'s' * (speed.questions != 1)}."
        ]
        if self.accuracy is not None:
            points = f"{100 * self.accuracy.value:+.1f} points"
            chance = ACCURACY[self.accuracy.verdict]
            lines.append(f"Accuracy: {points} against {self.plain}{chance}.")
        if self.late > LATE:
            lines.append(
                f"Warning: {100 * self.late:.0f} % of the drafts came too late to be compared: the "
                "draft is too slow here, or the machine was busy."
            )
        return lines


def verdicts(collection: Collection, measures: Sequence[Measures]) -> Iterator[Verdict]:
    """A verdict for every task, sampling and concurrency with answers of both kinds."""
    left = [m for m in measures if m.seconds is not None and m.group.mode in MODES]
    while left:
        like = [m for m in left if m is left[0] or m.group.comparable(left[0].group)]
        left = [m for m in left if not any(m is one for one in like)]
        kinds = [[m for m in like if MODES[m.group.mode].ahead is ahead] for ahead in (True, False)]
        if all(kinds):
            ahead, plain = (min(of, key=_seconds) for of in kinds)
            if (found := _verdict(ahead, plain.group)) is not None:
                yield found


def _seconds(m: Measures) -> float:
    return m.seconds.value if m.seconds else float("inf")


def _verdict(ahead: Measures, plain: Group) -> Verdict | None:
    found = speed(ahead.group, plain)
    if found is None:
        return None
    return Verdict(
        task=ahead.group.task,
        concurrency=ahead.group.concurrency,
        ahead=ahead.group.name,
        plain=plain.name,
        speed=found.seconds,
        accuracy=statistics.difference(differences(ahead.group, plain)),
        late=ahead.late / ahead.judged if ahead.judged else 0.0,
    )


@dataclass(frozen=True)
class Report:
    """All groups with their figures; ``tables`` and ``verdicts`` are made from them."""

    collection: Collection
    measures: list[Measures]
    tables: list[Table] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def warning(self) -> str:
        """The warning on every table and plot; empty for runs on real models."""
        return "; ".join(WARNINGS[mark] for mark in self.collection.marks)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, for JSON; shares are between 0 and 1, times in seconds."""
        return {
            **{
                "schema": SCHEMA,
                "folders": self.collection.folders,
                "notes": self.collection.notes,
            },
            **{"marks": list(self.collection.marks), "warning": self.warning},
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "groups": [m.to_dict() for m in self.measures],
        }


def make(collection: Collection) -> Report:
    """Measures everything."""
    measures = [measure(collection, group) for group in collection.groups]
    found = list(tables.all_of(measures))
    return Report(collection, measures, found, list(verdicts(collection, measures)))


def as_json(report: Report) -> str:
    """Every figure."""
    return json.dumps(report.to_dict(), ensure_ascii=False, indent=1) + "\n"
