"""What the target says of drafted tokens that it reads: whether it can be asked, the request, and
the draws that follow from its log-probabilities; and whether draft and target draw with the same
numbers.

For a prompt, SGLang returns the most probable tokens of every place with their log-probabilities.
With them and the answer's random numbers, the draw of the server's plugin
(`lr_sglang.plugin.seeds`) is made again here (``target_draws``): the token with the largest
probability / -log(uniform) of those that the filters keep.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lr_sglang.algorithm.answer_request import AnswerContext
from lr_sglang.config import Sampling
from lr_sglang.errors import LookaheadError, RuntimeRefused
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.steps.branch import Branch, Generation
from lr_sglang.steps.tree import Node

# Most probable tokens of each place that a target which reads is asked for: ``top_k`` may not be
# larger.
MOST_READ = 48
OTHER_PLACES = (
    "their servers count draws from the prompts' beginnings, and the prompts' lengths differ"
)
# Seconds that a draft may take where the target waits for it: one that hangs costs no more.
DRAFT_SECONDS = 2.0

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SEED_BITS = 2**63 - 1

Row = Sequence[tuple[float, int, Any]]  # log-probability, token id, text


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
        if self.draws_differ and target.facts.seeded and request.lookahead.reading != "first":
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
    def draws_differ(self) -> bool:
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

    def draws(self, branch: Branch) -> list[list[int | None]]:
        """What the target draws at the places of the drafted tokens after each prefix that a branch
        has read, and, where that is only one, after them; None where it is not known. Empty lists
        if the read has failed, which is noted.
        """
        result = branch.result
        sizes = [len(node.version.guess or ()) for node in branch.path]
        failed = list[list[int | None]]([[] for _ in sizes])
        if isinstance(result, LookaheadError):
            self._failed(unfit=isinstance(result, RuntimeRefused))
            return failed
        rows = _rows(result, "input_top_logprobs")
        if len(rows) < sum(sizes):
            self._failed(unfit=True)
            return failed
        rows = rows[len(rows) - sum(sizes) :]
        drawn = []
        for node, size in zip(branch.path, sizes, strict=True):
            seed, place = self._request.draws("target", node)
            place += len(node.version.known)
            sampling = self._request.sampling
            server_draws = not self.draws_differ
            drawn.append(
                target_draws(rows[:size], sampling, seed, place, server_draws=server_draws)
            )
            rows = rows[size:]
        if len(drawn) == 1:  # else the server drew with the number of another step
            drawn[0] += result.ids[:1]
        return drawn

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
        (read,) = self.draws(again)
        if read and self.draws_differ:
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

    def note_draws(self) -> None:
        """Records whether the same seed gives the same answer, and what draft and target share."""
        request = self._request
        trace = request.trace
        roles = self._context.roles.values()
        trace.seeded = all(backend.facts.follows_seed(request.parameters) for backend in roles)
        if request.exact:
            trace.lossless = self.exactness
        draft = self._context.roles.get("draft")
        if request.verifier is not None and draft is not None:
            trace.own_draws = self._why_own_draws(draft)
            trace.shared_draws = not trace.own_draws

    @property
    def exactness(self) -> str:
        """What an exact answer is: the ``text`` of plain decoding with its seed, or a draw of its
        ``distribution``.
        """
        made_here = self.draws_differ and self.can_read()
        same = self._target.facts.follows_seed(self._request.parameters) and not made_here
        return "text" if same else "distribution"

    def compare_prompts(self, draft: Branch, node: Node) -> None:
        """Records that nothing is shared where draws are counted from the prompt's beginning and
        the prompt of this draft, after ``node``, is not as long as the target's.
        """
        trace = self._request.trace
        if not trace.shared_draws or self._target.facts.places != "prompt":
            return
        if draft.prompt_tokens - node.tokens_used != trace.prompt_tokens:
            trace.shared_draws = False
            trace.own_draws = OTHER_PLACES

    def _why_own_draws(self, draft: RuntimeBackend) -> str:
        """Why draft and target do not draw with the same numbers; empty if they do."""
        request = self._request
        if request.sampling.greedy:
            return "temperature 0 draws nothing"
        if not request.lookahead.shared_draws:
            return "shared_draws is off"
        for one in (self._target, draft):
            if not one.facts.seeded:
                return f"{one.role}: {one.facts.seed_fault or 'it honours no seed'}"
            if relaxed := one.facts.relaxes(request.parameters):
                return f"{one.role}: it honours no seed with {', '.join(relaxed)}"
        if not self._context.shares_vocabulary("draft"):
            return "draft and target have different vocabularies"
        if draft.facts.places != self._target.facts.places:
            return "one server counts draws from the answer, the other from the prompt"
        return ""


def _rows(made: Generation, name: str) -> list[Any]:
    """The most probable tokens of each place; SGLang has none for the first of a prompt."""
    return [row for row in made.meta.get(name) or () if row]


def _likeliest(made: Generation, name: str, places: int) -> list[int | None]:
    """The most probable token of each of the last places."""
    return [int(row[0][1]) for row in _rows(made, name)[-places:]]


def target_draws(
    rows: Sequence[Row], sampling: Sampling, seed: int, place: int, *, server_draws: bool = True
) -> list[int | None]:
    """The tokens that the target would have drawn.

    Args:
        rows: the most probable tokens of each place, with log-probabilities at temperature 1.
        seed: of the answer.
        place: of the first row: the number of the answer's tokens before it.
        server_draws: whether the server draws a token that is not decided here with the same
            number. If not, whether it is decided must not follow from the number: the tokens would
            have another distribution.

    Returns:
        The token of each place; None where these tokens do not decide it.
    """
    numbers = range(place, place + len(rows))
    return [
        _drawn(row, sampling, seed, number, server_draws)
        for row, number in zip(rows, numbers, strict=True)
    ]


def _drawn(row: Row, sampling: Sampling, seed: int, place: int, server_draws: bool) -> int | None:
    found = sorted(((float(one[0]), int(one[1])) for one in row), key=lambda one: (-one[0], one[1]))
    if len(found) < 2:
        return None
    logs = np.array([one[0] for one in found])
    ids = np.array([one[1] for one in found])
    if sampling.greedy:
        return int(ids[0]) if logs[0] > logs[1] else None
    fewest, most = _kept(logs, sampling)
    if not most or (fewest < most and not server_draws):
        return None
    weights = np.exp((logs[:most] - logs[0]) / sampling.temperature)
    race = weights / -np.log(uniform_of_ids(seed, place, ids[:most]))
    best = int(race.argmax())
    return int(ids[best]) if best < fewest else None


def _kept(logs: NDArray[np.float64], sampling: Sampling) -> tuple[int, int]:
    """The least and the largest number of the most probable tokens that the filters may keep; 0 and
    0 if they may keep others than these.
    """
    temperature = sampling.temperature
    weights = np.exp((logs - logs[0]) / temperature)
    kept = len(logs)
    bounded = 0 < sampling.top_k <= kept
    if bounded:
        kept = sampling.top_k
    if sampling.min_p > 0:
        passing = int((weights >= sampling.min_p).sum())
        bounded = bounded or passing < len(logs)
        kept = min(kept, passing)
    fewest = kept
    if sampling.top_p < 1:
        if temperature > 1:
            return 0, 0  # nothing bounds the weight of the tokens that are not here
        # Tokens that are not here are at most as probable as the last one; they have `rest`.
        rest = max(0.0, 1.0 - float(np.exp(logs).sum()))
        unseen = rest * float(np.exp(logs[-1] * (1 / temperature - 1) - logs[0] / temperature))
        before = weights.cumsum() - weights
        fewest = min(kept, int((before / weights.sum() <= sampling.top_p).sum()))
        most = int((before / (weights.sum() + unseen) <= sampling.top_p).sum())
        bounded = bounded or most < len(logs)
        kept = min(kept, most)
    return (fewest, kept) if bounded else (0, 0)


def uniform_of_ids(seed: int, place: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1), one for each token id, as `lr_sglang.plugin.seeds` has them."""
    with np.errstate(over="ignore"):
        key = _mix(_mix(np.uint64(seed & _SEED_BITS) + _GOLDEN) + np.uint64(place) * _GOLDEN)
        bits = _mix(key + ids.astype(np.uint64) * _GOLDEN)
    made: NDArray[np.float64] = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return made


def _mix(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
