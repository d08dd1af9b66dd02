"""The parameters of a simulation: the models' texts, and the times of requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulated.model import Model


@dataclass(frozen=True)
class Simulation:
    """Three simulated runtimes.

    Attributes:
        step_seconds: time of a target step of mean length without concurrent requests; the same for
            each token.
        c1: time of a draft's token over that of a target's token.
        judge_seconds: time of a verdict.
        slowdown: share by which each further concurrent request slows the others, on every runtime.
        slots: requests that each runtime serves at a time; None for no limit.
        prefill: time to score a drafted step over that of writing it.
    """

    model: Model = field(default_factory=Model)
    step_seconds: float = 0.2
    c1: float = 0.1
    judge_seconds: float = 0.04
    slowdown: float = 0.0
    slots: int | None = None
    prefill: float = 0.05

    def work(self, role: str, tokens: int, scored: int = 0) -> float:
        """Seconds to write ``tokens`` and to score ``scored`` tokens of the prompt, without
        concurrent requests.
        """
        if role == "judge":
            return self.judge_seconds
        seconds = self.step_seconds * (tokens + self.prefill * scored) / self.model.tokens
        return seconds * self.c1 if role == "draft" else seconds

    def slower(self, count: int) -> float:
        """The factor by which ``count`` concurrent requests take longer than one alone."""
        return 1 + self.slowdown * max(0, count - 1)

    @property
    def steady(self) -> bool:
        """Whether the durations of requests are independent of each other."""
        return not self.slowdown and self.slots is None
