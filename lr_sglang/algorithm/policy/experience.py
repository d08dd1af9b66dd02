"""What the answers of a run learn together: which drafts agree, how long everything takes, how busy runtimes are."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from lr_sglang.algorithm.policy.confidence import NO_COMPARISON, Calibration, Sample
from lr_sglang.algorithm.policy.load import Load
from lr_sglang.steps.tree import Node

# Verdicts that count; older ones fade.
MEMORY = 400
# Before anything is known: so many verdicts, half of them accepted.
PRIOR = 2.0
# Further versions of a step are taken to be as good as the first until so many verdicts on them say otherwise: what is
# not tried is not learnt of either.
SECOND = 16.0
# What all answers have seen counts in one answer as so many verdicts of its own.
COMMON = 16.0
_REFIT = 16  # new verdicts until the calibration is made again
# Verdicts of its own until a run goes by them instead of by the calibration that it began with.
_OWN = 100


@dataclass
class Share:
    """Accepted of judged, the recent ones most."""

    accepted: float = 0.0
    judged: float = 0.0

    def add(self, accepted: bool) -> None:
        """One more verdict."""
        fade = 1 - 1 / MEMORY
        self.accepted, self.judged = self.accepted * fade + accepted, self.judged * fade + 1

    def rate(self, prior: float, trust: float) -> float:
        """With a prior that counts as so many verdicts."""
        return (self.accepted + trust * prior) / (self.judged + trust)


@dataclass
class Mean:
    """Of values, the recent ones most."""

    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.weight = self.weight * (1 - 1 / MEMORY) + 1
        self.value += (value - self.value) / self.weight


@dataclass
class RunStatistics:
    """Shared by the answers of a run.

    Attributes:
        answers: that are being written now.
        first: acceptance of the first draft of a step; ``others`` of further ones where the first was refused.
        verdict: seconds of a verdict; ``tokens`` of a step.
        calibration: of the draft's confidence; an earlier run's may be given.
    """

    answers: int = 0
    first: Share = field(default_factory=Share)
    others: Share = field(default_factory=Share)
    verdict: Mean = field(default_factory=Mean)
    tokens: Mean = field(default_factory=Mean)
    calibration: Calibration = field(default_factory=Calibration)
    _loads: dict[str, Load] = field(default_factory=dict)
    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MEMORY))
    _new: int = 0
    _least: int = 0

    def __post_init__(self) -> None:
        self._least = _OWN if self.calibration.samples else 0

    def load(self, role: str) -> Load:
        """Of the runtime that plays a role."""
        return self._loads.setdefault(role, Load())

    def alpha(self, own: Share) -> float:
        """Acceptance of a step's first draft in an answer with these verdicts of its own."""
        return own.rate(self.first.rate(0.5, PRIOR), COMMON)

    def decided(self, node: Node, own: Share) -> None:
        """The step after ``node`` is decided: what its verdicts say."""
        verdicts = [c.verdict for c in node.children]
        if node.chosen is not None and node.chosen.step is not None:
            self.tokens.add(len(node.chosen.step.ids))
        for child, verdict in zip(node.children, verdicts, strict=True):
            if verdict is None or verdict.failed or verdict.by in NO_COMPARISON:
                continue
            self.verdict.add(verdict.seconds)
            if child.confidence is not None:
                self._learn(child.confidence, verdict.accepted)
        compared = [v for v in verdicts if v is not None and not v.failed and v.by != "guard"]
        if compared and verdicts[0] is compared[0]:
            own.add(compared[0].accepted)
            self.first.add(compared[0].accepted)
            if not compared[0].accepted:
                for verdict in compared[1:]:
                    self.others.add(verdict.accepted)

    def _learn(self, confidence: float, accepted: bool) -> None:
        self._samples.append((confidence, accepted))
        self._new += 1
        if self._new >= min(_REFIT, len(self._samples)) and len(self._samples) >= self._least:
            self.calibration, self._new = Calibration.fit(self._samples), 0
