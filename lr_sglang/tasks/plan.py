"""Which samples a run consists of, and in which order they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lr_sglang.tasks import Question


@dataclass(frozen=True)
class Work:
    """One sample to make."""

    question: Question
    sample: int
    mode: str

    @property
    def key(self) -> tuple[str, int, str]:
        """As ``results.record.key``."""
        return self.question.id, self.sample, self.mode


def plan(questions: Sequence[Question], modes: Sequence[str], samples: int = 1) -> list[Work]:
    """Modes side by side, question by question, so that what disturbs the machine disturbs all modes alike."""
    return [Work(question, sample, mode) for question in questions for sample in range(samples) for mode in modes]
