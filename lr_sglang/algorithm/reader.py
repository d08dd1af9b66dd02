"""What the target says of drafted tokens that it reads: whether it can be asked, the request, and
the draws that follow from its log-probabilities.
"""

from __future__ import annotations

import warnings
from typing import Any

from lr_sglang.algorithm.answer_context import AnswerContext
from lr_sglang.config import Sampling
from lr_sglang.engine.target_draws import target_draws
from lr_sglang.errors import LookaheadError, RuntimeRefused
from lr_sglang.steps.branch import Branch, Generation

# Most probable tokens of each place that a target which reads is asked for: ``top_k`` may not be
# larger.
MOST_READ = 48
# Seconds that a draft may take where the target waits for it: one that hangs costs no more.
DRAFT_SECONDS = 2.0


class Reader:
    """How the target reads drafted tokens in one answer.

    A read that fails is never the answer's failure: the target writes instead, and reads no more in
    this answer. A server that has refused its first read, or told no log-probabilities, is never
    read; any other is checked again by the next answer.
    """

    def __init__(self, context: AnswerContext) -> None:
        self._request = context.request
        self._target = context.target
        self._context = context
        self._has_failed = False

    def can_read(self) -> bool:
        """Whether the target can read drafted tokens before it writes: its draws can be made here,
        from log-probabilities.
        """
        request = self._request
        target = self._target
        sampling = request.sampling
        if self.own_numbers and target.facts.seeded and request.lookahead.reading != "first":
            return False  # the text is to be the one that this seed gives
        filtered = 0 < sampling.top_k <= MOST_READ or sampling.min_p > 0
        filtered = filtered or (sampling.top_p < 1 and sampling.temperature <= 1)
        return (
            request.lookahead.reading != "never"
            and request.verifier is not None
            and (sampling.greedy or filtered)
            and target.readable is not False
            and not self._has_failed
            and not (request.exact and target.facts.token_layer)  # its guesses are as long
            and not request.constraints.names()
            and self._context.can_ask("draft")
            and self._context.shares_vocabulary("draft")
        )

    @property
    def own_numbers(self) -> bool:
        """Whether the target's draws that are made here are not those that its server would have
        made: then the answer is another one of the same distribution.
        """
        known = self._target.facts.seeded and self._target.facts.places == "answer"
        return not (self._request.sampling.greedy or known)

    @property
    def must_check(self) -> bool:
        """Whether drafted tokens may be read, but the server's log-probabilities are not checked
        yet.
        """
        return self._target.readable is None and self.can_read()

    def draft_sampling(self) -> Sampling:
        """How the draft samples what the target only reads: greedily where it shares no draws, so
        that it writes what the target is most likely to draw.
        """
        sampling = self._request.sampling
        return sampling if self._request.trace.shared_draws else sampling.replace(temperature=0)

    def hurry(self, branch: Branch) -> None:
        """Limits the time of a draft for which the target waits."""
        branch.patience = min(1.0, DRAFT_SECONDS / self._context.roles["draft"].timeout)

    def options(self, drafted: int) -> dict[str, Any]:
        """The options of ``sgl.gen`` by which the target reads the last ``drafted`` tokens of the
        prompt.
        """
        if not drafted:
            return {}
        sampling = self._request.sampling
        most = MOST_READ
        if sampling.greedy:
            most = 2  # two that are equally probable decide nothing
        elif sampling.top_k > 0:
            most = max(2, min(most, sampling.top_k))
        return {"return_logprob": True, "logprob_start_len": -drafted, "top_logprobs_num": most}

    def draws(self, branch: Branch, drafted: int) -> list[int | None]:
        """What the target draws at the places of the ``drafted`` tokens that a branch has read, and
        after them; None where it is not known. Empty if the read has failed, which is noted.
        """
        result = branch.result
        if isinstance(result, LookaheadError):
            self._failed(unfit=isinstance(result, RuntimeRefused))
            return []
        rows = _rows(result, "input_top_logprobs")
        if len(rows) < drafted:
            self._failed(unfit=True)
            return []
        read = target_draws(
            rows[len(rows) - drafted :],
            self._request.sampling,
            branch.seed or 0,
            branch.place - drafted,
            server_draws=not self.own_numbers,
        )
        return [*read, *result.ids[:1]]

    def agreed(self, same: int, drafted: int, *, one_read: bool = False) -> None:
        """Counts drafted tokens that the target has read, up to the first that differs.

        Args:
            same: how many of the ``drafted`` tokens are the target's own.
            one_read: whether they are a read of their own; else the server counts verifications.
        """
        self._request.trace.read_tokens += min(same + 1, drafted)
        self._request.trace.agreed_tokens += same
        if one_read and drafted:
            self._request.trace.reads[drafted, same] += 1
        self._request.experience.reads.compared(same, same < drafted)

    def check(self, written: Generation, again: Branch) -> None:
        """Notes whether the target reads what it has written as its own: draws the same tokens, or,
        where draws are made with other numbers here, finds the same ones most probable.

        Args:
            again: the branch that has read them.
        """
        wrote: list[int | None] = list(written.ids)
        read = self.draws(again, len(wrote))
        if read and self.own_numbers:
            wrote = _likeliest(written, "output_top_logprobs", len(wrote))
            read = _likeliest(again.result, "input_top_logprobs", len(wrote))
        known = [(a, b) for a, b in zip(wrote, read, strict=False) if b is not None]
        if known:
            self._target.readable = sum(a == b for a, b in known) >= 3 * len(known) / 4
        if self._target.readable is False:
            warnings.warn(
                "target: its log-probabilities of a prompt do not give what it has drawn, or there "
                "are none: drafted tokens are not read there",
                RuntimeWarning,
                stacklevel=2,
            )

    def _failed(self, *, unfit: bool) -> None:
        """Notes that a read has failed; ``unfit``: refused, or without log-probabilities."""
        self._has_failed = True
        checking = self._target.readable is None
        self._target.readable = False if checking and unfit else None


def _rows(made: Generation, name: str) -> list[Any]:
    """The most probable tokens of each place; SGLang has none for the first of a prompt."""
    return [row for row in made.meta.get(name) or () if row]


def _likeliest(made: Generation, name: str, places: int) -> list[int | None]:
    """The most probable token of each of the last places."""
    return [int(row[0][1]) for row in _rows(made, name)[-places:]]
