"""The tables of a report: those of the paper and of its code, and some more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lr_sglang.results import accounting
from lr_sglang.results.collection import Collection
from lr_sglang.results.groups import Group, program
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


def all_of(collection: Collection, measures: list[Measures]) -> Iterator[Table]:
    """All tables for which the runs have figures."""
    tables = (
        _table1(collection, measures),
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


def _table1(collection: Collection, measures: list[Measures]) -> Table | None:
    """The paper's Table 1: a column for each task; rows of accuracy, alpha and speed-up for each
    group.
    """
    cells: dict[tuple[str, str], str] = {}
    tasks = collection.tasks
    for m in measures:
        name, task, said = _alone(collection, m.group), m.group.task, {}
        if m.accuracy:
            said["%" if m.group.label else "accuracy %"] = _plus_minus(m)
        if m.alpha:
            said["alpha"] = plain(m.alpha, 2)
        if m.speed:
            said["speed-up"] = plain(m.speed.tokens, 2, unit="x")
        elif m.group.mode != "autoregressive" and m.rate:
            said["tokens/s"] = plain(m.rate, 1)
        if m.group.label:  # a sweep's group has one row, not three
            cells[f"{name}: {' / '.join(said)}", task] = " / ".join(said.values())
        else:
            cells |= {(f"{name} {what}", task): value for what, value in said.items()}
    note = (
        "as the paper's Table 1; speed-up is in tokens/s over the target's autoregressive;"
        " +- is the deviation between samples (paper), of one sample there is none"
    )
    title = f"Table 1: {collection.models or 'models unknown'}"
    programs = {program(group) for group in collection.groups}
    if len(programs) == 1 and (common := programs.pop()):  # else the rows' names have it
        title += f"; program {common}"
    names = list(dict.fromkeys(row for row, _ in cells))
    rows = [[name, *(cells.get((name, task), NONE) for task in tasks)] for name in names]
    return Table(title, ["", *tasks], rows, note) if rows else None


def _plus_minus(m: Measures) -> str:
    """Accuracy in the paper's form, with the deviation between samples."""
    return plain(m.accuracy, 1, 100) + (f"+-{100 * m.spread:.1f}" if m.spread is not None else "")


def _alone(collection: Collection, group: Group) -> str:
    """The group's name in Table 1; plain decoding is called ``target``, or ``draft`` if the draft's
    model answers.
    """
    ahead = [g.models for g in collection.groups if "draft" in g.models]
    drafts = {models["draft"] for models in ahead} - {models.get("target") for models in ahead}
    if group.mode == "autoregressive":
        who = "draft" if group.models.get("target") in drafts else "target"
        return f"{who} ({group.label})" if group.label else who
    return group.name


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
