"""How each pocket model is trained. Budgets count real tokens (prompts included, padding not)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stretch of training at one depth; ``real`` asks for pairs sampled from the trained target
    and draft.
    """

    layers: int
    tokens: int
    real: bool = False


@dataclass(frozen=True)
class Recipe:
    """Stages in order; learning rates fall linearly over the last ``decay`` of all tokens.

    Attributes:
        base: the shipped model whose weights training begins with; set for models that
            learn something else besides.
        highest: the largest factor on the learning rates.
    """

    stages: tuple[Stage, ...]
    row: int
    rows: int
    easy_tokens: int = 0  # the first tokens come from problems of two and three operations
    decay: float = 0.4
    base: str = ""
    highest: float = 1.0

    @property
    def tokens(self) -> int:
        return sum(stage.tokens for stage in self.stages)

    def stage_at(self, tokens: int) -> int:
        """The number of the stage after ``tokens`` tokens; ``len(stages)`` when all are done."""
        end = 0
        for number, stage in enumerate(self.stages):
            end += stage.tokens
            if tokens < end:
                return number
        return len(self.stages)

    def rate(self, tokens: int, steps_in_stage: int, warmup: int = 40) -> float:
        """The factor on the learning rates."""
        left = 1 - tokens / self.tokens
        return (
            self.highest
            * min(1.0, (steps_in_stage + 1) / warmup)
            * max(0.01, min(1.0, left / self.decay))
        )


#: The target is trained shallow first, where a token is cheap, then deepened. The drafts are kept
#: weak on purpose.
RECIPES = {
    "target": Recipe(
        (Stage(8, 11_600_000), Stage(28, 800_000)), row=256, rows=16, easy_tokens=700_000
    ),
    "draft": Recipe((Stage(2, 2_250_000),), row=256, rows=16, easy_tokens=250_000),
    "draft-60": Recipe((Stage(2, 1_550_000),), row=256, rows=16, easy_tokens=250_000),
    "draft-40": Recipe((Stage(2, 830_000),), row=256, rows=16, easy_tokens=200_000),
    "judge": Recipe((Stage(4, 17_000_000), Stage(4, 4_000_000, real=True)), row=192, rows=21),
    "target-thinks": Recipe(
        (Stage(28, 800_000),), row=320, rows=6, decay=0.7, base="target", highest=0.3
    ),
    "draft-thinks": Recipe(
        (Stage(2, 400_000),), row=320, rows=6, decay=0.7, base="draft", highest=0.3
    ),
    "draft-words": Recipe(
        (Stage(2, 1_000_000),), row=256, rows=16, decay=0.7, base="draft", highest=0.6
    ),
    "target-words": Recipe(
        (Stage(8, 2_400_000),), row=256, rows=16, decay=0.7, base="target", highest=0.6
    ),
    "target-hybrid": Recipe(
        (Stage(8, 3_200_000),), row=256, rows=16, decay=0.7, base="target", highest=0.6
    ),
}
