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

# Stands for as many tokens as the run and the model's context leave.
UNLIMITED = 2**30
# What has fewer tokens than a few steps is written sooner by the target alone.
SHORT = 64
# What a ``gen`` may ask for that is the target's business alone.
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
        max_tokens: the answer's budget; None is what the run and the context leave.
        stop: where the text is cut off, as for ``gen``.
        show: the program's answer begins with this text, or goes on with it, whatever comes: its steps are told as
            they are kept. What is called ``answer`` is shown alone, anything else with all of the turn before it.
        given: fields of ``Lookahead`` (``depth``, ``width``, ``verifier``, ...) and of ``gen`` (``temperature``, ...).

    Raises:
        ConfigError: there is no such option, or it cannot be.
    """
    fields = {key: given.pop(key) for key in list(given) if key in Lookahead.__dataclass_fields__}
    if fields.get("calibration"):
        hint = "give it to the run, or to the backend: deployment.backend(gate=..., calibration=...)"
        raise ConfigError("lookahead(): one calibration holds for all that a program writes", hint=hint)
    mark = LookaheadMark("\x00lookahead")
    mark.name, mark.options, mark.stops, mark.show = name, fields, stops_of(stop), show
    Lookahead().replace(**fields)  # what cannot be is said here, where it is written
    try:
        return sgl.gen(name, max_tokens=UNLIMITED if max_tokens is None else max_tokens, stop=mark, **given)
    except TypeError as error:
        raise ConfigError(f"lookahead(): {error}", hint="fields of Lookahead, and what gen() takes") from error


def strip_mark(params: SglSamplingParams) -> None:
    """For a runtime that writes by itself: of a mark, what its stop strings are is left."""
    if isinstance(params.stop, LookaheadMark):
        stops = params.stop.stops
        params.stop = stops[0] if len(stops) == 1 else list(stops)


def stops_of(stop: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings of a ``gen``, marked or not."""
    if isinstance(stop, LookaheadMark):
        return stop.stops
    return (stop,) if isinstance(stop, str) else tuple(stop)


def fallback_reason(s: Executor, params: SglSamplingParams, everything: bool) -> str:
    """Why lookahead reasoning is not for this ``gen``; empty if it is.

    Args:
        everything: False leaves it to what ``lookahead()`` has marked.
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
