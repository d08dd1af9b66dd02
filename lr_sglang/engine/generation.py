"""What a runtime answered to one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.engine.prefix_reuse import LoggedRequest
from lr_sglang.steps.speculation import Speculation
from lr_sglang.steps.step import first_of, first_stop
from lr_sglang.steps.tree import Branch


@dataclass(frozen=True)
class Written:
    """The tokens that a runtime generated, and why they end.

    SGLang 0.5.16 reports an end of sequence at token ``max_new_tokens`` as ``length``. With a token layer, tokens after
    an end or a stop string come back too where one pass crosses the cap.

    Attributes:
        ids: up to the first end of sequence, which is one of them, or to the cap.
        finish: SGLang's finish_reason.
        text: decoded; without the stop string, if one was written and is to be trimmed.
    """

    ids: tuple[int, ...]
    finish: dict[str, Any]
    text: str

    def until(self, most: int, ends: Set[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Written:
        """A copy, cut where the generation really ends.

        Args:
            most: tokens that were asked for.
            ends: ids that end a sequence.
            stops: strings before which the text is to be cut.
        """
        ids, finish, text = self.ids[:most], self.finish, self.text
        if (at := first_of(ends, ids)) is not None:
            ids, finish = ids[: at + 1], {"type": "stop", "matched": ids[at]}
        if ids != self.ids or finish != self.finish:
            text = decode(ids if at is None else ids[:-1])
        if found := first_stop(text, stops):
            finish, text = {"type": "stop", "matched": found[1]}, text[: found[0]]
        return Written(ids, finish, text)


@dataclass(frozen=True)
class Generation:
    """A runtime's reply to one request.

    Attributes:
        ids: generated token ids, up to the end of sequence.
        finish: ``stop``, ``length`` or ``abort``.
        eos: the id that ended the sequence, if one did.
        cached_tokens: tokens of the prompt that were not computed again; None when the runtime did not say.
        meta: the runtime's own meta_info.
        logprobs: of the last tokens of the prompt, for the number of tokens that the request named.
        dropped: tokens that the runtime generated after ``ids``.
    """

    ids: tuple[int, ...]
    finish: str
    eos: int | None
    prompt_tokens: int
    cached_tokens: int | None
    meta: dict[str, Any] = field(repr=False)
    entry: LoggedRequest | None = field(default=None, repr=False)
    logprobs: tuple[float, ...] = field(default=(), repr=False)
    dropped: int = 0

    def record_in(self, branch: Branch) -> None:
        """Copies the token counts and times of the generation to its branch."""
        branch.prompt_tokens, branch.cached_tokens = self.prompt_tokens, self.cached_tokens
        branch.generated_tokens, branch.entry = len(self.ids) + self.dropped, self.entry
        if "spec_verify_ct" in self.meta:
            branch.speculation = self.speculation
        if "queue_time" in self.meta or "forward_entry_time" in self.meta:
            branch.queued, branch.prefill = waits(self.meta)

    @property
    def speculation(self) -> Speculation:
        """The counts of the runtime's token layer."""
        return Speculation.read(self.meta)

    @property
    def ends(self) -> frozenset[int]:
        """The id that ended the sequence, as a set that is empty when none did."""
        return frozenset() if self.eos is None else frozenset((self.eos,))


def each_stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings of a ``gen``."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def waits(meta: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Seconds in the queue and seconds of the prefill, from a runtime's meta_info; None where it does not say.

    SGLang reports them with ``--enable-metrics``: ``queue_time``, and ``forward_entry_time`` and
    ``prefill_finished_time`` as times of day.
    """
    queued = _positive(meta.get("queue_time"))
    began, ended = _positive(meta.get("forward_entry_time")), _positive(meta.get("prefill_finished_time"))
    prefill = ended - began if began and ended and ended >= began else None
    return queued, prefill


def _positive(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and value >= 0 else None
