"""What one request comes to: its own wishes within what the operator allows, over the operator's defaults."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES, Mode
from lr_sglang.serve.errors import Refusal, refusal
from lr_sglang.serve.protocol import Asking, ChatRequest, CompletionRequest, LookaheadRequest
from lr_sglang.serve.settings import Service
from lr_sglang.steps.token_text import TokenText


@dataclass(frozen=True)
class Conclusion:
    """What follows the thinking, and the prompt of both.

    Attributes:
        why: the fields for whose sake the target writes it alone.
        prompt: as the target has rendered it.
        grammar: keywords of ``sgl.gen``.
        tools: those of which there may be calls.
    """

    why: tuple[str, ...]
    prompt: TokenText
    grammar: Mapping[str, str]
    tools: Sequence[Any] = ()


@dataclass(frozen=True)
class RequestOptions:
    """One answer to make.

    Attributes:
        asked: a conversation, or a raw prompt.
        usage: whether a stream ends with what it has cost.
        trace: whether the client gets every event.
        answers: how many of them.
        prefix: what the assistant has said of its answer already.
        conclusion: what follows the thinking, where only that is looked ahead for.
    """

    asked: list[dict[str, str]] | str
    mode: Mode
    lookahead: Lookahead
    sampling: Sampling
    limits: Limits
    stops: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    trace: bool = False
    answers: int = 1
    prefix: str = ""
    conclusion: Conclusion | None = None

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return not isinstance(self.asked, str)

    def each(self) -> list[RequestOptions]:
        """One for every answer, each with a seed of its own."""
        seeds = (self.sampling.seed + number for number in range(self.answers))
        return [replace(self, sampling=self.sampling.replace(seed=seed), answers=1) for seed in seeds]


def options_of(request: ChatRequest | CompletionRequest, service: Service) -> RequestOptions:
    """Settles a request.

    Raises:
        Refusal: it asks for another model, or for what the operator does not allow.
    """
    if request.model != service.model:
        raise refusal("model_not_found", param="model", asked=request.model, known=service.model)
    if request.n and request.n > service.concurrency:
        raise Refusal(400, f"n: at most {service.concurrency} answers at a time", param="n")
    asked = [m.plain() for m in request.messages] if isinstance(request, ChatRequest) else request.text
    wish = request.lookahead or LookaheadRequest()
    if wish.trace and request.n and request.n > 1:
        raise Refusal(400, "lookahead.trace: of one answer only, not with n", param="lookahead.trace")
    mode = MODES[_allowed("mode", wish.mode, service.modes)]
    try:
        sampling = mode.sampling(_sampling(request, service))
        look = mode.lookahead(_lookahead(wish, service))
    except ConfigError as error:
        raise Refusal(400, error.message, param="lookahead") from error
    return RequestOptions(
        asked,
        mode,
        look,
        sampling,
        _limits(request.most_tokens, service.limits),
        request.stops,
        stream=bool(request.stream),
        usage=wish.trace or bool(request.stream_options and request.stream_options.include_usage),
        trace=wish.trace,
        answers=request.n or 1,
        prefix=request.prefix if isinstance(request, ChatRequest) else "",
    )


def _lookahead(wish: LookaheadRequest, service: Service) -> Lookahead:
    for name, most in (("depth", service.deepest), ("width", service.widest)):
        value = getattr(wish, name)
        if value is not None and value > most:
            raise Refusal(400, f"lookahead.{name}: must be at most {most}", param=f"lookahead.{name}")
    verifier = _allowed("verifier", wish.verifier, service.verifiers)
    return service.lookahead.replace(depth=wish.depth, width=wish.width, schedule=wish.schedule, verifier=verifier)


def _sampling(request: Asking, service: Service) -> Sampling:
    seed = secrets.randbits(31) if request.seed is None else request.seed
    return service.sampling.replace(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=-1 if request.top_k == 0 else request.top_k,
        min_p=request.min_p,
        seed=seed,
    )


def _limits(most: int | None, limits: Limits) -> Limits:
    """No more than the operator allows; an answer that would be longer ends with finish_reason ``length``."""
    return limits.replace(max_tokens=min(n for n in (most, limits.max_tokens) if n) if most else None)


def _allowed(name: str, value: str | None, allowed: tuple[str, ...]) -> str:
    if value is None:
        return allowed[0]
    if value not in allowed:
        message = f"lookahead.{name}: {value[:64]!r} is not allowed here; allowed: {', '.join(allowed)}"
        raise Refusal(400, message, param=f"lookahead.{name}")
    return value
