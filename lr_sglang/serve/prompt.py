"""A request's prompt, before admission: rendered, counted, and refused if it cannot be answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        asked: the whole prompt, for ``answer_request``, or the conversation, for a program.
        thinks: whether the prompt ends inside of ``<think>``.
    """

    asked: Any
    tokens: int
    thinks: bool
    decode: Callable[[Sequence[int]], str]


class Rendering:
    """Renders what a request asks, for any runtime: with its own template, its own defaults, and
    the request's arguments.
    """

    def __init__(self, options: RequestOptions, service: Service) -> None:
        self._options, self._markers = options, service.special_tokens_in_prompts
        self._known: list[tuple[RuntimeBackend, TokenText]] = []

    def __call__(self, backend: RuntimeBackend) -> TokenText:
        for other, text in self._known:
            same = backend.tokenizer.vocabulary == other.tokenizer.vocabulary
            if same and (not self._options.chat or _same_template(backend, other)):
                return text
        text = self._render(backend)
        self._known.append((backend, text))
        return text

    def _render(self, backend: RuntimeBackend) -> TokenText:
        options, known = self._options, backend.tokenizer
        asked, prefix = options.asked, options.prefix
        if isinstance(asked, list):
            text = known.chat(asked, True, {**backend.template_defaults, **options.arguments})
        elif isinstance(asked, tuple) and not self._known:  # the target's
            text = TokenText.of(known.spell(asked), asked, known.vocabulary)
        else:
            words = asked if isinstance(asked, str) else str(self._known[0][1])
            ids = known.raw(words) if self._markers else known.encode(words)
            text = TokenText.of(words, ids, known.vocabulary)
        return text + TokenText.of(prefix, known.encode(prefix, True), known.vocabulary)


def _same_template(one: RuntimeBackend, other: RuntimeBackend) -> bool:
    return (one.tokenizer.template, one.template_defaults) == (
        other.tokenizer.template,
        other.template_defaults,
    )


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

    said = [options.prefix, *_texts(options.asked)]
    rendering = Rendering(options, service)
    try:
        if sum(map(len, said)) > LONG:  # checked before rendering, which caches what it renders
            check(_least(said, known, most), "at least ")
        text = rendering(target) if concluding is None else concluding.prompt
        rendered = text.removesuffix(options.prefix).rstrip()
        opened = options.chat and rendered.endswith(THINK)
    except (TemplateError, StopIteration, ValueError, TypeError) as error:
        # StopIteration: a text with every private-use character in it leaves no mark to break
        # special tokens with
        raise Refusal(
            400, "The model's chat template refuses this conversation", param=param
        ) from error
    tokens = sum(len(piece.ids or ()) for piece in text.pieces)
    check(tokens)
    if service.program:
        asked: Any = options.asked
    else:
        asked = rendering if concluding is None else text
    begun = THINK * opened + options.prefix
    # in some models special tokens mark calls of tools
    shows = options.text.special or (concluding is not None and concluding.tools)
    decode = known.spell if shows else known.decode
    return Prompt(asked, tokens, begun.rfind(THINK) > begun.rfind(THINK_END), decode)


def _texts(asked: Any) -> Iterator[str]:
    """The texts of a conversation, or of a raw prompt."""
    match asked:
        case str():
            yield asked
        case list():
            for one in asked:
                yield from _texts(one)
        case {"content": said} | {"text": said}:
            yield from _texts(said)


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
