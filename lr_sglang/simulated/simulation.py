"""The numbers of a simulation: what the models write, and how long everything takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lr_sglang.config_model import ConfigModel, need
from lr_sglang.simulated.model import Model


@dataclass(frozen=True)
class Simulation(ConfigModel):
    """Three simulated runtimes.

    Attributes:
        step_seconds: the target's, for a step of the average length, alone; its tokens take equal parts of it.
        c1: of that, what the draft takes for as many tokens.
        judge_seconds: of a verdict.
        slowdown: what each further request at once costs the others, on every runtime: 0.01 is one in a hundred.
        slots: requests that each runtime serves at a time; None is any number.
        prefill: of the time that writing a step takes, what reading one takes where nothing is to be written: what a
            drafted step costs that is only scored.
    """

    model: Model = field(default_factory=Model)
    step_seconds: float = 0.2
    c1: float = 0.1
    judge_seconds: float = 0.04
    slowdown: float = 0.0
    slots: int | None = None
    prefill: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        need(0 < self.step_seconds < math.inf, "step_seconds: must be more than 0")
        need(0 <= self.c1 < math.inf, "c1: must be 0 or more")
        need(0 <= self.judge_seconds < math.inf, "judge_seconds: must be 0 or more")
        need(0 <= self.slowdown < math.inf, "slowdown: must be 0 or more")
        need(self.slots is None or self.slots >= 1, "slots: must be at least 1")
        need(0 <= self.prefill < math.inf, "prefill: must be 0 or more")

    def work(self, role: str, tokens: int, scored: int = 0) -> float:
        """Seconds that a role alone takes to write ``tokens``, and to score ``scored`` tokens of the prompt."""
        if role == "judge":
            return self.judge_seconds
        seconds = self.step_seconds * (tokens + self.prefill * scored) / self.model.tokens
        return seconds * self.c1 if role == "draft" else seconds

    @property
    def steady(self) -> bool:
        """Whether no request's end depends on the others."""
        return not self.slowdown and self.slots is None
