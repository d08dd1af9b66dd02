"""A request's prompt, before it takes anybody's place: rendered, counted, and refused if it cannot be answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

from lr_sglang.backend import RuntimeBackend
from lr_sglang.delivery import THINK
from lr_sglang.serve.errors import Refusal
from lr_sglang.serve.order import Order
from lr_sglang.serve.settings import Service
from lr_sglang.tokens import TokenText


@dataclass(frozen=True)
class Prompt:
    """What the program is given.

    Attributes:
        asked: the conversation, or a raw prompt that knows its tokens.
        thinks: whether the prompt has opened the reasoning.
    """

    asked: Any
    tokens: int
    thinks: bool
    decode: Callable[[Sequence[int]], str]


def prepare(order: Order, target: RuntimeBackend, service: Service) -> Prompt:
    """Renders the prompt. Takes a while for a long one: not for the event loop.

    Raises:
        Refusal: it is too long, or the model's template has no place for such a conversation.
    """
    known = target.tokenizer
    try:
        text = (
            TokenText.of(order.asked, known.encode(order.asked), known.vocabulary)
            if isinstance(order.asked, str)
            else known.chat(order.asked, True)
        )
    except (TemplateError, StopIteration, ValueError, TypeError) as error:
        # StopIteration: a text with every private-use character in it leaves no mark to break special tokens with
        raise Refusal(400, "The model's chat template refuses this conversation", param="messages") from error
    tokens = sum(len(piece.ids or ()) for piece in text.pieces)
    context = target.context if service.limits.max_total_tokens is None else service.limits.max_total_tokens
    most = min(n for n in (service.max_prompt_tokens, min(target.context, context) - 1) if n is not None)
    if tokens > most:
        param = "messages" if order.chat else "prompt"
        message = f"The prompt has {tokens} tokens; at most {most} are allowed"
        raise Refusal(400, message, param=param, code="context_length_exceeded")
    asked = text if isinstance(order.asked, str) else order.asked
    return Prompt(asked, tokens, order.chat and text.rstrip().endswith(THINK), known.decode)
