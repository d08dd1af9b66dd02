"""A request's prompt, before admission: rendered, counted, and refused if it cannot be answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.stream_text import THINK
from lr_sglang.serve.errors import Refusal, refusal
from lr_sglang.serve.request_options import RequestOptions
from lr_sglang.serve.settings import Service
from lr_sglang.steps.step import THINK_END
from lr_sglang.steps.token_text import TokenText

LONG = 2**13  # characters
SLICE = 2**14  # characters that are tokenised at once
SEAM = 16  # the most tokens that a cut through a text adds


@dataclass(frozen=True)
class Prompt:
    """A request's rendered prompt.

    Attributes:
        asked: the conversation, or a raw prompt with its token ids.
        thinks: whether the prompt ends inside of ``<think>``.
    """

    asked: Any
    tokens: int
    thinks: bool
    decode: Callable[[Sequence[int]], str]


def prepare(options: RequestOptions, target: RuntimeBackend, service: Service) -> Prompt:
    """Renders the prompt. Slow for a long one, so it runs in a thread.

    Raises:
        Refusal: it is too long, or the model's template has no place for such a conversation.
    """
    known, param, concluding = (
        target.tokenizer,
        "messages" if options.chat else "prompt",
        options.conclusion,
    )
    limits = (target.context, service.limits.max_total_tokens)
    most = (
        min(limit for limit in limits if limit is not None) - 1
    )  # the context also holds a token of the answer
    most = most if service.max_prompt_tokens is None else min(most, service.max_prompt_tokens)

    def check(tokens: int, least: str = "") -> None:
        if tokens > most:
            raise refusal(
                "context_length_exceeded", param=param, tokens=f"{least}{tokens}", most=most
            )

    said = (
        [options.asked]
        if isinstance(options.asked, str)
        else [message["content"] for message in options.asked]
    )
    said.append(options.prefix)
    try:
        if sum(map(len, said)) > LONG:  # checked before rendering, which caches what it renders
            check(_least(said, known, most), "at least ")
        if concluding is not None:
            text = concluding.prompt
        elif isinstance(options.asked, str):
            text = TokenText.of(options.asked, known.encode(options.asked), known.vocabulary)
        else:
            text = known.chat(options.asked, True)
        opened = options.chat and text.rstrip().endswith(THINK)
        if options.prefix:
            text += TokenText.of(
                options.prefix, known.encode(options.prefix, True), known.vocabulary
            )
    except (TemplateError, StopIteration, ValueError, TypeError) as error:
        # StopIteration: a text with every private-use character in it leaves no mark to break
        # special tokens with
        raise Refusal(
            400, "The model's chat template refuses this conversation", param=param
        ) from error
    tokens = sum(len(piece.ids or ()) for piece in text.pieces)
    check(tokens)
    asked = options.asked if options.chat and not options.prefix and concluding is None else text
    begun = THINK * opened + options.prefix
    # in some models special tokens mark calls of tools
    decode = known.spell if concluding is not None and concluding.tools else known.decode
    return Prompt(asked, tokens, begun.rfind(THINK) > begun.rfind(THINK_END), decode)


def _least(texts: Sequence[str], known: Tokenizer, most: int) -> int:
    """A lower bound of the texts' tokens; counting stops once these are too many."""
    tokens = 0
    for text in texts:
        for at in range(0, len(text), SLICE):
            part = text[at : at + SLICE]
            tokens += len(known.encode(part)) - (SEAM if len(part) == SLICE else 0)
            if tokens > most:
                return tokens
    return tokens
