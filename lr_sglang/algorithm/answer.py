"""One answer in progress: waits for the program's branches, keeps steps, and cancels requests at
the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.branches import Branches, tokens_of, written
from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.algorithm.judging import Judging
from lr_sglang.algorithm.keeper import Keeper
from lr_sglang.algorithm.portions import Portions
from lr_sglang.algorithm.reader import Reader
from lr_sglang.algorithm.shared_draws import compare_prompts, exactness, note_draws
from lr_sglang.algorithm.step_gens import StepGens
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.dsl import backend_of, sync
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.branch import Branch, Outcome
from lr_sglang.steps.events import SILENT, EventEmitter
from lr_sglang.steps.generation import Generation
from lr_sglang.steps.step import (
    Ending,
    Step,
    make_step,
)
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.tree import Node, StepTree

if TYPE_CHECKING:
    from lr_sglang.algorithm.draft_line import DraftLine

# After a failed draft request, before the next one: the target decodes alone meanwhile.
BACKOFF_SECONDS = 2.0


@asynccontextmanager
async def answering(s: ProgramState, job: AnswerRequest) -> AsyncIterator[Answer]:
    """One answer in the open assistant turn of a state. At the end of the block all its requests
    are cancelled.

    Raises:
        PromptTooLong: the prompt leaves no room for an answer. LookaheadError: the state has
            failed.
    """
    await sync(s)
    s.text()  # a state that has failed raises here
    answer = Answer(s, job, *backend_of(s, "target").budget(s.stream_executor, job.limits))
    job.listen(answer.stop)
    try:
        with answer.policy:
            try:
                yield answer
            finally:
                await answer.branches.drain()
                answer.note_doubts()
    finally:
        job.listen(None)


class Answer:
    """The step tree of one answer and its branches on runtimes; ``answering`` makes it.

    Args:
        s: a state with an open assistant turn, which the answer fills.
        prompt_tokens: of the state's prompt.
        budget: tokens that the answer may have.

        before: the answer whose thinking it concludes, with which it shares branches and events.

    Attributes:
        tree: the steps so far.
        policy: chooses the nodes that get branches.
        reader: says what the target can read, and what it draws there.
        gens: makes the generations.
        judging: asks the verifier.
        keeper: keeps steps, drops other versions.
        portions: goes on with a version that is read portion by portion.
    """

    def __init__(
        self,
        s: ProgramState,
        job: AnswerRequest,
        prompt_tokens: int,
        budget: int,
        before: Answer | None = None,
    ) -> None:
        self.s, self.job, self.trace = s, job, job.trace
        self.roles = backend_of(s, "target").roles
        self._resting: dict[str, float] = {}
        self._loop, look = s.stream_executor.loop, job.lookahead
        # Where only the target's own tokens are kept, a step may begin in the middle of a sentence.
        guard = look.half_sentence_guard and not job.exact
        self.tree = StepTree(look.depth, look.width, budget, guard)
        self.tree.root.state = s
        if before is None:
            self.policy = policy.make(look, self.tree, job.experience, self._loop.time)
            self.branches = Branches(self.trace, self._loop, self.policy)
            self.emitter = EventEmitter(job.on_event, self.branches.now) if job.on_event else SILENT
            self.branches.done = self.emitter.done
            ended = job.concludes and self.roles["target"].thought_ended(s.stream_executor)
            self.tree.concluded = ended
        else:
            self.policy = before.policy
            self.branches = before.branches
            self.emitter = before.emitter
            self.policy.tree = self.tree
            self._resting = before._resting
            self.tree.root.follow(before.tree.root)
        self.reader = Reader(job, self.roles, self.can_ask)
        self.gens = StepGens(job, self.roles, self.tree, self.reader, s.stream_executor)
        self.judging = Judging(job, self.tree, self.branches, self.emitter, self.begin)
        self.keeper = Keeper(
            job,
            self.roles,
            self.tree,
            self.branches,
            self.judging,
            self.policy if before is None else None,
            self.emitter,
            s,
        )
        self.portions = Portions(
            job,
            self.roles,
            self.tree,
            self.branches,
            self.reader,
            self.policy,
            self.keeper,
            self.can_ask,
        )
        self.trace.prompt_tokens = prompt_tokens
        if before is None:
            note_draws(job, self.roles, self.reader)
        else:
            self.trace.conclusion = {
                "step": len(self.trace.steps),
                "tokens": len(self.trace.ids),
                "seed": job.sampling.seed,
                "text": exactness(job, self.roles["target"], self.reader),
            }

    @property
    def over(self) -> bool:
        """Whether nothing more is written by this answer."""
        return self.tree.over

    def conclusion(self) -> Answer:
        """The answer after the thinking, in the same turn: each of its tokens is the target's."""
        root = self.tree.root
        for node in (*root.children, *([root.correction] if root.correction else ())):
            self.keeper.drop(node, Outcome.CANCELLED)
        for branch in (root.version.branch, root.version.guesser):
            self.branches.give_up(branch, Outcome.CANCELLED)
        root.dropped = True
        room = self.tree.room(self.tree.root)
        return Answer(self.s, self.job.concluding(), self.trace.prompt_tokens, room, self)

    @property
    def complete(self) -> bool:
        """Whether the answer has its end."""
        return self.tree.complete

    def note_doubts(self) -> None:
        """Records what the answer's branches show of the runtimes."""
        for branch in self.trace.branches:
            self.roles[branch.answered_by or branch.role].doubts.add(branch)
        for role, backend in self.roles.items():
            if backend.doubts.found:
                self.trace.doubts[role] = dict(backend.doubts.found)

    def stop(self) -> None:
        """Makes ``first_done`` raise ``Cancelled``; from any thread."""
        self._loop.call_soon_threadsafe(self.branches.put, None)

    def can_ask(self, role: str) -> bool:
        """Whether a role can be asked for a step: it has a runtime, may draft, and did not fail a
        moment ago.
        """
        if role == "draft" and not self.job.drafts:
            return False
        return role in self.roles and self._resting.get(role, 0.0) <= self._loop.time()

    def text(self, ids: tuple[int, ...] | None) -> TokenText:
        """Tokens of the target's vocabulary, to append to a program's state."""
        known = self.roles["target"].tokenizer
        return TokenText.of(known.decode(ids), ids, known.vocabulary) if ids else TokenText()

    def begin_branch(
        self, role: str, state: ProgramState, node: Node, child: Node | None = None
    ) -> Branch:
        """Makes the branch of the next ``gen`` of ``state``, which writes or reads the step after
        ``node``, and waits for it.

        Args:
            child: the drafted node that the step will lead to; None for the target's version.
            role: that generates.
        """
        version = node.version
        branch = self.begin(role, state, node, child, 0 if child else version.place)
        if child is not None:
            child.drafting = branch
            version.since = version.since or self._loop.time()
        elif version.branch is None:
            version.branch = branch
        else:
            version.ahead = branch
        if role == "draft" and (version.read_first or version.portions):
            self.reader.hurry(branch)
        branch.reads = role == "target" and version.guess is not None
        self.branches.expect(branch)
        return branch

    def begin(
        self, role: str, state: ProgramState, node: Node, child: Node | None, tokens: int = 0
    ) -> Branch:
        """Makes a branch, so many ``tokens`` after ``node``, for the next generation of
        ``state``.
        """
        alternative = child.alternative if child else 0
        seed, place = self.job.draws(role, node, alternative)
        place += tokens
        ahead = self.tree.ahead(node)
        branch = Branch(role, node.position, alternative, seed, self.job.key, ahead, place)
        branch.state, branch.node, branch.child = state, node, child
        state.stream_executor.request = branch
        # a node that was left behind is in the tree no more
        in_tree = node is self.tree.root or node.parent is not None
        branch.number = self.emitter.begun(role, node if in_tree else self.tree.root, child)
        self.branches.begin(branch)
        return branch

    async def first_done(self) -> Node:
        """Waits for the next draft step, target step or verdict; returns the prefix that it belongs
        to.

        Raises:
            LookaheadError: the target failed; Cancelled: the answer was stopped.
        """
        while True:
            node = self._enter(await self.branches.first_done())
            if node is not None:
                return node

    async def all_done(self) -> list[Node]:
        """Waits for every generation and verdict in flight; returns the prefixes that they belong
        to.
        """
        nodes: dict[Node, None] = {}
        while self.branches:
            node = self._enter(await self.branches.first_done())
            if node is not None:
                nodes[node] = None
        return list(nodes)

    def begin_apart(self, role: str, state: ProgramState, node: Node) -> Branch:
        """``begin_branch`` for a generation whose result is no step of the tree: see ``ended``."""
        branch = self.begin(role, state, node, None, node.version.place)
        branch.reads = node.version.guess is not None
        self.branches.expect(branch)
        return branch

    async def ended(self, branch: Branch) -> Generation | LookaheadError:
        """Waits for a branch of ``begin_apart``; returns its result."""
        while (arrived := await self.branches.first_done()) is not branch:
            self._enter(arrived)
        return branch.result  # type: ignore[no-any-return]

    def _enter(self, arrived: Branch | Inquiry) -> Node | None:
        """Enters a result in the tree. Returns the prefix that it belongs to; None where it is no
        longer needed.
        """
        node, child = arrived.node, arrived.child
        assert node is not None
        needed = not (node.dropped or (child.dropped if child else node.chosen))
        if needed and isinstance(arrived, Inquiry):
            self.judging.enter(arrived)
        elif needed and isinstance(arrived, Branch):
            if child is not None:
                self._enter_draft(node, child, arrived)
            elif arrived.role == "draft":
                self._enter_guess(node, arrived)
            elif node.version.guess is not None:
                self._enter_read(node, arrived)
            else:
                self._enter_target(node, arrived)
        arrived.release()
        return node if needed else None

    def _enter_draft(self, node: Node, child: Node, branch: Branch) -> None:
        if child.verdict is not None:
            return  # the draft came too late and is rejected already
        if isinstance(branch.result, LookaheadError):
            self.draft_failed(branch.result)
            self.judging.reject(child, "draft", str(branch.result), failed=True)
            return
        compare_prompts(self.job, self.roles["target"], branch, node)
        known, room = self.roles["draft"].tokenizer, self.tree.room(node)
        drafted, child.state = written(branch, known)
        tokens = tokens_of(drafted, known, self.roles["target"].tokenizer, room)
        if not drafted.ids or tokens > room:
            why = "the step is empty, or exceeds the token budget"
            self.judging.reject(child, "draft", why, failed=True)
            return
        child.confidence = policy.confidence(branch.result.meta, len(drafted.ids))
        self.tree.drafted(child, drafted, tokens)
        self.emitter.drafted(child)
        version = node.version
        if version.read_first and child.alternative == 0 and version.branch is None:
            version.guess = drafted.ids

    def draft_failed(self, error: LookaheadError) -> None:
        """Counts a failure of the draft, which is left alone for a while."""
        self.trace.failed("draft", error.message)
        self.leave_draft_alone()

    def leave_draft_alone(self) -> None:
        """Asks the draft for nothing for a while."""
        self._resting["draft"] = self._loop.time() + BACKOFF_SECONDS

    def _enter_target(self, node: Node, branch: Branch) -> None:
        if isinstance(branch.result, LookaheadError):
            self.judging.refuse(node, branch.result)
            return
        made, state = written(branch, self.roles["target"].tokenizer)
        self._enter_version(node, made, state)
        for late in node.children:
            if late.step is None and late.verdict is None:
                self.judging.reject(late, "late", "the target was faster than the draft")

    def _enter_version(self, node: Node, step: Step, state: ProgramState) -> None:
        """Enters the target's version of the step after ``node``."""
        version = node.version
        version.complete(step, state)
        self.emitter.written(node)
        if version.since:
            seconds = (self._loop.time() - version.since) / len(step.ids or "?")
            self.job.experience.versioned(version.was_read, seconds)

    def _enter_guess(self, node: Node, branch: Branch) -> None:
        """Enters what the draft has written after what is known of the target's version, or after
        the guess that the target reads.
        """
        version, result = node.version, branch.result
        is_ahead = branch is version.ahead
        if branch.outcome is not None:
            return  # it was given up
        if not is_ahead:
            version.branch = None
        if isinstance(result, LookaheadError):
            self.draft_failed(result)
            version.ahead = None if is_ahead else version.ahead
        elif is_ahead:
            version.next_guess = result.ids
        else:
            version.guess = self._guess_of(node, result)
            version.guesser = branch

    def _guess_of(self, node: Node, result: Generation) -> tuple[int, ...]:
        """The tokens of a guess, up to the end of the step unless it may go on after it."""
        known = node.version.known
        if node.version.portions:
            return result.ids
        tokenizer, ids = self.roles["draft"].tokenizer, (*known, *result.ids)
        made = make_step(ids, result.finish, node.step, tokenizer, result.ends)
        return made.ids[len(known) :]

    def _enter_read(self, node: Node, branch: Branch) -> None:
        """Enters what the target says of the drafted tokens after ``node``: they are its own, or
        its version is known up to the token that differs.
        """
        version, drafted = node.version, len(node.version.guess or ())
        draws = self.reader.draws(branch, drafted)
        if version.portions:
            del draws[max(1, drafted) :]  # the draft goes on, and the next place is read again
        taken = version.take(draws)
        if draws:
            self.reader.agreed(taken.same, drafted, one_read=True)
        else:
            version.read_first = False
        guesser, version.guesser = version.guesser, None
        outcome = Outcome.ACCEPTED if taken.whole else Outcome.REJECTED
        self.branches.give_up(guesser, outcome)
        if version.portions:
            self.portions.enter(node, branch, taken, read=bool(draws))
            return
        child = node.children[0] if node.children else None
        if guesser is not None:
            self.job.experience.guessed(taken.tokens)
        elif taken.whole and child is not None and child.step is not None:
            self._enter_version(node, child.step, child.state)
            return
        most = min(self.job.lookahead.max_step_tokens, self.tree.room(node))
        target = self.roles["target"]
        made = make_step(version.known[:most], "length", node.step, target.tokenizer, target.ends)
        if made.complete or len(made.ids) >= most:
            state = node.state.fork(1)[0]
            state += made.tokens()
            self._enter_version(node, made, state)
            return
        self.branches.give_up(branch, Outcome.CANCELLED)
        version.branch = None

    async def keep_steps(self, line: DraftLine | None = None) -> None:
        """Waits for the target's branch after the root, of several steps, and keeps them: each when
        it is written if the branch has a line or the answer's request ``on_tokens``, else all at
        the end.

        Args:
            line: what the draft writes ahead of the branch.

        Raises:
            LookaheadError: it failed; steps may have been kept.
        """
        root = self.tree.root
        branch, before = root.version.branch, root.version.known
        assert branch is not None
        began = len(self.trace.ids)

        def more(ids: Sequence[int]) -> None:
            branch.so_far = ids
            if line is not None:
                line.heard(ids)
            self.branches.put(branch)

        def enter(ids: Sequence[int]) -> None:
            known = (*before, *ids)
            self.tree.root.version.known = known[len(self.trace.ids) - began :]

        if line is not None:
            # it writes on, whatever becomes of the step that was begun
            self.branches.give_up(branch, Outcome.BONUS)
            root.version.branch = None
        if line is not None or self.job.on_tokens is not None:
            branch.on_tokens = more
        while (arrived := await self.branches.first_done()) is not branch or not branch.result:
            if arrived is branch:
                enter(branch.so_far)
                self.keeper.keep_known(line)
                if self.tree.concluded:
                    branch.cancel()
                    return
            elif line is not None and isinstance(arrived, Branch) and arrived.child is None:
                line.draft_ended(arrived)
            else:
                self._enter(arrived)
        result: Generation | LookaheadError = branch.result
        branch.release()
        if isinstance(result, LookaheadError):
            raise result
        if line is not None:
            line.heard(result.ids)
        enter(result.ids)
        if not result.ids:
            self.keeper.keep_version(Step("", (), Ending.CAP), line)
        self.keeper.keep_known(line, result.finish, result.ends, over=True)
