"""An exact answer that is read: the tokens that it has after its last whole step, and what the
target says of drafted ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lr_sglang.algorithm.answer import Answer
from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.engine.branch import Branch, Generation
from lr_sglang.engine.prefix_reuse import common_prefix
from lr_sglang.errors import LookaheadError
from lr_sglang.sglang_api.interpreter import ProgramState, SglGen
from lr_sglang.steps.step import Step, split_ids
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.tree import Node, Outcome, Verdict

Ids = tuple[int, ...]

CHECKED = 8  # tokens of the target's own that it reads first, so that its reading is checked
# Reading pays while a cycle gives so many tokens in the mean, over at least so many cycles: a read
# of a piece takes longer than a token of plain decoding.
LEAST, CYCLES = 2.0, 8


class Reading:
    """The end of an exact answer, in tokens.

    Args:
        answer: whose last steps are kept as they are complete.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._known = answer.roles["target"].tokenizer
        self._ids: Ids = ()  # accepted, after the last whole step
        self._drafted: list[bool] = []  # for each of them, whether the draft wrote it
        self._other: Ids = ()  # the draft's version of the step, from the first token that differs
        self.undecided = False  # whether the target has to write the next token itself
        self._cycles = self._taken = 0

    def pays(self) -> bool:
        """Whether the target writes sooner by reading, as far as this answer shows."""
        return self._cycles < CYCLES or self._taken >= LEAST * self._cycles

    @property
    def unfinished(self) -> bool:
        """Whether there are accepted tokens after the last whole step."""
        return bool(self._ids)

    def room(self, more: Ids = ()) -> int:
        """Tokens left in the budget after what is accepted and ``more``."""
        tree = self.answer.tree
        return tree.room(tree.root) - len(self._ids) - len(more)

    def goes_on(self, piece: Ids) -> bool:
        """Whether the draft may go on after a piece while the target reads it."""
        if self.answer.job.lookahead.schedule == "sync":
            return False
        ends = self.answer.roles["target"].ends
        return bool(piece) and self.room(piece) > 0 and ends.isdisjoint(piece)

    def state(self, more: Ids = ()) -> ProgramState:
        """The program's state after what is accepted, and ``more`` tokens."""
        made, ids = self.answer.tree.root.state.fork(1)[0], self._ids + more
        if ids:
            made += TokenText.of(self._known.decode(ids), ids, self._known.vocabulary)
        return made

    def gen(self, tokens: int, *, role: str = "target", **more: Any) -> SglGen:
        """A ``sgl.gen`` of up to so many tokens; ``more`` are options of ``sgl.gen``."""
        sampling = self.answer.reader.draft_sampling() if role == "draft" else None
        root = self.answer.tree.root
        return self.answer.gens.gen(root, "target", max(1, tokens), sampling, **more)

    def begin_branch(
        self, role: str, state: ProgramState, more: Ids = (), *, reads: bool = False
    ) -> Branch:
        """Makes the branch of the next ``gen`` of ``state``, which is after ``more`` tokens.

        Args:
            reads: whether it reads those tokens.
        """
        place = self._place(more)
        branch = self.answer.begin(role, state, place, None, place.version.place)
        if role == "draft":
            self.answer.reader.hurry(branch)
        branch.reads = reads
        self.answer.branches.expect(branch)
        return branch

    def _place(self, more: Ids = ()) -> Node:
        """The place of the next token after what is accepted, and ``more`` tokens."""
        root = self.answer.tree.root
        made = Node(None, root.position, tokens_used=root.tokens_used, lineage=root.lineage)
        made.version.known = self._ids + more  # each token has a random number of its own
        return made

    async def ended(self, branch: Branch) -> Any:
        """Waits for a branch; returns its result, which may be an error."""
        while branch.ended is None:
            arrived = await self.answer.branches.first_done()
            if isinstance(arrived, Inquiry) or arrived.outcome is not None:
                arrived.release()  # nobody waits for it any more
        return branch.result

    async def result(self, branch: Branch) -> Generation:
        """Waits for a branch.

        Raises:
            LookaheadError: it failed.
        """
        result = await self.ended(branch)
        if isinstance(result, LookaheadError):
            raise result
        return result  # type: ignore[no-any-return]

    def accept(self, piece: Ids, own: Sequence[int | None]) -> bool:
        """Accepts a piece up to the first token that the target would not have drawn, and its token
        there. Returns whether the whole piece was accepted.

        Args:
            own: as of ``drawn``. After a whole piece the draft goes on, and what the target has
                drawn there is read again; where nothing was drafted, it is the next token.
        """
        same = common_prefix(piece, tuple(own))
        whole = same == len(piece)
        if not whole and not self._other:
            self._other = self._ids + piece
        self.answer.reader.agreed(same, len(piece), one_read=True)
        taken: list[int] = list(piece[:same])
        next_one = None if whole and piece else own[same]
        self.undecided = not whole and next_one is None
        if next_one is not None:
            taken.append(next_one)
        self._cycles += 1
        self._taken += len(taken)
        self.take(taken, same)
        return whole

    def take(self, ids: Sequence[int], drafted: int) -> None:
        """Adds tokens, of which the draft wrote the first ``drafted``, and keeps whole steps."""
        ends = self.answer.roles["target"].ends
        self._ids += tuple(ids)[: max(0, self.room())]
        self._drafted += [number < drafted for number in range(len(ids))]
        at_end = not ends.isdisjoint(self._ids)
        over = at_end or self.room() <= 0
        finish, known_ends = ("stop", ends) if at_end else ("length", frozenset[int]())
        before = self.answer.tree.root.step
        for step in split_ids(self._ids, finish, self._known, known_ends, before, last=over):
            if not (step.complete or over):
                break
            size = len(step.ids)
            self._keep(step, all(self._drafted[:size]))
            self._ids, self._drafted = self._ids[size:], self._drafted[size:]
            if self.answer.tree.concluded:
                self._ids = ()
                break
        if self.answer.job.on_tokens is not None and not self.answer.over:
            self.answer.job.on_tokens(self._ids)

    def _keep(self, step: Step, drafted: bool) -> None:
        """Keeps a step, with the draft's version of it, if there is one."""
        before = self.answer.tree.root.step
        if drafted:
            self._other = self._other[len(step.ids) :]
            self._keep_read(step, step)
            return
        ends = self.answer.roles["target"].ends
        other = split_ids(self._other, "length", self._known, ends, before)
        self._other = ()
        self._keep_read(step, other[0] if other else None)

    def _keep_read(self, step: Step, drafted: Step | None) -> None:
        answer = self.answer
        node = answer.tree.root
        if drafted is not None and answer.job.exact:
            (child,) = answer.tree.add_children(node, 1)
            answer.tree.drafted(child, drafted)
            child.state = node.state.fork(1)[0]
            child.state += drafted.tokens()
            answer.emitter.drafted(child)
            answer.judging.decide(child, Verdict(drafted is step, "reading"))
        after = node.state.fork(1)[0]
        after += step.tokens()
        node.version.complete(step, after)
        answer.emitter.written(node)
        answer.tree.decide(node)
        answer.s += answer.keeper.keep(answer.tree.advance() or node)

    def close(self, branch: Branch, outcome: Outcome) -> None:
        """Closes a branch with its outcome, and frees what it has; one that still runs is
        cancelled, and frees it when it has ended.
        """
        self.answer.branches.give_up(branch, outcome)
        if branch.ended is not None:
            branch.release()
