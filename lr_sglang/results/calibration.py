"""Calibration from the verdicts in records: thresholds for a cascade, and a curve for the draft's
confidence.

Thresholds need a run with ``--verifier cascade:likelihood,judge``, which asks both about every
pair; the verdict of the last stage is the reference. The curve needs a run with ``--gate``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lr_sglang.algorithm import policy
from lr_sglang.errors import RecordError
from lr_sglang.results.record import Record
from lr_sglang.theory.shares import wilson
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.verifier_registry import Stage

LEAST = 20  # a threshold needs as many pairs on its side
_DECIDED_WITHOUT = ("guard", "ending", "special", "late", "draft", "certain")

Truth = Callable[[str, str], bool]  # of the target's and the drafted version


@dataclass(frozen=True)
class Sample:
    """One pair: the stages' scores in order (None for a stage that gave none), and whether the
    versions agree.
    """

    scores: tuple[float | None, ...]
    agree: bool


@dataclass(frozen=True)
class Confidence:
    """How well the draft's confidence in a step predicts its acceptance.

    Attributes:
        accepted: number of acceptances among the curve's verdicts.
        auc: the chance that an accepted step had more confidence than a rejected one; 0.5 predicts
            nothing, None if all steps were accepted or all rejected.
    """

    curve: policy.Calibration
    accepted: int
    auc: float | None

    def to_dict(self) -> dict[str, Any]:
        """The table that ``--calibration`` reads."""
        return {**dataclasses.asdict(self.curve), "accepted": self.accepted, "auc": self.auc}


def confidence(records: Iterable[Record]) -> Confidence | None:
    """The gate's calibration; None where records have too few verdicts on drafts with a
    confidence.
    """
    pairs = list(policy.pairs_of(records))
    if len(pairs) < LEAST:
        return None
    from scipy.stats import mannwhitneyu

    yes, no = ([sure for sure, agreed in pairs if agreed is kind] for kind in (True, False))
    auc = float(mannwhitneyu(yes, no).statistic / (len(yes) * len(no))) if yes and no else None
    return Confidence(policy.Calibration.fit(pairs), len(yes), auc)


@dataclass(frozen=True)
class Calibration:
    """Thresholds for every stage but the last.

    Attributes:
        stages: of each ``verifier``, ``reject_below``, ``accept_above``, and their effect on the
            ``pairs`` that reached it: how many it accepts and rejects, how many of these rightly,
            with the 95 % interval of that share, and how many it leaves to the next stage.
    """

    precision: float
    last: str
    stages: tuple[dict[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The table that ``--verifier cascade:FILE.json`` reads."""
        return {"stages": list(self.stages), "last": self.last, "precision": self.precision}


def calibrate(
    records: Sequence[Record], precision: float, truth: Truth | None = None
) -> Calibration:
    """Chooses each stage's thresholds so that it decides as many pairs as possible with the wanted
    precision.

    Args:
        records: of one cascade that measured all its stages.
        precision: share of the pairs that a stage accepts alone (and of those that it rejects) that
            must be right.
        truth: whether two versions agree; None: the verdict of the last stage.

    Raises:
        RecordError: the records hold no such run, or several.
    """
    names, samples = read(records, truth)
    fitted = []
    for number, name in enumerate(names[:-1]):
        known = [(score, one.agree) for one in samples if (score := one.scores[number]) is not None]
        stage = Stage(name, *thresholds(known, precision))
        decided = [(stage.decides(score), agree) for score, agree in known]
        row = {**dataclasses.asdict(stage), "pairs": len(samples)}
        for what, verdict in (("accepted", True), ("rejected", False)):
            right = [agree is verdict for said, agree in decided if said is verdict]
            row |= {
                what: len(right),
                f"{what}_rightly": sum(right),
                f"{what}_interval": wilson(sum(right), len(right)),
            }
        samples = [one for one in samples if stage.decides(one.scores[number]) is None]
        fitted.append({**row, "unsure": len(samples)})
    return Calibration(precision, names[-1], tuple(fitted))


def thresholds(
    scored: Sequence[tuple[float, bool]], precision: float
) -> tuple[float | None, float | None]:
    """``reject_below`` and ``accept_above``; None if no threshold with enough pairs reaches the
    precision.
    """
    accept = _furthest(scored, precision)
    reject = _furthest([(-score, not agree) for score, agree in scored], precision)
    if reject is not None:  # scores from the next one on are not rejected
        reject = min(
            (score for score, _ in scored if score > -reject),
            default=math.nextafter(-reject, math.inf),
        )
    if reject is None or accept is None:
        return reject, accept
    return min(reject, accept), accept


def _furthest(scored: Iterable[tuple[float, bool]], precision: float) -> float | None:
    """The lowest score from which on upwards the share of right pairs is high enough.

    It is the score of a right pair: a lower threshold, as far as the precision allows one, would
    add wrong pairs only.
    """
    right, number, found = 0, 0, None
    for score, tied in groupby(sorted(scored, key=lambda one: -one[0]), key=lambda one: one[0]):
        goods = [good for _, good in tied]
        right, number = right + sum(goods), number + len(goods)
        if any(goods) and number >= LEAST and right / number >= precision:
            found = score
    return found


def has_cascade(records: Iterable[Record]) -> bool:
    """Whether any of the records is of a cascade."""
    return any(map(_cascade, records))


def _cascade(record: Record) -> str:
    verifier = str((record["config"].get("lookahead") or {}).get("verifier", ""))
    return verifier if verifier.startswith("cascade:") else ""


def read(records: Iterable[Record], truth: Truth | None = None) -> tuple[list[str], list[Sample]]:
    """The names of the stages and every pair that all of them were asked about."""
    cascades: set[str] = set()
    samples = []
    for record in records:
        if not (cascade := _cascade(record)):
            continue
        cascades.add(cascade)
        for step in record["steps"]:
            for text, verdict in zip(step["draft_texts"], step["verdicts"], strict=True):
                if verdict is None or verdict["failed"] or verdict["by"] in _DECIDED_WITHOUT:
                    continue
                agree = verdict["accepted"] if truth is None else truth(step["target_text"], text)
                samples.append(
                    Sample(tuple(one["score"] for one in verdict.get("earlier", ())), agree)
                )
    if len(cascades) != 1:
        said = f"of {len(cascades)} different cascades" if cascades else "of no cascade"
        hint = (
            "make them with --verifier cascade:likelihood,judge, or another list of stages; "
            "or with --gate"
        )
        raise RecordError(f"the records are {said}", hint=hint)
    names = [stage.verifier for stage in verifier_registry.stages(cascades.pop().partition(":")[2])]
    whole = [sample for sample in samples if len(sample.scores) == len(names) - 1]
    if not whole:
        raise RecordError(
            "the records have no pair that every stage was asked about",
            hint="--verifier cascade:A,B",
        )
    return names, whole
