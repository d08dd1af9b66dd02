"""A report as text for a file: Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from lr_sglang.results.report import Report
from lr_sglang.results.store import flat
from lr_sglang.results.tables import Table


def markdown(report: Report) -> str:
    """All tables; the warning stands over each of them, for they are copied one by one."""
    parts = ["\n".join(_markdown(table, report.warning)) for table in report.tables]
    notes = "\n".join(f"- {_cell(note)}" for note in report.collection.notes)
    return "\n\n".join([*parts, *([notes] if notes else [])]) + "\n"


def _markdown(table: Table, warning: str) -> list[str]:
    lines = [f"### {_cell(table.title)}", ""]
    if warning:
        lines += [f"**{_cell(warning[0].upper() + warning[1:])}.**", ""]
    lines += [
        f"| {' | '.join(map(_cell, table.columns))} |",
        f"|{'|'.join(['-', *['-:'] * (len(table.columns) - 1)])}|",
    ]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in table.rows]
    return [*lines, "", table.note] if table.note else lines


def _cell(text: str) -> str:
    """Names come from files: nothing in them is markup."""
    text = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return " ".join(text.split())


def as_json(report: Report) -> str:
    """Every figure."""
    return json.dumps(report.to_dict(), ensure_ascii=False, indent=1) + "\n"


def as_csv(report: Report) -> str:
    """A row a group, a column a figure; intervals are columns of their own (``accuracy.low``)."""
    rows = []
    for group in report.to_dict()["groups"]:
        row: dict[str, Any] = {}
        for name, value in flat(group):
            if not isinstance(value, list):
                row[name] = value
            elif value and all(isinstance(one, dict) for one in value):
                row |= {f"{name}.{n}.{k}": v for n, one in enumerate(value) for k, v in one.items()}
            else:
                row[name] = "; ".join(map(str, value))
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _harmless(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _harmless(value: Any) -> Any:
    """A spreadsheet takes text that begins like this for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
