"""Statistics shared by the answers of a run: acceptance of drafts, durations, load of
the runtimes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lr_sglang.algorithm.policy.confidence import Calibration, Sample
from lr_sglang.algorithm.policy.forecast import (
    Conditions,
    StepTimes,
    TreeShape,
    forecast,
    rounded,
)
from lr_sglang.algorithm.policy.load import Load
from lr_sglang.algorithm.policy.read_statistics import MEAN_MEMORY, Mean, ReadStatistics
from lr_sglang.algorithm.policy.turns import (
    HELPED,
    MEASURED,
    UNSURE_FED,
    UNSURE_READ,
    Forecast,
    Pace,
    Turns,
    Way,
)
from lr_sglang.config import Schedule
from lr_sglang.steps.step import NOT_COMPARED
from lr_sglang.steps.tree import Node
from lr_sglang.theory import reading

# Weight of the prior acceptance rate of 1/2, in verdicts.
PRIOR_WEIGHT = 2.0
# Tokens of a step, and c1, that are assumed before the first step.
TYPICAL_TOKENS = 20.0
TYPICAL_C1 = 0.1
# Further versions of a step have the acceptance rate of the first as their prior, with the weight
# of 16 verdicts: a low prior would never be corrected, because versions that are not drafted are
# not measured.
SECOND_WEIGHT = 16.0
# The acceptance rate of all answers is the prior of one answer's own rate, with the weight of 16
# verdicts.
COMMON_WEIGHT = 16.0
# Of several answers a read waits for half of a pass of others in the mean, and takes all that wait
# with it, with their tokens.
READS_WAIT = 1.5
_REFIT = 16  # new verdicts between two fits of the calibration


@dataclass
class RunStatistics:
    """Shared by the answers of a run.

    Attributes:
        answers: number of concurrent answers.
        first: acceptance of the first draft of a step; ``others``: of further drafts where the
            first was rejected.
        verdict: mean seconds of a verdict; ``tokens``: mean tokens of a step.
        step: mean seconds of a step of the target; measured with a gate only.
        calibration: of the draft's confidence.
        probes: steps that were drafted only to learn from them; ``explorer`` is the answer that
            drafts the first ones.
        since: steps from the last of them to the end of the answer that ended last.
        measured: whether the costs of requests were measured at start, or are being measured.
        reads: what reading drafted tokens has given.
        writing: the way in which each answer is written, as of the target's last request for it.
        layered: whether the target has a token layer.
        fed: number of concurrent requests of the target that are fed; ``fed_tokens``: drafted
            tokens that such a request verifies in a pass, 0 where none can be fed.
    """

    answers: int = 0
    first: Mean = field(default_factory=Mean)
    others: Mean = field(default_factory=Mean)
    verdict: Mean = field(default_factory=Mean)
    tokens: Mean = field(default_factory=Mean)
    step: Mean = field(default_factory=Mean)
    calibration: Calibration = field(default_factory=Calibration)
    probes: int = 0
    explorer: object = None
    since: int = 0
    measured: bool = False
    reads: ReadStatistics = field(default_factory=ReadStatistics)
    writing: dict[object, Way] = field(default_factory=dict)
    layered: bool = False
    fed: int = 0
    fed_tokens: int = 0
    _loads: dict[str, Load] = field(default_factory=dict)
    _turns: dict[int, Turns] = field(default_factory=dict)
    _feeding: dict[int, tuple[Turns, Pace]] = field(default_factory=dict)
    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MEAN_MEMORY))
    _new: int = 0

    def load(self, role: str) -> Load:
        """The load of the runtime that plays a role."""
        return self._loads.setdefault(role, Load())

    def turns(self, answers: int) -> Turns:
        """The turns for this number of concurrent answers; 1, 2, 3 to 4, 5 to 8 and so on have one
        object each: where one of eight ends, the others go on as before.
        """
        of = _range(answers)
        if of not in self._turns:
            known = [one for one in self._turns if self._turns[one].paces]
            nearest = min(known, key=lambda one: abs(one - of), default=None)
            self._turns[of] = Turns(nearest=None if nearest is None else self._turns[nearest])
        return self._turns[of]

    def feeding(self) -> tuple[Turns, Pace]:
        """The turns of feeding the target and leaving it alone, and its passes per second while it
        is fed, for the number of requests that are fed now.
        """
        return self._feeding.setdefault(_range(self.fed), (Turns(), Pace()))

    def written_otherwise(self, way: Way) -> bool:
        """Whether any answer is written in another way."""
        return any(one != way for one in self.writing.values())

    def alpha(self, accepted: int = 0, judged: int = 0) -> float:
        """Expected acceptance of a step's first draft, in an answer that has accepted so many of
        those judged.
        """
        common = self.first.given(0.5, PRIOR_WEIGHT)
        return (accepted + COMMON_WEIGHT * common) / (judged + COMMON_WEIGHT)

    def conditions(self, schedule: Schedule, alpha: float) -> Conditions | None:
        """What a forecast needs, rounded so that small changes alter no choice; None before the
        first measurement.

        Args:
            alpha: expected acceptance of a step's first draft.
        """
        tokens = max(1.0, self.tokens.value or TYPICAL_TOKENS)
        target, draft = (self.load(role).runtime(tokens) for role in ("target", "draft"))
        if target and not draft and self.load("target").costs:
            draft = StepTimes(0.0, TYPICAL_C1 * target.alone(1))
        if not target or not draft:
            return None
        others = round(self.others.given(alpha, SECOND_WEIGHT), 2)
        judge = rounded(self.verdict.value)
        return Conditions(schedule, round(alpha, 2), others, target, draft, judge, self.answers)

    def learn(self, node: Node) -> bool | None:
        """Learns from the verdicts on the step after ``node``, which is decided. Returns whether
        its first drafted version was accepted, which a late one was not; None if that was not
        compared for another reason.
        """
        verdicts = [c.verdict for c in node.children]
        if node.chosen is not None and node.chosen.step is not None:
            self.tokens.add(len(node.chosen.step.ids))
        for child, verdict in zip(node.children, verdicts, strict=True):
            if verdict is None or verdict.failed or verdict.by in NOT_COMPARED:
                continue
            self.verdict.add(verdict.seconds)
            if child.confidence is not None:
                self._learn(child.confidence, verdict.accepted)
        compared = [
            v
            for v in verdicts
            if v is not None and not v.failed and (v.by == "late" or v.by not in NOT_COMPARED)
        ]
        if not compared or verdicts[0] is not compared[0]:
            return None
        self.first.add(compared[0].accepted)
        for verdict in compared[1:] if not compared[0].accepted else ():
            self.others.add(verdict.accepted)
        return compared[0].accepted

    def forecasts(self, conditions: Conditions, written: TreeShape) -> dict[Way, Forecast | None]:
        """What is expected of each way that can be used, in tokens per second of one answer.

        Args:
            written: the fastest depth and width under these conditions.
        """
        tokens = max(1.0, self.tokens.value or TYPICAL_TOKENS)
        alone = self._forecast_alone()
        gain = self.reads.foreseen_gain(self.read_times())
        found: dict[Way, Forecast | None] = {
            "alone": alone,
            "written": Forecast(written.steps_per_second * tokens),
        }
        if self.reads.can_read:
            sooner = conditions.target.sooner(gain)
            read = forecast(replace(conditions, target=sooner), written.depth, written.width)
            found["read"] = Forecast(read * tokens, UNSURE_READ)
        if alone is not None and self.fed_tokens:
            drafted = self.load("draft").seconds_per_token(self.answers)
            in_a_pass = self.token_seconds() / drafted if drafted else math.inf
            verified = min(self.fed_tokens, in_a_pass)
            speedup = reading.fed_speedup(self.reads.agreed_share(), verified)
            found["fed"] = Forecast(alone.pace * speedup, UNSURE_FED)
        elif alone is not None and self.reads.can_read and not self.layered:
            found["portions"] = Forecast(alone.pace * gain)
        return found

    def helped(self, forecasts: Mapping[Way, Forecast | None]) -> Way | None:
        """The way in which the target has the draft's help, where that is expected to be faster
        than the target alone.
        """
        alone = forecasts["alone"]
        for way, one in forecasts.items():
            if way in HELPED and one is not None and alone is not None and one.pace > alone.pace:
                return way
        return None

    def _forecast_alone(self) -> Forecast | None:
        """Of the target alone: as requests were measured at start. None where its server has a
        token layer, which accepts none of their random tokens: it is tried first.
        """
        if self.layered and not self.fed_tokens:
            return None
        if measured := self.measured_pace():
            return Forecast(measured, MEASURED)
        target = self.load("target")
        return Forecast(1 / target.seconds_per_token(self.answers)) if target.known else None

    def read_times(self) -> reading.ReadTimes:
        """What a read of the target takes, and a drafted token, in tokens of the target alone, with
        as many answers as there are now; typical ones before requests were measured.
        """
        draft = self.load("draft")
        costs = self.load("target").costs
        answers = max(1, self.answers)
        if not costs or not costs.prefill:
            return reading.TYPICAL_TIMES
        token = self.token_seconds()
        waits = READS_WAIT if answers > 1 else 1.0
        drafted = draft.seconds_per_token(answers) if draft.known else TYPICAL_C1 * costs.token
        rows = answers * costs.reading
        return reading.ReadTimes(waits * costs.prefill / token, (drafted + rows) / token)

    def token_seconds(self) -> float:
        """Seconds of a token that the target writes alone, with as many answers as there are now:
        as requests were measured at start and turns were since; before both, of its branches.
        """
        known = self._forecast_alone()
        if (turns := self._turns.get(_range(self.answers))) is not None:
            known = turns.estimate("alone", known)
        return 1 / known.pace if known else self.load("target").seconds_per_token(self.answers)

    def measured_pace(self) -> float:
        """Tokens per second of one answer beside as many as there are now, as requests that were
        measured at start took, each a pass for a token; 0 if none were.
        """
        costs = self.load("target").costs
        others = max(0, self.answers - 1)
        return 1 / (costs.token * (1 + costs.slowdown * others)) if costs else 0.0

    def _learn(self, confidence: float, accepted: bool) -> None:
        self._samples.append((confidence, accepted))
        self._new += 1
        if self._new >= min(_REFIT, len(self._samples)):
            self.calibration = Calibration.fit(self._samples)
            self._new = 0


def _range(number: int) -> int:
    """Of 1, 2, 3 to 4, 5 to 8 and so on, the one that a number is in."""
    return max(0, number - 1).bit_length()
