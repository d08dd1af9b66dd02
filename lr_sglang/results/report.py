"""A report of one or more runs: every figure, and the tables that people read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lr_sglang.results import beside_paper, tables
from lr_sglang.results import statistics as st
from lr_sglang.results.collection import Collection
from lr_sglang.results.measures import Measures, measure
from lr_sglang.results.tables import Table

SCHEMA = 1
WARNINGS = {
    "simulated": "simulated runtimes: the figures say nothing of models",
    "dummy weights": "random weights: times are real, the words are not, so accuracy and acceptance mean nothing",
    "simulated acceptance": "how many tokens a verification of the token layer gives was asked for, not measured",
    "reference": "made by the paper's own code, which records no steps",
}


@dataclass(frozen=True)
class Report:
    """All groups with their figures; ``tables`` are made from them."""

    collection: Collection
    measures: list[Measures]
    margin: float
    tables: list[Table] = field(default_factory=list)

    @property
    def warning(self) -> str:
        """The warning on every table and plot; empty for runs on real models."""
        return "; ".join(WARNINGS[mark] for mark in self.collection.marks)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, for JSON; shares are between 0 and 1, times in seconds."""
        return {
            **{"schema": SCHEMA, "folders": self.collection.folders, "notes": self.collection.notes},
            **{"marks": list(self.collection.marks), "warning": self.warning, "margin": self.margin},
            "groups": [m.to_dict() for m in self.measures],
        }


def make(collection: Collection, margin: float = st.MARGIN) -> Report:
    """Measures everything; ``margin`` as in ``measures.measure``."""
    measures = [measure(collection, group, margin) for group in collection.groups]
    found = list(tables.all_of(collection, measures, margin))
    if (beside := beside_paper.beside(measures)) is not None:
        found.insert(1, beside)
    return Report(collection, measures, margin, found)
