"""A runtime's reply to a generation request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.steps.step import first_of, first_stop


def until(
    ids: tuple[int, ...],
    finish: dict[str, Any],
    text: str,
    *,
    most: int,
    ends: Set[int],
    stops: Sequence[str],
    decode: Callable[[Sequence[int]], str],
) -> tuple[tuple[int, ...], dict[str, Any], str]:
    """What a runtime generated, up to the first of cap, end of sequence and stop string.

    SGLang 0.5.16 reports an end of sequence at token ``max_new_tokens`` as ``length``. With a token
    layer, if one pass exceeds the cap, the reply also contains tokens after an end of sequence or a
    stop string.

    Args:
        ids: token ids.
        finish: SGLang's finish_reason.
        text: the decoded text, without a stop string that is to be trimmed.
        most: maximum number of tokens.
        ends: ids that end a sequence.
        stops: stop strings; the text is cut before the first one.
    """
    kept, why = ids[:most], finish
    if (at := first_of(ends, kept)) is not None:
        kept, why = kept[: at + 1], {"type": "stop", "matched": kept[at]}
    if kept != ids or why != finish:
        text = decode(kept if at is None else kept[:-1])
    if found := first_stop(text, stops):
        why, text = {"type": "stop", "matched": found[1]}, text[: found[0]]
    return kept, why, text


@dataclass(frozen=True)
class Generation:
    """A runtime's reply to one request.

    Attributes:
        ids: generated token ids, up to the end of sequence.
        finish: ``stop``, ``length`` or ``abort``.
        eos: the end-of-sequence id, if there is one.
        cached_tokens: tokens of the prompt found in the prefix cache; None if the runtime did not
            report it.
        meta: the runtime's own meta_info.
        shareable: gives the tokens of the prompt that could have been in the cache: see
            ``RequestLog``.
        logprobs: log-probabilities of the last tokens of the prompt, as many as the request asked
            for.
        dropped: tokens that the runtime generated after ``ids``.
    """

    ids: tuple[int, ...]
    finish: str
    eos: int | None
    prompt_tokens: int
    cached_tokens: int | None
    meta: dict[str, Any] = field(repr=False)
    shareable: Callable[[], int] | None = field(default=None, repr=False)
    logprobs: tuple[float, ...] = field(default=(), repr=False)
    dropped: int = 0

    @property
    def ends(self) -> frozenset[int]:
        """A set of the end-of-sequence id; empty if there is none."""
        return frozenset() if self.eos is None else frozenset((self.eos,))


def each_stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings of a ``gen``."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def waits(meta: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Seconds in the queue and seconds of the prefill, from a runtime's meta_info; None if not
    reported.

    SGLang reports them with ``--enable-metrics``: ``queue_time``, and ``forward_entry_time`` and
    ``prefill_finished_time`` as times of day.
    """
    queued = _positive(meta.get("queue_time"))
    began, ended = (
        _positive(meta.get("forward_entry_time")),
        _positive(meta.get("prefill_finished_time")),
    )
    prefill = ended - began if began and ended and ended >= began else None
    return queued, prefill


def _positive(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and value >= 0 else None
