"""What an answer came to: why it ended, what it is billed, and what lookahead did for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lr_sglang.serve.metrics import wasted
from lr_sglang.serve.order import Order
from lr_sglang.serve.text import Delivery
from lr_sglang.trace import Trace


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


def summarise(order: Order, trace: Trace, delivery: Delivery, disturbed: bool) -> Summary:
    """The end of an answer that went well.

    Args:
        disturbed: whether draft or judge was down meanwhile.
    """
    prompt, answer = trace.prompt_tokens, delivery.tokens
    counts = trace.tokens()
    return Summary(
        "stop" if delivery.stopped else trace.finish,
        {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "completion_tokens_details": {"reasoning_tokens": delivery.reasoning_tokens},
        },
        {
            "mode": order.mode.name,
            "degraded": order.mode.ahead and (disturbed or bool(trace.failures)),
            "steps": len(trace.steps),
            "alpha": trace.alpha,
            "drafted_tokens": counts["draft"]["generated"],
            "wasted_tokens": wasted(trace, answer),
            "cached_tokens": sum(counts[role]["cached"] for role in ("target", "draft", "judge")),
            "seconds": round(trace.seconds, 4),
        },
    )
