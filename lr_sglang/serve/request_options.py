"""The settings of one answer: what its request asks for, within what the operator allows, over the
defaults.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lr_sglang.algorithm.answer_request import FREE, Constraints
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES, Mode
from lr_sglang.serve.errors import Refusal, refusal
from lr_sglang.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    LookaheadRequest,
    StreamOptions,
)
from lr_sglang.serve.settings import Service
from lr_sglang.steps.token_text import TokenText


@dataclass(frozen=True)
class Conclusion:
    """The part of an answer after the thinking, which the target writes alone.

    Attributes:
        why: the fields that lookahead reasoning cannot follow.
        prompt: of the whole answer, as the target has rendered it.
        grammar: keywords of ``sgl.gen``.
        tools: those that may be called.
    """

    why: tuple[str, ...]
    prompt: TokenText
    grammar: Mapping[str, str]
    tools: Sequence[Any] = ()


@dataclass(frozen=True)
class TextOptions:
    """How an answer's tokens become text.

    Attributes:
        special: whether special tokens are shown.
        keep_stop: whether the stop string that ended it is.
        reasoning: whether the reasoning is told apart; ``reasoning_whole``: whether it comes in one
            piece.
    """

    special: bool = False
    keep_stop: bool = False
    reasoning: bool = True
    reasoning_whole: bool = False


@dataclass(frozen=True)
class RequestOptions:
    """One answer to make, or several.

    Attributes:
        asked: a conversation, or a raw prompt: a text, or token ids of the target's.
        usage: whether a stream ends with the usage; ``usage_so_far``: whether all its chunks with
            text have one.
        trace: whether the client gets every event.
        answers: their number.
        prefix: the beginning of the answer, as the client gives it.
        arguments: of the model's template; ``thinks_not``: whether they say that it does not think.
        constraints: on the tokens of the answer.
        text: how the answer's tokens become text.
        conclusion: what follows the thinking, where lookahead reasoning serves the thinking only.
    """

    asked: list[dict[str, Any]] | str | tuple[int, ...]
    mode: Mode
    lookahead: Lookahead
    sampling: Sampling
    limits: Limits
    stops: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    usage_so_far: bool = False
    trace: bool = False
    answers: int = 1
    prefix: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    thinks_not: bool = False
    constraints: Constraints = FREE
    text: TextOptions = TextOptions()
    conclusion: Conclusion | None = None

    @property
    def chat(self) -> bool:
        return isinstance(self.asked, list)

    @property
    def mode_name(self) -> str:
        """The mode's name in logs and responses."""
        return self.mode.name

    @property
    def why(self) -> tuple[str, ...]:
        """The fields because of which the target writes a part of the answer alone."""
        return () if self.conclusion is None else self.conclusion.why

    def each(self) -> list[RequestOptions]:
        """One for every answer, each with a seed of its own."""
        first = self.sampling.seed
        # SGLang takes 64 bits
        seeds = ((first + n + 2**63) % 2**64 - 2**63 for n in range(self.answers))
        return [
            replace(self, sampling=self.sampling.replace(seed=seed), answers=1) for seed in seeds
        ]


def options_of(
    request: ChatRequest | CompletionRequest, service: Service, conclusion: Conclusion | None = None
) -> RequestOptions:
    """The settings for a request.

    Raises:
        Refusal: it asks for another model, or for what the operator does not allow.
    """
    if request.model != service.model:
        raise refusal("model_not_found", param="model", asked=request.model, known=service.model)
    wish, answers, limits = request.lookahead or LookaheadRequest(), request.n or 1, service.limits
    if answers > service.concurrency:
        raise Refusal(400, f"n: at most {service.concurrency} answers at a time", param="n")
    if wish.trace and answers > 1:
        raise Refusal(
            400, "lookahead.trace: only for one answer, not with n", param="lookahead.trace"
        )
    mode = MODES[_allowed("mode", wish.mode, service.modes)]
    sampling = service.sampling.with_options(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=-1 if request.top_k == 0 else request.top_k,
        min_p=request.min_p,
        seed=secrets.randbits(31) if request.seed is None else request.seed,
    )
    try:
        look = mode.lookahead(_lookahead(wish, service))
    except ConfigError as error:
        raise Refusal(400, error.message, param="lookahead") from error
    most, shown = request.most_tokens, request.stream_options or StreamOptions()
    return RequestOptions(
        request.asked,
        mode,
        look,
        sampling,
        limits.with_options(
            max_tokens=min(n for n in (most, limits.max_tokens) if n) if most else None
        ),
        tuple(request.stop or ()),
        stream=bool(request.stream),
        usage=wish.trace or bool(shown.include_usage),
        usage_so_far=bool(shown.continuous_usage_stats),
        trace=wish.trace,
        answers=answers,
        prefix=request.prefix,
        arguments=request.arguments,
        thinks_not=request.thinks_not,
        constraints=request.constraints,
        text=TextOptions(
            special=request.skip_special_tokens is False,
            keep_stop=bool(request.no_stop_trim),
            reasoning=request.separate_reasoning is not False,
            reasoning_whole=request.stream_reasoning is False,
        ),
        conclusion=conclusion,
    )


def _lookahead(wish: LookaheadRequest, service: Service) -> Lookahead:
    for name, most in (("depth", service.deepest), ("width", service.widest)):
        value = getattr(wish, name)
        if value is not None and value > most:
            raise Refusal(
                400, f"lookahead.{name}: must be at most {most}", param=f"lookahead.{name}"
            )
    verifier = _allowed("verifier", wish.verifier, service.verifiers)
    asked = {"depth": wish.depth, "width": wish.width, "schedule": wish.schedule}
    return service.lookahead.with_options(**asked, verifier=verifier)


def _allowed(name: str, value: str | None, allowed: tuple[str, ...]) -> str:
    if value is None:
        return allowed[0]
    if value not in allowed:
        message = (
            f"lookahead.{name}: {value[:64]!r} is not allowed here; allowed: {', '.join(allowed)}"
        )
        raise Refusal(400, message, param=f"lookahead.{name}")
    return value
