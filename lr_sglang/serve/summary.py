"""What an answer came to: why it ended, what it is billed, and what lookahead did for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lr_sglang.steps.trace import Trace


@dataclass(frozen=True)
class Costs:
    """Tokens of an answer, in all its branches.

    Attributes:
        drafted: that the draft wrote; ``wasted`` of both writers are not in what the client got.
        cached: of prompts, that no runtime had to compute again.
    """

    drafted: int
    wasted: int
    cached: int

    @classmethod
    def of(cls, trace: Trace, delivered: int) -> Costs:
        """Counted over all branches, which takes a while: not for the event loop."""
        counts = trace.tokens()
        cached = sum(counts[role]["cached"] for role in ("target", "draft", "judge"))
        return cls(counts["draft"]["generated"], max(0, counts["generated"] - delivered), cached)


@dataclass(frozen=True)
class Summary:
    """The end of an answer.

    Attributes:
        finish: ``stop`` or ``length``.
        usage: in OpenAI's form; counts only what was delivered.
        lookahead: the extension.
    """

    finish: str
    usage: dict[str, Any]
    lookahead: dict[str, Any]


def usage(prompt: int, answer: int, reasoning: int) -> dict[str, Any]:
    """In OpenAI's form."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def extension(mode: str, trace: Trace, costs: Costs, degraded: bool) -> dict[str, Any]:
    """What stands beside the usage."""
    return {
        "mode": mode,
        "degraded": degraded,
        "steps": len(trace.steps),
        "alpha": trace.alpha,
        "drafted_tokens": costs.drafted,
        "wasted_tokens": costs.wasted,
        "cached_tokens": costs.cached,
        "seconds": round(trace.seconds, 4),
    }
