"""A report of one or more runs: all figures and tables, as Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.results import statistics as st
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
    margin: float
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
            **{
                "marks": list(self.collection.marks),
                "warning": self.warning,
                "margin": self.margin,
            },
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "groups": [m.to_dict() for m in self.measures],
        }


def make(collection: Collection, margin: float = st.MARGIN) -> Report:
    """Measures everything; ``margin`` as in ``measures.measure``."""
    measures = [measure(collection, group, margin) for group in collection.groups]
    found = list(tables.all_of(collection, measures, margin))
    return Report(collection, measures, margin, found, list(verdicts(collection, measures)))


def markdown(report: Report) -> str:
    """All tables, each under the warning, because readers copy single tables."""
    parts, warning = [], report.warning
    for table in report.tables:
        lines = [f"### {_cell(table.title)}", ""]
        lines += [f"**{_cell(warning[0].upper() + warning[1:])}.**", ""] if warning else []
        rule = f"|{'|'.join(['-', *['-:'] * (len(table.columns) - 1)])}|"
        head, *rows = (f"| {' | '.join(map(_cell, row))} |" for row in [table.columns, *table.rows])
        lines += [head, rule, *rows, *(["", table.note] if table.note else [])]
        parts.append("\n".join(lines))
    for verdict in report.verdicts:
        lines = [*verdict.words(), *([f"({warning})"] if warning else [])]
        parts.append(" ".join(map(_cell, lines)))
    if report.collection.notes:
        parts.append("\n".join(f"- {_cell(note)}" for note in report.collection.notes))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Escapes a cell: names come from files and may look like markup."""
    text = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return " ".join(text.split())


def as_json(report: Report) -> str:
    """Every figure."""
    return json.dumps(report.to_dict(), ensure_ascii=False, indent=1) + "\n"
