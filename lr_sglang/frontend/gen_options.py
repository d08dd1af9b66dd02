"""``lookahead()``: marks a ``gen`` of a SGLang program for lookahead reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sglang as sgl

from lr_sglang.config import Limits, Lookahead
from lr_sglang.errors import ConfigError
from lr_sglang.frontend.executor import Executor, checked_stops
from lr_sglang.sglang_api.interpreter import SglGen, SglSamplingParams
from lr_sglang.steps.step import StepStop

# Means all tokens that the run's limits and the model's context allow.
UNLIMITED = 2**30
# Below this number of tokens (a few steps) the target alone is faster.
SHORT_GENERATION = 64
# Options of a ``gen`` that only the target can serve, without lookahead.
CANNOT = (
    *(
        "regex",
        "json_schema",
        "dtype",
        "return_logprob",
        "ignore_eos",
        "stop_token_ids",
        "stop_regex",
    ),
    *("min_new_tokens", "frequency_penalty", "presence_penalty"),
)


class LookaheadMark(str):
    """Marks a ``gen`` for lookahead reasoning. It is a stop string, because SGLang passes these on
    unchanged.
    """

    name: str
    options: dict[str, Any]
    stops: tuple[str, ...]
    show: bool


def lookahead(
    name: str = "answer",
    max_tokens: int | None = None,
    stop: str | Sequence[str] = (),
    *,
    show: bool = False,
    **given: Any,
) -> SglGen:
    """A ``gen`` that is answered by lookahead reasoning, on a ``LookaheadBackend``.

    Args:
        name: of the variable, as for ``gen``.
        max_tokens: the answer's budget; None for all tokens that the run's limits and the model's
            context allow.
        stop: stop strings, as for ``gen``.
        show: report the steps to ``on_step`` as they are kept. The program's final answer must then
            begin with the shown text: only the generated text if ``name`` is ``answer``, else also
            the turn's text before it.
        given: fields of ``Lookahead`` (``depth``, ``width``, ``verifier``, ...) and of ``gen``
            (``temperature``, ...).

    Raises:
        ConfigError: there is no such option, or its value is invalid.
    """
    fields = {key: given.pop(key) for key in list(given) if key in Lookahead.model_fields}
    mark = LookaheadMark("\x00lookahead")
    mark.name = name
    mark.options = fields
    mark.stops = checked_stops(stop)
    mark.show = show
    Lookahead().with_options(**fields)  # raises here for invalid values
    most = Limits().with_options(max_tokens=max_tokens).max_tokens
    try:
        return sgl.gen(name, max_tokens=UNLIMITED if most is None else most, stop=mark, **given)
    except TypeError as error:
        raise ConfigError(
            f"lookahead(): {error}", hint="fields of Lookahead, and what gen() takes"
        ) from error


def strip_mark(params: SglSamplingParams) -> None:
    """Replaces a mark by its stop strings, for a runtime that generates without lookahead."""
    if isinstance(params.stop, LookaheadMark):
        stops = params.stop.stops
        params.stop = stops[0] if len(stops) == 1 else list(stops)


def stops_of(stop: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings of a ``gen``, marked or not."""
    return stop.stops if isinstance(stop, LookaheadMark) else checked_stops(stop)


def fallback_reason(s: Executor, params: SglSamplingParams, everything: bool) -> str:
    """The reason why this ``gen`` is answered without lookahead reasoning; empty if there is none.

    Args:
        everything: False to use lookahead reasoning for marked ``gen`` only.
    """
    if s.images_:
        return "images"
    cannot = [name for name in CANNOT if getattr(params, name) not in (None, (), [], False, 0, 0.0)]
    if cannot:
        return cannot[0]
    if isinstance(params.stop, LookaheadMark):
        return ""
    if not everything or isinstance(params.stop, StepStop):
        return "plain"
    return "short" if params.max_new_tokens < SHORT_GENERATION else ""
