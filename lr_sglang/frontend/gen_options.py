"""``lookahead()``: one ``gen`` of a SGLang program, marked to be answered by lookahead reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sglang as sgl

from lr_sglang.config import Lookahead
from lr_sglang.errors import ConfigError
from lr_sglang.frontend.executor import Executor
from lr_sglang.sglang_api.interpreter import SglGen, SglSamplingParams
from lr_sglang.steps.step import StepStop

# Stands for all tokens that the run and the model's context leave.
UNLIMITED = 2**30
# With fewer tokens (a few steps) the target alone is faster.
SHORT = 64
# Options of a ``gen`` that only the target can serve, without lookahead.
CANNOT = (
    *("regex", "json_schema", "dtype", "return_logprob", "ignore_eos", "stop_token_ids", "stop_regex"),
    *("min_new_tokens", "frequency_penalty", "presence_penalty"),
)


class LookaheadMark(str):
    """A stop string that marks a ``gen`` as lookahead reasoning; SGLang carries it where other marks are lost."""

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
        max_tokens: the answer's budget; None is all that the run and the context leave.
        stop: strings at which the text is cut off, as for ``gen``.
        show: report the steps to ``on_step`` as they are kept. The program's final answer must then begin with the
            shown text. A variable called ``answer`` is shown alone, any other with the turn's text before it.
        given: fields of ``Lookahead`` (``depth``, ``width``, ``verifier``, ...) and of ``gen`` (``temperature``, ...).

    Raises:
        ConfigError: there is no such option, or its value is invalid.
    """
    fields = {key: given.pop(key) for key in list(given) if key in Lookahead.__dataclass_fields__}
    if fields.get("calibration"):
        hint = "give it to the run, or to the backend: deployment.backend(gate=..., calibration=...)"
        raise ConfigError("lookahead(): one calibration holds for all that a program writes", hint=hint)
    mark = LookaheadMark("\x00lookahead")
    mark.name, mark.options, mark.stops, mark.show = name, fields, stops_of(stop), show
    Lookahead().with_options(**fields)  # invalid values raise here, where the program's author sees them
    try:
        return sgl.gen(name, max_tokens=UNLIMITED if max_tokens is None else max_tokens, stop=mark, **given)
    except TypeError as error:
        raise ConfigError(f"lookahead(): {error}", hint="fields of Lookahead, and what gen() takes") from error


def strip_mark(params: SglSamplingParams) -> None:
    """Replaces a mark by its stop strings, for a runtime that generates without lookahead."""
    if isinstance(params.stop, LookaheadMark):
        stops = params.stop.stops
        params.stop = stops[0] if len(stops) == 1 else list(stops)


def stops_of(stop: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings of a ``gen``, marked or not."""
    if isinstance(stop, LookaheadMark):
        return stop.stops
    return (stop,) if isinstance(stop, str) else tuple(stop)


def fallback_reason(s: Executor, params: SglSamplingParams, everything: bool) -> str:
    """Why this ``gen`` is not answered by lookahead reasoning; empty if it is.

    Args:
        everything: False answers only what ``lookahead()`` has marked that way.
    """
    if s.images_:
        return "images"
    cannot = [name for name in CANNOT if getattr(params, name) not in (None, (), [], False, 0, 0.0)]
    if cannot:
        return cannot[0]
    if params.n != 1:
        return "n"
    if isinstance(params.stop, LookaheadMark):
        return ""
    if not everything or isinstance(params.stop, StepStop):
        return "plain"
    return "short" if params.max_new_tokens < SHORT else ""
