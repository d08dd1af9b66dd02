"""All figures of a group of records: quality, speed, acceptance, where the time went, and what the formulas expect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np

from lr_sglang.results import accounting
from lr_sglang.results import statistics as st
from lr_sglang.results.collection import Collection, Group
from lr_sglang.results.record import Record
from lr_sglang.results.statistics import Difference, Estimate
from lr_sglang.theory.measured import finished

_UNASKED = ("late", "draft", "guard", "ending", "special")
MAX_POSITIONS = 16


@dataclass(frozen=True)
class Speed:
    """How much faster than another group, on the same questions and samples.

    Attributes:
        seconds: summed seconds of the other over summed seconds.
        tokens: tokens per second over the other's: an answer may also have become longer or shorter.
        each: geometric mean of single answers' ratios of seconds.
    """

    over: str
    seconds: Estimate
    tokens: Estimate
    each: float | None


@dataclass(frozen=True)
class Measures:
    """Figures of a group; None where nothing was measured.

    Attributes:
        spread: standard deviation of accuracy over the samples (what the paper gives as +-), with two or more.
        alpha, alpha_mean: pooled over all judged steps; the mean over answers.
        runs: alpha by how many steps were accepted before in the same cycle; ``positions``: by step of the answer.
        judge_seconds: of verdicts that were asked for.
        thinks: "</think>" in an answer, on average.
    """

    group: Group
    errors: int
    cut_off: int
    accuracy: Estimate | None
    spread: float | None
    difference: Difference | None
    speed: Speed | None
    over_sd: Speed | None
    seconds: Estimate | None
    tokens: float | None
    rate: Estimate | None
    rate_mean: float | None
    thinks: float | None
    alpha: Estimate | None
    alpha_mean: float | None
    runs: list[Estimate]
    positions: list[Estimate]
    late: int
    judged: int
    c1: Estimate | None
    step_seconds: Estimate | None
    judge_seconds: Estimate | None
    wasted: float | None
    time: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        group = self.group
        about = {
            "task": group.task,
            "mode": group.mode,
            "label": group.label,
            "marks": list(group.marks),
            "concurrency": group.concurrency,
            "models": group.models,
            "settings": group.settings,
            "samples": len(group.records),
            "questions": len({r["question_id"] for r in group.records}),
        }
        return about | {name: _plain(value) for name, value in vars(self).items() if name != "group"}


def measure(collection: Collection, group: Group, margin: float = st.MARGIN) -> Measures:
    """Measures one group.

    Args:
        margin: by how much accuracy may be less and still count as kept, as a share of 1.
    """
    base = collection.base(group) if group.mode != "autoregressive" else None
    sd = collection.base(group, "sd") if group.mode == "lookahead+sd" else None
    ended, graded = group.ended, [r for r in group.records if r["correct"] is not None]
    generated = sum(r["tokens"]["generated"] for r in group.records)
    alphas = [r["alpha"] for r in ended if r.get("alpha") is not None]
    rates = [r["tokens"]["used"] / r["seconds"] for r in ended if r["seconds"] > 0]
    return Measures(
        group=group,
        errors=len(group.records) - len(ended),
        cut_off=sum(r.get("finish") == "length" for r in ended),
        accuracy=st.share(_counts(graded, lambda r: (float(bool(r["correct"])), 1.0))),
        spread=_spread(graded),
        difference=st.difference(differences(group, base), margin) if base else None,
        speed=speed(group, base) if base else None,
        over_sd=speed(group, sd) if sd else None,
        seconds=_per(ended, lambda r: (r["seconds"], 1)),
        tokens=sum(r["tokens"]["used"] for r in ended) / len(ended) if ended else None,
        rate=_per(ended, lambda r: (r["tokens"]["used"], r["seconds"])),
        rate_mean=_mean(rates),
        thinks=_mean([r["text"].count("</think>") for r in ended]),
        alpha=st.share(_counts(ended, lambda r: (r["accepted"], r["judged"]))),
        alpha_mean=_mean(alphas),
        runs=_by(ended, runs),
        positions=_by(ended, lambda record: ((n, ok) for n, ok, _ in judged(record))),
        late=sum(map(_late, ended)),
        judged=sum(r["judged"] for r in ended),
        c1=_c1(ended),
        step_seconds=_per(ended, lambda r: _times(r, "target")) if group.mode.startswith("lo") else None,
        judge_seconds=_per(ended, _verdicts),
        wasted=sum(r["tokens"]["wasted"] for r in group.records) / generated if generated else None,
        time=accounting.total(ended),
    )


def speed(group: Group, base: Group) -> Speed | None:
    """The speed-up over another group; None if they have no answer in common."""
    mine, other = group.by_pair(), base.by_pair()
    both = [key for key in mine if key in other and mine[key]["error"] is None and other[key]["error"] is None]
    rows: dict[Hashable, list[float]] = defaultdict(lambda: [0.0] * 4)
    for key in both:
        one, two = mine[key], other[key]
        values = (two["seconds"], one["seconds"], one["tokens"]["used"], two["tokens"]["used"])
        rows[key[0]] = [a + b for a, b in zip(rows[key[0]], values, strict=True)]
    columns = list(zip(*rows.values(), strict=True))
    if not columns:
        return None
    seconds = st.product(columns[:2], [1, -1], len(both))
    tokens = st.product(columns, [1, -1, 1, -1], len(both))
    if seconds is None or tokens is None:
        return None
    ratios = (other[key]["seconds"] / mine[key]["seconds"] for key in both if mine[key]["seconds"] > 0)
    return Speed(base.name, seconds, tokens, st.geometric_mean(ratios))


def judged(record: Record) -> Iterable[tuple[int, bool, bool]]:
    """Steps of which a drafted version was compared or came too late: position, whether it was kept, whether late."""
    for n, step in enumerate(record["steps"]):
        verdicts = [v for v in step["verdicts"] if v is not None and not v["failed"]]
        if verdicts:
            yield n, step["source"] == "draft", any(v["by"] == "late" for v in verdicts)


def runs(record: Record) -> Iterable[tuple[int, bool]]:
    """Judged steps by how many were accepted just before, and whether this one was too."""
    accepted = {n: ok for n, ok, _ in judged(record)}
    before = 0
    for n in range(len(record["steps"])):
        if n in accepted:
            yield before, accepted[n]
        before = before + 1 if accepted.get(n) else 0


def _by(records: Sequence[Record], places: Callable[[Record], Iterable[tuple[int, bool]]]) -> list[Estimate]:
    """Acceptance by place; it ends where nothing was judged."""
    table: list[dict[Hashable, tuple[float, float]]] = [{} for _ in range(MAX_POSITIONS)]
    for record in records:
        for place, ok in places(record):
            if place < MAX_POSITIONS:
                good, tried = table[place].get(record["question_id"], (0.0, 0.0))
                table[place][record["question_id"]] = good + ok, tried + 1
    found = []
    for counts in table:
        estimate = st.share(counts)
        if estimate is None:
            break
        found.append(estimate)
    return found


def _counts(
    records: Iterable[Record], count: Callable[[Record], tuple[float, float]]
) -> dict[Hashable, tuple[float, float]]:
    sums: dict[Hashable, tuple[float, float]] = {}
    for record in records:
        good, tried = sums.get(record["question_id"], (0.0, 0.0))
        more = count(record)
        sums[record["question_id"]] = good + more[0], tried + more[1]
    return sums


def _per(records: Sequence[Record], of: Callable[[Record], tuple[float, float]]) -> Estimate | None:
    """A sum over another, both over all records."""
    counts = [pair for pair in _counts(records, of).values() if pair[0] or pair[1]]
    columns = list(zip(*counts, strict=True))
    return st.product(columns, [1, -1], len(records)) if columns else None


def differences(group: Group, base: Group) -> dict[Hashable, list[float]]:
    """By question, for each sample that both answered: 1 if only the group's answer is right, -1 if only the other."""
    mine, other = group.by_pair(), base.by_pair()
    found: dict[Hashable, list[float]] = defaultdict(list)
    for key, record in mine.items():
        if key in other and record["correct"] is not None and other[key]["correct"] is not None:
            found[key[0]].append(float(bool(record["correct"])) - float(bool(other[key]["correct"])))
    return found


