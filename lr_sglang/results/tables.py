"""The tables of a report: those of the paper and of its code, and some more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lr_sglang.results import accounting
from lr_sglang.results.collection import Collection
from lr_sglang.results.groups import Group, program
from lr_sglang.results.measures import Measures
from lr_sglang.results.statistics import Estimate

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
    "tokens/s": lambda m: plain(m.rate, 1),
    "seconds": lambda m: plain(m.seconds, 2),
    "tokens": lambda m: plain(m.tokens, 0),
}
ACCEPTANCE: dict[str, Cell] = {
    "alpha, pooled": lambda m: cell(m.alpha, 2),
    "alpha, mean": lambda m: plain(m.alpha_mean, 2),
    "c1": lambda m: cell(m.c1, 2),
    "verdict, ms": lambda m: cell(m.judge_seconds, 1, 1000),
    "late %": lambda m: plain(m.late / m.judged if m.judged else None, 1, 100),
    "wasted %": lambda m: plain(m.wasted, 0, 100),
}
THEORY: dict[str, Cell] = {
    "paper": lambda m: times(m.expected.paper if m.expected else None),
    "+ verdicts": lambda m: times(m.expected.judge if m.expected else None),
    "+ ends": lambda m: times(m.expected.ends if m.expected else None),
    "+ slow-down": lambda m: times(m.expected.slowdown if m.expected else None),
    "measured": lambda m: times(m.expected.measured if m.expected else None),
}


def all_of(collection: Collection, measures: list[Measures], margin: float) -> Iterator[Table]:
    """All tables for which the runs have figures; ``margin`` is that of *Quality*."""
    tables = (
        _table1(collection, measures),
        _rows(
            measures,
            "Quality",
            QUALITY,
            "95 % intervals over questions; the difference is paired; kept: all of the "
            "interval is above"
            f" -{100 * margin:g} points, worse: all below",
            of=lambda m: m.accuracy is not None or m.errors,
        ),
        _rows(
            measures,
            "Speed",
            {
                name: of
                for name, of in SPEED.items()
                if name != "over sd" or any(m.over_sd for m in measures)
            },
            "of answers without an error; speed-ups on the questions and samples that both "
            "modes have",
        ),
        _varied(measures, "verifier", "Table 2: verifiers", ("alpha", "accuracy %", "speed-up")),
        _varied(measures, "width", "Table 3: width", ("accuracy % / alpha / speed-up",)),
        _rows(
            measures,
            "Acceptance",
            ACCEPTANCE,
            "alpha: accepted of the judged steps, of all answers together and as the mean of "
            "the answers; c1: time of a"
            " draft step over a target step; late: refused because the draft came too late; "
            "wasted: of the tokens"
            " generated",
            of=lambda m: m.alpha is not None,
        ),
        _rows(
            measures,
            "Expected and measured",
            THEORY,
            "speed-ups in tokens/s over the mode without lookahead. The formulas expect of the "
            "measured alpha and c1:"
            " the paper's (S1, S2 or sync); with verdicts that take time; with answers that "
            "end; with target steps"
            " slowed down by each other. The last is measured",
            of=lambda m: m.expected is not None,
        ),
        _time(measures),
        _runs(measures),
    )
    return (table for table in tables if table is not None)


def _rows(
    measures: list[Measures],
    title: str,
    columns: Mapping[str, Cell],
    note: str,
    of: Callable[[Measures], Any] = bool,
) -> Table | None:
    """A table with a row for each group for which ``of`` is true; each column formats
    one figure.
    """
    # Marks are shown beside the mode if not all groups have them.
    mixed = len({m.group.marks for m in measures}) > 1
    rows = []
    for m in filter(of, measures):
        name = m.group.name + "".join(f" [{mark}]" for mark in m.group.marks if mixed)
        rows.append([m.group.task, name, *(say(m) for say in columns.values())])
    return Table(title, ["task", "mode", *columns], rows, note) if rows else None


def _crossed(
    title: str,
    cells: Mapping[tuple[str, Any], str],
    columns: Sequence[Any],
    names: Sequence[str],
    note: str,
) -> Table | None:
    """A table of cells by row and column."""
    rows = list(dict.fromkeys(row for row, _ in cells))
    lines = [[row, *(cells.get((row, column), NONE) for column in columns)] for row in rows]
    return Table(title, ["", *names], lines, note) if lines else None


def _table1(collection: Collection, measures: list[Measures]) -> Table | None:
    """The paper's Table 1: a column for each task; rows of accuracy, alpha and speed-up for each
    group.
    """
    cells: dict[tuple[str, Any], str] = {}
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
    return _crossed(title, cells, tasks, tasks, note)


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


def _varied(
    measures: list[Measures], setting: str, title: str, what: Sequence[str]
) -> Table | None:
    """The form of the paper's Tables 2 and 3: a column for each value of a setting."""
    ahead = [
        m for m in measures if m.group.value(setting) is not None and m.group.mode != "lossless"
    ]
    values = list(dict.fromkeys(m.group.value(setting) for m in ahead))
    if len(values) < 2:
        return None
    cells: dict[tuple[str, Any], str] = {}
    for m in ahead:
        rest = [w for w in m.group.label.split(", ") if w and not w.startswith(f"{setting} ")]
        who = " ".join([m.group.task, m.group.mode, *rest])
        speed = plain(m.speed.tokens if m.speed else None, 2, unit="x")
        said = {"alpha": plain(m.alpha, 2), "accuracy %": _plus_minus(m), "speed-up": speed}
        said["accuracy % / alpha / speed-up"] = " / ".join(
            (said["accuracy %"], said["alpha"], speed)
        )
        for name in what:
            cells[f"{who} {name}" if len(what) > 1 else who, m.group.value(setting)] = said[name]
    names = [f"{setting} {value}" for value in values]
    return _crossed(title, cells, values, names, "" if len(what) > 1 else what[0])


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


def _runs(measures: list[Measures]) -> Table | None:
    longest = min(6, max((len(m.runs) for m in measures), default=0))

    def after(n: int) -> Cell:
        return lambda m: f"{m.runs[n].value:.2f} ({m.runs[n].samples})" if n < len(m.runs) else NONE

    note = (
        "share accepted after n accepted steps (of how many); the formulas take it to be "
        "the same everywhere"
    )
    columns = {f"after {n}": after(n) for n in range(longest)}
    return _rows(measures, "Acceptance by position", columns, note, of=lambda m: m.runs)
