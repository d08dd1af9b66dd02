"""The paper's settings (section 4) as presets: tasks, samples, lengths and sampling of its Table 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """What a table of the paper was measured with.

    Attributes:
        samples: of each question; ``fewer`` has the tasks with another number.
        options: as the command line has them.
        most_tokens: of an answer, by what stands in the target's name; the first that does counts.
        deployments: the paper's pairs, as they come with the package.
    """

    tasks: tuple[str, ...]
    modes: tuple[str, ...]
    samples: int
    fewer: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    most_tokens: tuple[tuple[str, int], ...] = ()
    deployments: tuple[str, ...] = ()

    def max_tokens(self, target: str) -> int:
        """Tokens of an answer, for a target of that name."""
        return next(tokens for name, tokens in self.most_tokens if name in target.lower())


PRESETS = {
    "table1": Preset(
        tasks=("aime24", "amc23", "gsm8k", "humaneval", "gpqa-diamond", "mt-bench", "livecodebench"),
        modes=("autoregressive", "lookahead", "sd", "lookahead+sd"),
        samples=16,
        fewer={"livecodebench": 8},
        # Qwen3's top_k of 20 and min_p of 0 come from its family (cli/settings.py).
        options={"temperature": 0.6, "top_p": 0.95, "max_step_tokens": 100, "depth": 6, "schedule": "async"},
        most_tokens=(("qwen3", 37 * 1024), ("", 32 * 1024)),
        deployments=("deepseek-4gpu", "qwen3-4gpu"),
    )
}
