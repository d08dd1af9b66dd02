"""The tables of a report, in the shape of the paper's and of its code's, and some more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lr_sglang.results import accounting, labels
from lr_sglang.results.cells import NONE, number, percent, plus_minus, points, spanned, times
from lr_sglang.results.collection import Group
from lr_sglang.results.measures import Measures

if TYPE_CHECKING:
    from lr_sglang.results.report import Report

VERDICTS = {"kept": "kept", "worse": "worse", "open": "not shown"}
Cell = Callable[[Measures], str]
QUALITY: dict[str, Cell] = {
    "samples": lambda m: str(len(m.group.records)) + (f" ({m.errors} failed)" if m.errors else ""),
    "accuracy %": lambda m: percent(m.accuracy),
    "to the target, points": lambda m: points(m.difference),
    "quality": lambda m: VERDICTS[m.difference.verdict] if m.difference else NONE,
}
SPEED: dict[str, Cell] = {
    "speed-up, seconds": lambda m: times(m.speed.seconds if m.speed else None),
    "speed-up, tokens/s": lambda m: times(m.speed.tokens if m.speed else None),
    "over sd": lambda m: times(m.over_sd.tokens if m.over_sd else None),
    "tokens/s": lambda m: number(m.rate, 1),
    "seconds": lambda m: number(m.seconds, 2),
    "tokens": lambda m: number(m.tokens, 0),
}
ACCEPTANCE: dict[str, Cell] = {
    "alpha, pooled": lambda m: spanned(m.alpha, 2),
    "alpha, mean": lambda m: number(m.alpha_mean, 2),
    "c1": lambda m: spanned(m.c1, 2),
    "verdict, ms": lambda m: spanned(m.judge_seconds, 1, 1000),
    "late %": lambda m: number(100 * m.late / m.judged if m.judged else None, 1),
    "wasted %": lambda m: number(m.wasted, 0, 100),
}
REFERENCE: dict[str, Cell] = {
    "answers": lambda m: str(len(m.group.ended)),
    "speed": lambda m: number(m.rate_mean, 2),
    "tokens": lambda m: number(m.tokens, 1),
    "</think>": lambda m: number(m.thinks, 2),
    "accuracy %": lambda m: number(m.accuracy, 2, 100),
}


@dataclass(frozen=True)
class Table:
    """Cells as people read them. The first column says what a row is."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def all_of(report: Report) -> Iterator[Table]:
    """Those that the runs have something for."""
    makers = (_table1, _quality, _speed, _verifiers, _widths, _acceptance, _theory, _time, _runs, _reference)
    return (table for maker in makers if (table := maker(report)) is not None)


def _table1(report: Report) -> Table | None:
    """As the paper's Table 1: tasks side by side, for each way accuracy, alpha and speed-up."""
    tasks = report.collection.tasks
    rows: dict[str, dict[str, str]] = {}
    for task in tasks:
        for m in _of(report, task):
            name, cells = _alone(report, m.group), _cells(m)
            if m.group.label:  # one of a sweep: a row, not three
                rows.setdefault(f"{name}: {' / '.join(cells)}", {})[task] = " / ".join(cells.values())
                continue
            for what, cell in cells.items():
                rows.setdefault(f"{name} {what}", {})[task] = cell
    lines = [[name, *(of.get(task, NONE) for task in tasks)] for name, of in rows.items()]
    note = (
        "as the paper's Table 1; speed-up is in tokens/s over the target's autoregressive;"
        " +- is the deviation between samples (paper), of one sample there is none"
    )
    title = f"Table 1: {report.collection.models or 'models unknown'}"
    programs = {labels.program(group) for group in report.collection.groups}
    if len(programs) == 1 and (program := programs.pop()):  # else it is in the rows' names
        title += f"; program {program}"
    return Table(title, ["", *tasks], lines, note) if lines else None


def _cells(m: Measures) -> dict[str, str]:
    cells = {}
    if m.accuracy:
        cells["accuracy %" if not m.group.label else "%"] = plus_minus(m)
    if m.alpha:
        cells["alpha"] = number(m.alpha.value, 2)
    if m.speed:
        cells["speed-up"] = f"{m.speed.tokens.value:.2f}x"
    elif m.group.mode != "autoregressive" and m.rate:
        cells["tokens/s"] = f"{m.rate.value:.1f}"
    return cells


def _alone(report: Report, group: Group) -> str:
    """A draft that answers by itself is called so, as in the paper."""
    ahead = [g.models for g in report.collection.groups if "draft" in g.models]
    drafts = {models["draft"] for models in ahead} - {models.get("target") for models in ahead}
    if group.mode == "autoregressive":
        who = "draft" if group.models.get("target") in drafts else "target"
        return f"{who} ({group.label})" if group.label else who
    return group.name


def _rows(
    report: Report, title: str, columns: Mapping[str, Cell], note: str, *, of: Callable[[Measures], Any] = bool
) -> Table | None:
    """A row for each group that ``of`` holds for, with what the columns say of it."""
    rows = [[*_who(report, m), *(cell(m) for cell in columns.values())] for m in report.measures if of(m)]
    return Table(title, ["task", "mode", *columns], rows, note) if rows else None


def _quality(report: Report) -> Table | None:
    note = (
        f"95 % intervals over questions; the difference is paired; kept: all of the interval is above"
        f" -{100 * report.margin:g} points, worse: all below"
    )
    return _rows(report, "Quality", QUALITY, note, of=lambda m: m.accuracy is not None or m.errors)


