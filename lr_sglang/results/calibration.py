"""What verdicts in records teach: when a cheap verifier may decide alone, and what the draft's confidence is worth.

Thresholds for a cascade come from records that have its scores and a reference: a run with
``--verifier cascade:likelihood,judge`` asks both about every pair, and the last one's verdict is the reference. A run
with ``--gate`` has the confidences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.algorithm import policy
from lr_sglang.errors import RecordError
from lr_sglang.results.record import Record
from lr_sglang.theory.shares import wilson
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.verifier_registry import Stage

LEAST = 20  # pairs on one side of a threshold, below which it is not believed
_DECIDED_WITHOUT = ("guard", "ending", "special", "late", "draft", "certain")

Truth = Callable[[str, str], bool]  # of the target's and the drafted version


@dataclass(frozen=True)
class Sample:
    """One pair: the scores of the stages, in order (None where one gave none), and whether the versions agree."""

    scores: tuple[float | None, ...]
    agree: bool


@dataclass(frozen=True)
class Fitted:
    """A stage with its thresholds, and what it would have done to the pairs that reached it.

    Attributes:
        pairs: how many reached it.
        accepted, rejected: how many it decides.
        right_accepted, right_rejected: how many of those rightly.
    """

    stage: Stage
    pairs: int
    accepted: int
    right_accepted: int
    rejected: int
    right_rejected: int

    def to_dict(self) -> dict[str, Any]:
        """For a table, and for the file that ``--verifier cascade:FILE.json`` reads."""
        return {
            "verifier": self.stage.verifier,
            "reject_below": self.stage.reject_below,
            "accept_above": self.stage.accept_above,
            "pairs": self.pairs,
            "accepted": self.accepted,
            "accepted_rightly": self.right_accepted,
            "accepted_interval": wilson(self.right_accepted, self.accepted),
            "rejected": self.rejected,
            "rejected_rightly": self.right_rejected,
            "rejected_interval": wilson(self.right_rejected, self.rejected),
            "unsure": self.pairs - self.accepted - self.rejected,
        }


@dataclass(frozen=True)
class Confidence:
    """What the draft's confidence in a step is worth.

    Attributes:
        accepted: how many of the curve's verdicts were acceptances.
        auc: the chance that of an accepted and a refused step the accepted one had more confidence; 0.5 says nothing,
            None where there is only one kind.
    """

    curve: policy.Calibration
    accepted: int
    auc: float | None

    def to_dict(self) -> dict[str, Any]:
        """As in the file, which ``--calibration`` reads."""
        return {**dataclasses.asdict(self.curve), "accepted": self.accepted, "auc": self.auc}


def confidence(records: Iterable[Record]) -> Confidence | None:
    """The gate's calibration; None where records have too few verdicts on drafts with a confidence."""
    pairs = list(policy.pairs_of(records))
    if len(pairs) < LEAST:
        return None
    from scipy.stats import rankdata

    accepted = sum(agreed for _, agreed in pairs)
    refused, auc = len(pairs) - accepted, None
    if accepted and refused:
        ranks = rankdata([sure for sure, _ in pairs])
        above = sum(rank for rank, (_, agreed) in zip(ranks, pairs, strict=True) if agreed)
        auc = float((above - accepted * (accepted + 1) / 2) / (accepted * refused))
    return Confidence(policy.Calibration.fit(pairs), accepted, auc)


@dataclass(frozen=True)
class Calibration:
    """Thresholds for every stage but the last."""

    precision: float
    last: str
    stages: tuple[Fitted, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """As in the file."""
        stages = [stage.to_dict() for stage in self.stages]
        return {"stages": stages, "last": self.last, "precision": self.precision}


def calibrate(records: Sequence[Record], precision: float, truth: Truth | None = None) -> Calibration:
    """Chooses each stage's thresholds so that it decides as many pairs as it can with that precision.

    Args:
        records: of one cascade that measured all its stages.
        precision: share of the pairs that a stage accepts alone (and of those that it rejects) that must be right.
        truth: whether two versions agree; None is what the last stage said.

    Raises:
        RecordError: the records hold no such run, or several.
    """
    names, samples = read(records, truth)
    fitted = []
    for number, name in enumerate(names[:-1]):
        scored = [(sample.scores[number], sample.agree) for sample in samples]
        known = [(score, agree) for score, agree in scored if score is not None]
        stage = Stage(name, *thresholds(known, precision))
        above = [a for s, a in known if stage.accept_above is not None and s >= stage.accept_above]
        below = [a for s, a in known if stage.reject_below is not None and s < stage.reject_below]
        fitted.append(Fitted(stage, len(samples), len(above), sum(above), len(below), len(below) - sum(below)))
        samples = [sample for sample in samples if stage.decides(sample.scores[number]) is None]
    return Calibration(precision, names[-1], tuple(fitted))


def thresholds(scored: Sequence[tuple[float, bool]], precision: float) -> tuple[float | None, float | None]:
    """``reject_below`` and ``accept_above``; None where no threshold is that precise with enough pairs beyond it."""
    accept = _furthest(sorted(scored, key=lambda one: -one[0]), precision)
    reject = _furthest(sorted(((-score, not agree) for score, agree in scored), key=lambda one: -one[0]), precision)
    if reject is not None:  # from the next score on it is not rejected any more
        reject = min((score for score, _ in scored if score > -reject), default=math.nextafter(-reject, math.inf))
    if reject is None or accept is None:
        return reject, accept
    return min(reject, accept), accept


def _furthest(scored: Sequence[tuple[float, bool]], precision: float) -> float | None:
    """The lowest score (they come from the highest down) at and above which the share of the right is high enough.

    It is the score of a right one: a threshold is not lowered only to let wrong ones in as long as that can be borne.
    """
    right, some, found = 0, False, None
    for number, (score, good) in enumerate(scored, start=1):
        right, some = right + good, some or good
        tied = number < len(scored) and scored[number][0] == score
        if tied:
            continue
        if some and number >= LEAST and right / number >= precision:
            found = score
        some = False
    return found


def has_cascade(records: Iterable[Record]) -> bool:
    """Whether any of the records is of a cascade."""
    return any(_cascade(record) for record in records)


def _cascade(record: Record) -> str:
    verifier = str((record["config"].get("lookahead") or {}).get("verifier", ""))
    return verifier if verifier.startswith("cascade:") else ""


def read(records: Iterable[Record], truth: Truth | None = None) -> tuple[list[str], list[Sample]]:
    """The names of the stages and every pair that all of them were asked about.

    Raises:
        RecordError: as ``calibrate``.
    """
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
                samples.append(Sample(tuple(one["score"] for one in verdict.get("earlier", ())), agree))
    if len(cascades) != 1:
        said = f"of {len(cascades)} different cascades" if cascades else "of no cascade"
        hint = "make them with --verifier cascade:likelihood,judge, or another list of stages; or with --gate"
        raise RecordError(f"the records are {said}", hint=hint)
    names = [stage.verifier for stage in verifier_registry.stages(cascades.pop().partition(":")[2])]
    whole = [sample for sample in samples if len(sample.scores) == len(names) - 1]
    if not whole:
        raise RecordError("the records have no pair that every stage was asked about", hint="--verifier cascade:A,B")
    return names, whole
