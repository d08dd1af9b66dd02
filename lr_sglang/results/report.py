"""A report of one or more runs: all figures, tables and verdicts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.results import tables
from lr_sglang.results.collection import Collection
from lr_sglang.results.measures import Measures, measure
from lr_sglang.results.tables import Table
from lr_sglang.results.verdict import Verdict, verdicts

SCHEMA = 1
WARNINGS = {
    "dummy weights": "random weights: times are real, the words are not, so accuracy and "
    "acceptance mean nothing",
    "simulated acceptance": "how many tokens a verification of the token layer gives was asked "
    "for, not measured",
}


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
    found = list(tables.all_of(collection, measures))
    return Report(collection, measures, found, list(verdicts(collection, measures)))


def as_json(report: Report) -> str:
    """Every figure."""
    return json.dumps(report.to_dict(), ensure_ascii=False, indent=1) + "\n"
