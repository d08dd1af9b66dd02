"""All figures of a group of records: quality, speed, acceptance, parts of the time, and the
formulas' expectation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from lr_sglang.errors import ConfigError
from lr_sglang.results import accounting
from lr_sglang.results import statistics as st
from lr_sglang.results.brief import Row
from lr_sglang.results.collection import Collection
from lr_sglang.results.groups import Group, program
from lr_sglang.results.statistics import Difference, Estimate
from lr_sglang.theory import measured as theory
from lr_sglang.theory.judged import MAX_STEPS, Case


@dataclass(frozen=True)
class Speed:
    """The speed-up over another group, on the same questions and samples.

    Attributes:
        seconds: the other's summed seconds over the group's.
        tokens: tokens per second over the other's; differs from ``seconds`` if answers are longer
            or shorter.
    """

    over: str
    seconds: Estimate
    tokens: Estimate


@dataclass(frozen=True)
class Expected:
    """What the formulas expect of a run, by its measured acceptance, times of steps and verdicts,
    number of steps, and slow-down of parallel steps.

    Attributes:
        speedup: in tokens per second, over the same mode without lookahead.
        c1: the measured one.
    """

    speedup: float
    c1: float


@dataclass(frozen=True)
class Measures:
    """Figures of a group; None where nothing was measured.

    Attributes:
        alpha: pooled over all judged steps.
        judge_seconds: time of a verdict, without those that asked no verifier.
    """

    group: Group
    errors: int
    cut_off: int
    accuracy: Estimate | None
    difference: Difference | None
    speed: Speed | None
    over_sd: Speed | None
    seconds: Estimate | None
    tokens: float | None
    rate: Estimate | None
    alpha: Estimate | None
    late: int
    judged: int
    c1: Estimate | None
    step_seconds: Estimate | None
    judge_seconds: Estimate | None
    wasted: float | None
    time: dict[str, Any]
    expected: Expected | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        group = self.group
        names = ("task", "mode", "label", "marks", "concurrency", "models", "settings")
        about = {name: getattr(group, name) for name in names} | {"marks": list(group.marks)}
        about |= {
            "samples": len(group.rows),
            "questions": len({r["question_id"] for r in group.rows}),
        }
        return about | {
            name: _plain(value) for name, value in vars(self).items() if name != "group"
        }


def measure(collection: Collection, group: Group) -> Measures:
    """Measures one group."""
    base = collection.base(group) if group.mode != "autoregressive" else None
    sd = collection.base(group, "sd") if group.mode == "lookahead+sd" else None
    ended, graded = group.ended, [r for r in group.rows if r["correct"] is not None]
    generated = sum(r["tokens"]["generated"] for r in group.rows)
    return Measures(
        group=group,
        errors=len(group.rows) - len(ended),
        cut_off=sum(r.get("finish") == "length" for r in ended),
        accuracy=st.share(_counts(graded, lambda r: (bool(r["correct"]), 1))),
        difference=st.difference(differences(group, base)) if base else None,
        speed=speed(group, base) if base else None,
        over_sd=speed(group, sd) if sd else None,
        seconds=_per(ended, lambda r: (r["seconds"], 1)),
        tokens=_mean([r["tokens"]["used"] for r in ended]),
        rate=_per(ended, lambda r: (r["tokens"]["used"], r["seconds"])),
        alpha=st.share(_counts(ended, lambda r: (r["accepted"], r["judged"]))),
        late=sum(r.late for r in ended),
        judged=sum(r["judged"] for r in ended),
        c1=_c1(ended),
        step_seconds=_per(ended, lambda r: r.answer.target if r.answer else (0, 0))
        if group.mode.startswith("lo")
        else None,
        judge_seconds=_per(ended, lambda r: r.verdicts),
        wasted=sum(r["tokens"]["wasted"] for r in group.rows) / generated if generated else None,
        time=_time(ended),
        expected=expected(collection, group),
    )


def speed(group: Group, base: Group) -> Speed | None:
    """The speed-up over another group; None if they have no answer in common."""
    pairs = [
        (key[0], m, b)
        for key, m, b in _pairs(group, base)
        if m["error"] is None and b["error"] is None
    ]
    sums = _sums(
        (q, (b["seconds"], m["seconds"], m["tokens"]["used"], b["tokens"]["used"]))
        for q, m, b in pairs
    )
    columns = list(zip(*sums.values(), strict=True))
    if not columns:
        return None
    seconds = st.product(columns[:2], [1, -1], len(pairs))
    tokens = st.product(columns, [1, -1, 1, -1], len(pairs))
    if seconds is None or tokens is None:
        return None
    return Speed(base.name, seconds, tokens)


def differences(group: Group, base: Group) -> dict[Hashable, list[float]]:
    """By question, for each sample that both answered: 1 if only the group's answer is right, -1 if
    only the other.
    """
    found: dict[Hashable, list[float]] = defaultdict(list)
    for key, mine, other in _pairs(group, base):
        if mine["correct"] is not None and other["correct"] is not None:
            found[key[0]].append(float(bool(mine["correct"])) - bool(other["correct"]))
    return found


def _pairs(group: Group, base: Group) -> Iterable[tuple[tuple[str, int, int], Row, Row]]:
    other = base.by_pair()
    return ((key, record, other[key]) for key, record in group.by_pair().items() if key in other)


def expected(collection: Collection, group: Group) -> Expected | None:
    """The expectation for a lookahead group; None if its records do not suffice, or drafting is no
    faster.

    The formulas hold for one answer at one depth, and not for programs that make several
    generations.
    """
    answers = [row.answer for row in group.rows if row.answer]
    fixed = all(one.lookahead and one.lookahead.policy != "adaptive" for one in answers)
    if group.mode not in theory.AHEAD or not fixed or program(group):
        return None
    base = collection.base(group, theory.without(answers))  # with the same token layer, if any
    answers += [row.answer for row in (base.rows if base else ()) if row.answer]
    try:
        found = theory.measure(answers, group.mode)
        steps = min(found.steps, MAX_STEPS)
        case = Case(found.alpha, found.c1, found.judge, found.slowdown or 1.0, steps)
    except (ConfigError, ZeroDivisionError):
        return None
    return Expected(case.speedup(found.schedule, found.depth), found.c1)


def _sums(rows: Iterable[tuple[Hashable, tuple[float, ...]]]) -> dict[Hashable, Any]:
    """Sums columns of numbers by question."""
    sums: dict[Hashable, tuple[float, ...]] = {}
    for question, values in rows:
        sums[question] = tuple(
            map(sum, zip(sums.get(question, (0.0,) * len(values)), values, strict=True))
        )
    return sums


def _counts(
    records: Iterable[Row], count: Callable[[Row], tuple[float, float]]
) -> dict[Hashable, Any]:
    return _sums((record["question_id"], count(record)) for record in records)


def _per(records: Sequence[Row], of: Callable[[Row], tuple[float, float]]) -> Estimate | None:
    """The ratio of two sums over all records."""
    columns = list(zip(*(pair for pair in _counts(records, of).values() if any(pair)), strict=True))
    return st.product(columns, [1, -1], len(records)) if columns else None


def _c1(records: Sequence[Row]) -> Estimate | None:
    """Mean draft step over mean target step."""
    sums = _sums(
        (r["question_id"], (*r.answer.draft, *r.answer.target)) for r in records if r.answer
    )
    rows = [row for row in sums.values() if row[1] and row[3]]
    return (
        st.product(list(zip(*rows, strict=True)), [1, -1, -1, 1], int(sum(r[1] for r in rows)))
        if rows
        else None
    )


def _time(rows: Sequence[Row]) -> dict[str, Any]:
    """Sums over many answers: seconds by part, their sum, and the wall time that it explains.

    ``waits_known`` says whether the runtimes reported queueing and prefill; else both are in the
    other parts.
    """
    sums = {part: sum(row.parts[part] for row in rows) for part in accounting.PARTS}
    explained, wall = sum(sums.values()), sum(row["seconds"] for row in rows)
    return {
        "parts": sums,
        "explained": explained,
        "wall": wall,
        "share": explained / wall if wall else None,
        "waits_known": any(row.waits_known for row in rows),
        "timed": any(row.timed for row in rows),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
