"""What the draft writes ahead of a request of the target that runs (``DraftLine``): where the two
part, how the server gets it (``LineDelivery``), and when none is written (``FeedingTurns``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from lr_sglang.algorithm.answer_request import AnswerContext
from lr_sglang.algorithm.policy.turns import Forecast, Way
from lr_sglang.algorithm.reader import Reader
from lr_sglang.algorithm.step_gens import StepGens
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.sglang_api.interpreter import ProgramState, SglGen
from lr_sglang.steps.branch import Branch, Outcome
from lr_sglang.steps.tree import Version

# Passes in a row that gave one token though the line had the next one: the server has lost the
# line, and gets it again.
LOST = 3
# Tokens before the target's place that are delivered at most: where the line was wrong, the server
# still holds it for a pass.
BEHIND = 64

# Passes may be so many times as fast while no draft is written.
FREED = 1.25
# The draft writes on while it is less than so many widths of a verification ahead of the target,
# and writes so many at a time.
AHEAD = 1.5
AT_A_TIME = 4.0
# Where drafted tokens often differ from the target's, it writes so many times the number of tokens
# that agree in the mean, and at least FEWEST.
RUNS = 6.0
FEWEST = 4
# Drafts in a row that the target may overtake before they are left alone for a while.
SLOW = 2


class LineDelivery:
    """Sends a server what is new of the line of one of its requests, and again what it has lost.

    Args:
        branch: of the request.
    """

    def __init__(self, target: RuntimeBackend, branch: Branch) -> None:
        self._target = target
        self._branch = branch
        self._rid = ""  # of the request that has the line
        self._sent = 0  # tokens that the server has
        self._sent_before = 0  # the same when the target's last pass ended
        self._ignored = 0  # passes in a row that did not use the line

    def send(self, ids: list[int], written: int) -> None:
        """Sends what is new of the line ``ids``, of which the target has written so many tokens."""
        if not self._branch.rid or self._branch.done:
            return
        if self._rid != self._branch.rid:  # the request was sent, or sent again
            self._rid = self._branch.rid
            self._sent = 0
        if len(ids) > max(self._sent, written):
            first = max(self._sent, written - BEHIND)
            self._target.lines.put(self._rid, first, ids[first:])
            self._sent = len(ids)

    def note_pass(self, written: int, tokens: int, same: int, *, parted: bool) -> None:
        """Notes a pass of the target.

        Args:
            written: tokens before it.
            tokens: that it gave, ``same`` of them as in the line.
            parted: whether the line had another token after those.
        """
        unused = tokens == 1 and same == 1 and self._sent_before > written
        self._ignored = self._ignored + 1 if unused else 0
        if parted:
            self._sent = min(self._sent, written + same)
        if self._ignored > 0 and self._ignored % LOST == 0:
            self._sent = written + tokens
        self._sent_before = self._sent

    def close(self) -> None:
        """Drops what has not been sent."""
        self._target.lines.drop(self._rid)


class FeedingTurns:
    """Times the steps of one fed request, for all answers of the run, and says whether the draft is
    to write ahead: without a line each pass gives one token, and may be faster.

    Attributes:
        passes: of the target since steps were kept last.
    """

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._experience = context.request.experience
        self._experience.fed += 1
        self._turns, self._pace = self._experience.feeding()
        self._choose_way()
        self._turn = self._turns.number
        self._since = context.branches.now()
        self._timed = 0  # tokens, and steps, whose time is known
        self._timed_steps = len(context.trace.steps)
        self.passes = 0

    @property
    def feeds(self) -> bool:
        """Whether the draft writes ahead now; of an answer that is not exact its policy decides."""
        return not self._context.request.exact or self._turns.way == "fed"

    def note_kept(self, kept: int) -> None:
        """Learns how fast the steps came that are in the answer since the last call.

        Args:
            kept: the request's tokens that are in steps.
        """
        steps = len(self._context.trace.steps) - self._timed_steps
        if not steps:
            return
        now = self._context.branches.now()
        seconds = now - self._since
        # what came first has waited for the prefill
        if self._timed and seconds > 0 and self._turn == self._turns.number:
            self._learn(kept - self._timed, steps, seconds)
        self._timed = kept
        self._timed_steps += steps
        self._turn = self._turns.number
        self._since = now
        self.passes = 0

    def _learn(self, tokens: int, steps: int, seconds: float) -> None:
        """Learns how long some steps took."""
        way: Way = "fed" if self.feeds else "alone"
        if way == "fed":
            self._pace.add(self.passes, seconds)
        answers = max(1, self._experience.fed)
        self._turns.add(way, self._turns.number, tokens, seconds, answers=answers, steps=steps)
        self._choose_way()

    def _choose_way(self) -> None:
        """Goes on with the faster way, or tries the other: without a line each pass would give one
        token, and may be faster.
        """
        expected = FREED * max(self._pace.value, self._experience.measured_pace())
        alone = Forecast(expected) if expected else None
        answers = max(1, self._experience.fed)
        self._turns.choose({"fed": None, "alone": alone}, answers=answers)

    def close(self) -> None:
        """Ends with the request."""
        self._experience.fed -= 1


class DraftLine:
    """The tokens of one request of the target as far as they are known: its own, then the draft's.

    The target's tokens come by ``enter_target``, the draft's by ``enter_draft``, both called on the
    event loop while they are generated. Where they part, the draft goes on from the target's own
    token. The target never waits: what comes too late, or is wrong, is only not used.

    Args:
        branch: of the target's request, which begins after the last step of the answer.

    Attributes:
        ids: the tokens, counted from the request's first.
        written: how many of them the target has written.
    """

    def __init__(
        self, context: AnswerContext, reader: Reader, gens: StepGens, branch: Branch
    ) -> None:
        self._context = context
        self._reader = reader
        self._gens = gens
        self.ids: list[int] = []
        self.written = 0
        self._target = context.target
        self._first_node = context.tree.root  # its draws are those of the request
        self._draft: Branch | None = None  # that writes now
        self._first = 0  # the place of its first token
        self._seen = 0  # tokens of it that are known
        self._behind = 0  # drafts in a row that the target has overtaken
        self._ended = False
        self._moved = asyncio.Event()
        self._delivery = LineDelivery(context.target, branch)
        self._turns = FeedingTurns(context)
        branch.stream_interval = 1  # each pass is an event
        # it writes on, whatever becomes of the step that was begun
        context.branches.close_branch(branch, Outcome.BONUS)
        context.tree.root.version = Version(runs_on=True)

    @property
    def kept(self) -> int:
        """How many tokens of the line are in steps of the answer."""
        return self.written - len(self._context.tree.root.version.known)

    @property
    def unkept(self) -> tuple[int, ...]:
        """Its tokens after those."""
        return tuple(self.ids[self.kept :])

    async def has_room(self) -> bool:
        """Waits until the draft is to write on; returns False when the target has ended."""
        while not self._ended:
            if self._draft is None and self._wants_more():
                return True
            self._moved.clear()
            await self._moved.wait()
        return False

    def _wants_more(self) -> bool:
        if not self._turns.feeds or not self._context.can_ask("draft") or self._room() < 1:
            return False
        if not self._target.ends.isdisjoint(self.ids[-1:]):
            return False  # the draft has ended the answer; the target may not
        ahead = len(self.ids) - self.written
        return ahead < min(AHEAD * self._width, self._at_a_time())

    @property
    def _width(self) -> int:
        assert self._target.facts.fed is not None
        return self._target.facts.fed.width

    def _at_a_time(self) -> int:
        """Tokens that the draft writes at a time."""
        differ = max(0.001, 1 - self._context.request.experience.reads.agreed_share())
        return max(FEWEST, min(math.ceil(AT_A_TIME * self._width), math.ceil(RUNS / differ)))

    def _room(self) -> int:
        tree = self._context.tree
        return tree.room(tree.root) - len(self.unkept)

    def begin_branch(self, draft: ProgramState) -> None:
        """Makes the branch of the next ``gen`` of ``draft``, by which the draft writes on."""
        branch = self._context.new_branch("guess", draft, self._first_node, None, len(self.ids))
        # events of a draft that was given up may still come
        branch.on_tokens = lambda ids: self.enter_draft(ids) if self._draft is branch else None
        self._reader.hurry(branch)
        self._context.branches.expect(branch)
        self._draft = branch
        self._first = len(self.ids)
        self._seen = 0

    def gen(self) -> SglGen:
        """The ``sgl.gen`` by which the draft writes on."""
        return self._gens.gen(
            self._context.tree.root,
            "draft",
            min(self._at_a_time(), self._room()),
            self._reader.draft_sampling(),
            after=self.unkept,
        )

    def enter_draft(self, ids: Sequence[int]) -> None:
        """Enters what the draft's generation has written so far."""
        place = self._first + self._seen
        new = list(ids[self._seen :])
        if self._draft is None or not new:
            return
        self._seen = len(ids)
        late = min(len(new), max(0, self.written - place))
        self._context.trace.late_tokens += late
        if new[:late] != self.ids[place : place + late]:
            self._close_draft(Outcome.REJECTED)
        elif late < len(new):
            self._behind = 0
            self.ids += new[late:]
            self._delivery.send(self.ids, self.written)

    def end_draft(self, branch: Branch) -> None:
        """Enters the result of a draft's generation."""
        result = branch.result
        failed = isinstance(result, LookaheadError)
        if branch is self._draft:
            if failed:
                self._context.draft_failed(result)
            else:
                self.enter_draft(result.ids)
            self._close_draft(Outcome.REJECTED if failed else Outcome.ACCEPTED)
        branch.release()

    def enter_target(self, ids: Sequence[int]) -> None:
        """Enters what the target has written so far; one call for each of its passes."""
        new = tuple(ids[self.written :])
        if not new:
            return
        version = self._context.tree.root.version
        version.guess = tuple(self.ids[self.written :])
        guessed = min(len(version.guess), len(new))
        same = version.take(new, decoded=True).same
        self._turns.passes += 1
        if guessed:
            self._reader.agreed(same, min(guessed, same + 1))
        if same < len(new):
            self.ids[self.written + same :] = new[same:]
        self._delivery.note_pass(self.written, len(new), same, parted=same < guessed)
        self.written += len(new)
        if same < guessed:
            self._close_draft(Outcome.REJECTED)
        elif self._seen and self.written - self._first - self._seen > self._width:
            self._overtaken()
        self._delivery.send(self.ids, self.written)
        self._moved.set()

    def _close_draft(self, outcome: Outcome) -> None:
        draft = self._draft
        self._draft = None
        self._context.branches.close_branch(draft, outcome)
        self._moved.set()

    def _overtaken(self) -> None:
        """Gives up a draft that the target is a width ahead of; one that is never in time is left
        alone for a while.
        """
        self._close_draft(Outcome.REJECTED)
        self._behind += 1
        if self._behind >= SLOW:
            self._behind = 0
            self._context.leave_draft_alone()

    def note_kept(self) -> None:
        """Tells that steps are in the answer, which were in the line."""
        self._turns.note_kept(self.kept)
        self._moved.set()

    def close(self) -> None:
        """Ends the line with its request."""
        self._ended = True
        self._turns.close()
        self._context.tree.root.version = Version()
        self._close_draft(Outcome.CANCELLED)
        self._delivery.close()
