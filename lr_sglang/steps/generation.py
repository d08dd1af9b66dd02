"""What a runtime generated for one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.steps.step import first_of, first_stop


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
        shareable: gives the tokens of the prompt that an earlier request shares: see
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
    kept = ids[:most]
    why = finish
    if (at := first_of(ends, kept)) is not None:
        why = {"type": "stop", "matched": kept[at]}
        kept = kept[: at + 1]
    if kept != ids or why != finish:
        text = decode(kept if at is None else kept[:-1])
    if found := first_stop(text, stops):
        end, stop = found
        why = {"type": "stop", "matched": stop}
        text = text[:end]
    return kept, why, text