def _spread(graded: Sequence[Record]) -> float | None:
    by_sample: dict[int, list[bool]] = defaultdict(list)
    for record in graded:
        by_sample[record["sample"]].append(bool(record["correct"]))
    shares = [sum(of) / len(of) for of in by_sample.values()]
    return float(np.std(shares, ddof=1)) if len(shares) > 1 else None


def _late(record: Record) -> int:
    return sum(any(v is not None and v["by"] == "late" for v in step["verdicts"]) for step in record["steps"])


def _times(record: Record, role: str) -> tuple[float, float]:
    whole = [branch["ended"] - branch["started"] for branch in finished([record], role)]
    return sum(whole), len(whole)


def _c1(records: Sequence[Record]) -> Estimate | None:
    """Mean draft step over mean target step."""
    draft, target = (_counts(records, lambda r, role=role: _times(r, role)) for role in ("draft", "target"))  # type: ignore[misc]
    rows = [(*draft[q], *target[q]) for q in draft if draft[q][1] and target[q][1]]
    samples = int(sum(row[1] for row in rows))
    return st.product(list(zip(*rows, strict=True)), [1, -1, -1, 1], samples) if rows else None


def _verdicts(record: Record) -> tuple[float, float]:
    seconds = [
        v["seconds"]
        for step in record["steps"]
        for v in step["verdicts"]
        if v is not None and not v["failed"] and v["by"] not in _UNASKED and v["seconds"] > 0
    ]
    return sum(seconds), len(seconds)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