def _speed(report: Report) -> Table | None:
    over_sd = any(m.over_sd for m in report.measures)
    columns = {name: cell for name, cell in SPEED.items() if over_sd or name != "over sd"}
    return _rows(report, "Speed", columns, "of answers without an error, on the questions and samples that both have")


def _verifiers(report: Report) -> Table | None:
    """As the paper's Table 2."""
    return _varied(report, "verifier", "Table 2: verifiers", ("alpha", "accuracy %", "speed-up"))


def _widths(report: Report) -> Table | None:
    """As the paper's Table 3."""
    return _varied(report, "width", "Table 3: width", ("accuracy % / alpha / speed-up",))


def _varied(report: Report, setting: str, title: str, what: Sequence[str]) -> Table | None:
    ahead = [m for m in report.measures if m.group.value(setting) is not None and m.group.mode != "lossless"]
    values = list(dict.fromkeys(m.group.value(setting) for m in ahead))
    if len(values) < 2:
        return None
    rows: dict[str, dict[Any, str]] = {}
    for m in ahead:
        rest = [w for w in m.group.label.split(", ") if w and not w.startswith(f"{setting} ")]
        who = " ".join([m.group.task, m.group.mode, *rest])
        cells = {
            "alpha": number(m.alpha, 2),
            "accuracy %": plus_minus(m),
            "speed-up": f"{m.speed.tokens.value:.2f}x" if m.speed else NONE,
        }
        cells["accuracy % / alpha / speed-up"] = " / ".join((cells["accuracy %"], cells["alpha"], cells["speed-up"]))
        for name in what:
            rows.setdefault(f"{who} {name}" if len(what) > 1 else who, {})[m.group.value(setting)] = cells[name]
    cells_of = [[name, *(of.get(value, NONE) for value in values)] for name, of in rows.items()]
    note = "" if len(what) > 1 else what[0]
    return Table(title, ["", *(f"{setting} {value}" for value in values)], cells_of, note)


def _acceptance(report: Report) -> Table | None:
    note = (
        "alpha: accepted of the judged steps, of all answers together and as the mean of the answers; c1: time of a"
        " draft step over a target step; late: refused because the draft came too late; wasted: of the tokens generated"
    )
    return _rows(report, "Acceptance", ACCEPTANCE, note, of=lambda m: m.alpha is not None)


def _theory(report: Report) -> Table | None:
    rows = []
    for m, e in zip(report.measures, report.expected, strict=True):
        if e is not None:
            speeds = (e.paper, e.judge, e.ends, e.slowdown, e.measured)
            said = [NONE if speed is None else f"{speed:.2f}x" for speed in speeds]
            rows.append([*_who(report, m), *said])
    names = ["task", "mode", "paper", "+ verdicts", "+ ends", "+ slow-down", "measured"]
    note = (
        "speed-ups in tokens/s over the mode without lookahead. The formulas expect of the measured alpha and c1: the"
        " paper's (S1, S2 or sync); with verdicts that take time; with answers that end; with target steps slowed down"
        " by each other. The last is measured"
    )
    return Table("Expected and measured", names, rows, note) if rows else None


def _time(report: Report) -> Table | None:
    rows, known = [], False
    used = [part for part in accounting.PARTS if any(m.time["parts"][part] for m in report.measures)]
    for m in report.measures:
        wall, done = m.time["wall"], len(m.group.ended)
        if wall and any(r["branches"] for r in m.group.ended):
            known = known or m.time["waits_known"]
            shares = [f"{100 * m.time['parts'][part] / wall:.1f}" for part in used]
            rows.append([*_who(report, m), f"{wall / done:.2f}", *shares, f"{100 * m.time['share']:.1f}"])
    names = ["task", "mode", "seconds", *(f"{accounting.MEANING[part]} %" for part in used), "accounted %"]
    note = "along the critical path of each answer"
    if not known:
        note += "; the runtimes did not report queueing and prefill, which are in the other columns"
    return Table("Where the time went", names, rows, note) if rows else None


def _runs(report: Report) -> Table | None:
    ahead = [m for m in report.measures if m.runs]
    longest = min(6, max((len(m.runs) for m in ahead), default=0))
    rows = []
    for m in ahead:
        cells = [f"{e.value:.2f} ({e.samples})" for e in m.runs[:longest]]
        rows.append([*_who(report, m), *cells, *[NONE] * (longest - len(cells))])
    names = ["task", "mode", *(f"after {n}" for n in range(longest))]
    note = "share accepted after so many accepted steps (of how many); the formulas take it to be the same everywhere"
    return Table("Acceptance by position", names, rows, note) if rows else None


def _reference(report: Report) -> Table | None:
    """As the reference's report_prefix.py."""
    note = "as the reference's report: means over answers, so speed is the mean of each answer's tokens/s"
    return _rows(report, "Per answer", REFERENCE, note)


def _who(report: Report, m: Measures) -> list[str]:
    """Task and mode; with its marks where others do not have them."""
    mixed = any(group.marks != m.group.marks for group in report.collection.groups)
    return [m.group.task, m.group.name + "".join(f" [{mark}]" for mark in m.group.marks if mixed)]


def _of(report: Report, task: str) -> list[Measures]:
    return [m for m in report.measures if m.group.task == task]
