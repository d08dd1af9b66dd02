"""The tables of a report: a row for each task, mode and setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lr_sglang.results import accounting
from lr_sglang.results.measures import Measures
from lr_sglang.results.statistics import MARGIN, Estimate

NONE = "-"
VERDICTS = {"kept": "kept", "worse": "worse", "open": "not shown"}
Cell = Callable[[Measures], str]


@dataclass(frozen=True)
class Table:
    """Formatted cells; the first column has the names of the rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def cell(
    value: Estimate | float | None, digits: int, scale: float = 1.0, unit: str = "", sign: str = ""
) -> str:
    """A figure, and its interval if it has one."""
    if value is None:
        return NONE
    low, high = (value.low, value.high) if isinstance(value, Estimate) else (None, None)
    middle = value.value if isinstance(value, Estimate) else value
    said = f"{scale * middle:{sign}.{digits}f}{unit}"
    if low is None or high is None:
        return said
    return f"{said} ({scale * low:{sign}.{digits}f}..{scale * high:{sign}.{digits}f})"


def times(speed: Estimate | float | None) -> str:
    """A speed-up, and its interval if it has one."""
    return cell(speed, 2, unit="x")


def plain(value: Estimate | float | None, digits: int, scale: float = 1.0, unit: str = "") -> str:
    """A figure without its interval."""
    return cell(value.value if isinstance(value, Estimate) else value, digits, scale, unit)


QUALITY: dict[str, Cell] = {
    "samples": lambda m: str(len(m.group.rows)) + (f" ({m.errors} failed)" if m.errors else ""),
    "accuracy %": lambda m: cell(m.accuracy, 1, 100),
    "to the target, points": lambda m: cell(m.difference, 1, 100, sign="+"),
    "quality": lambda m: VERDICTS[m.difference.verdict] if m.difference else NONE,
}
SPEED: dict[str, Cell] = {
    "speed-up, seconds": lambda m: times(m.speed.seconds if m.speed else None),
    "speed-up, tokens/s": lambda m: times(m.speed.tokens if m.speed else None),
    "over sd": lambda m: times(m.over_sd.tokens if m.over_sd else None),
    "by the formulas": lambda m: plain(m.expected.speedup if m.expected else None, 2, unit="x"),
    "tokens/s": lambda m: plain(m.rate, 1),
    "seconds": lambda m: plain(m.seconds, 2),
    "tokens": lambda m: plain(m.tokens, 0),
}
ACCEPTANCE: dict[str, Cell] = {
    "alpha": lambda m: cell(m.alpha, 2),
    "c1": lambda m: cell(m.c1, 2),
    "verdict, ms": lambda m: cell(m.judge_seconds, 1, 1000),
    "late %": lambda m: plain(m.late / m.judged if m.judged else None, 1, 100),
    "wasted %": lambda m: plain(m.wasted, 0, 100),
}


def all_of(measures: list[Measures]) -> Iterator[Table]:
    """All tables for which the runs have figures."""
    tables = (
        _rows(
            measures,
            "Quality",
            QUALITY,
            "95 % intervals over questions; the difference is paired; kept: all of the "
            "interval is above"
            f" -{100 * MARGIN:g} points, worse: all below",
            of=lambda m: m.accuracy is not None or m.errors,
        ),
        _rows(
            measures,
            "Speed",
            SPEED,
            "of answers without an error; speed-ups on the questions and samples that both "
            "modes have; the formulas expect of the measured times and acceptance, over the same "
            "mode without lookahead",
        ),
        _rows(
            measures,
            "Acceptance",
            ACCEPTANCE,
            "alpha: accepted of the judged steps; c1: time of a draft step over a target step; "
            "late: refused because the draft came too late; wasted: of the tokens generated",
            of=lambda m: m.alpha is not None,
        ),
        _time(measures),
    )
    return (table for table in tables if table is not None)


def _rows(
    measures: list[Measures],
    title: str,
    columns: Mapping[str, Cell],
    note: str,
    of: Callable[[Measures], Any] = bool,
) -> Table | None:
    """A table with a row for each group for which ``of`` is true; each column formats one figure,
    and is left out if no group has it.
    """
    # Marks are shown beside the mode if not all groups have them.
    mixed = len({m.group.marks for m in measures}) > 1
    shown = [m for m in measures if of(m)]
    table = {
        "task": [m.group.task for m in shown],
        "mode": [
            m.group.name + "".join(f" [{mark}]" for mark in m.group.marks if mixed) for m in shown
        ],
        **{name: [say(m) for m in shown] for name, say in columns.items()},
    }
    table = {name: cells for name, cells in table.items() if set(cells) != {NONE}}
    return (
        Table(title, [*table], list(map(list, zip(*table.values(), strict=True))), note)
        if shown
        else None
    )


def _time(measures: list[Measures]) -> Table | None:
    shown = [m for m in measures if m.time["wall"] and m.time["timed"]]
    columns: dict[str, Cell] = {"seconds": lambda m: plain(m.time["wall"] / len(m.group.ended), 2)}
    for part, meaning in accounting.MEANING.items():
        if any(m.time["parts"][part] for m in measures):
            columns[f"{meaning} %"] = lambda m, part=part: plain(
                m.time["parts"][part] / m.time["wall"], 1, 100
            )  # type: ignore[misc]
    columns["accounted %"] = lambda m: plain(m.time["share"], 1, 100)
    note = "along the critical path of each answer"
    if not any(m.time["waits_known"] for m in shown):
        note += "; the runtimes did not report queueing and prefill, which are in the other columns"
    return _rows(measures, "Where the time went", columns, note, of=lambda m: m in shown)
