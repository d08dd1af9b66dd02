"""One answer in progress: waits for the program's branches, keeps steps, and cancels requests at
the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from lr_sglang.algorithm.answer_request import AnswerContext, AnswerRequest
from lr_sglang.algorithm.branches import tokens_of, written_step
from lr_sglang.algorithm.draft_line import DraftLine
from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.algorithm.judging import Judging
from lr_sglang.algorithm.keeper import Keeper, Portions
from lr_sglang.algorithm.reader import Reader
from lr_sglang.algorithm.step_gens import StepGens
from lr_sglang.algorithm.ways import Ways
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.dsl import sync
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.branch import Branch, Generation, Outcome, Purpose
from lr_sglang.steps.step import (
    Ending,
    Step,
    make_step,
)
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.tree import Node


@asynccontextmanager
async def answering(s: ProgramState, request: AnswerRequest) -> AsyncIterator[Answer]:
    """One answer in the open assistant turn of a state. At the end of the block all its requests
    are cancelled.

    Raises:
        PromptTooLong: the prompt leaves no room for an answer. LookaheadError: the state has
            failed.
    """
    await sync(s)
    s.text()  # a state that has failed raises here
    answer = Answer(AnswerContext.begin_answer(s, request))
    answer.reader.note_draws()
    request.listen(answer.branches.stop)
    try:
        with answer.policy:
            try:
                yield answer
            finally:
                await answer.branches.drain()
                answer.note_doubts()
    finally:
        request.listen(None)


class Answer:
    """The step tree of one answer and its branches on runtimes; ``answering`` makes it, and
    ``conclusion`` the one after the thinking.

    Attributes:
        request: what is asked for; ``trace`` is its record.
        roles: backends by role.
        tree: the steps so far.
        policy: chooses the nodes that get branches.
        branches: the requests in flight.
        reader: says what the target can read, and what it draws there; checks its server once.
        ways: decides how the target's next version comes to be.
        gens: makes the generations.
        judging: asks the verifier.
        keeper: keeps steps, drops other versions.
        portions: goes on with a version that is read portion by portion.
    """

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self.request = context.request
        self.trace = context.trace
        self.roles = context.roles
        self.tree = context.tree
        self.policy = context.policy
        self.branches = context.branches
        self.reader = Reader(context)
        self.ways = Ways(context, self.reader)
        self.gens = StepGens(context, self.reader)
        self.judging = Judging(context)
        self.keeper = Keeper(context, self.judging)
        self.portions = Portions(context, self.reader, self.ways, self.keeper)

    def conclusion(self) -> Answer:
        """Begins the answer after the thinking, in the same turn: each of its tokens is the
        target's. What this one has in flight is given up.
        """
        root = self.tree.root
        for node in (*root.children, *([root.correction] if root.correction else ())):
            self.keeper.drop(node, Outcome.CANCELLED)
        for branch in (root.version.branch, root.version.guesser):
            self.branches.close_branch(branch, Outcome.CANCELLED)
        root.dropped = True
        after = Answer(self._context.conclude())
        self.trace.conclusion = {
            "step": len(self.trace.steps),
            "tokens": len(self.trace.ids),
            "seed": after.request.sampling.seed,
            "text": after.reader.exactness,
        }
        return after

    def can_ask(self, role: str) -> bool:
        """Whether a role can be asked for a step now (``AnswerContext.can_ask``)."""
        return self._context.can_ask(role)

    def begin_line(self, branch: Branch) -> DraftLine:
        """What the draft writes ahead of a branch of the target that begins after the root."""
        return DraftLine(self._context, self.reader, self.gens, branch)

    def note_doubts(self) -> None:
        """Records what the answer's branches show of the runtimes."""
        for branch in self.trace.branches:
            self.roles[branch.answered_by or branch.role].doubts.add(branch)
        for role, backend in self.roles.items():
            if backend.doubts.found:
                self.trace.doubts[role] = dict(backend.doubts.found)

    def text(self, ids: tuple[int, ...] | None) -> TokenText:
        """Tokens of the target's vocabulary, to append to a program's state."""
        tokenizer = self.roles["target"].tokenizer
        return (
            TokenText.of(tokenizer.decode(ids), ids, tokenizer.vocabulary) if ids else TokenText()
        )

    def begin_branch(
        self,
        purpose: Purpose,
        state: ProgramState,
        *path: Node,
        child: Node | None = None,
    ) -> Branch:
        """Makes the branch of the next ``gen`` of ``state``, which writes or reads the step after a
        node, and notes it there; its result is waited for.

        Args:
            path: the node; of a read, each on its path after which drafted tokens are read.
            child: the drafted node that the step will lead to; None for the target's version.
        """
        node = path[0]
        version = node.version
        branch = self._context.new_branch(purpose, state, node, child, 0 if child else version.size)
        branch.path = path if purpose == "read" else ()
        if child is not None:
            child.drafting = branch
            version.since = version.since or self._context.now()
        elif purpose == "guess" and version.guess is not None:
            version.next_guesser = branch
        else:
            for one in path:
                one.version.branch = branch
        if branch.role == "draft" and (version.read_first or version.runs_on):
            self.reader.hurry(branch)
        self.branches.expect(branch)
        return branch

    async def first_done(self) -> list[Node]:
        """Waits for the next draft step, version of the target, part of one, read, or verdict, and
        enters it in the tree; returns the prefixes that it belongs to.

        Raises:
            LookaheadError: the target failed; Cancelled: the answer was stopped.
        """
        while True:
            if nodes := self._enter(await self.branches.first_done()):
                return nodes

    async def all_done(self) -> list[Node]:
        """Waits for every generation and verdict in flight, and enters them in the tree; returns
        the prefixes that they belong to.
        """
        nodes: dict[Node, None] = {}
        while self.branches:
            nodes |= dict.fromkeys(self._enter(await self.branches.first_done()))
        return list(nodes)

    async def result_of(self, branch: Branch) -> Generation | LookaheadError:
        """Waits for a branch whose result is no step of the tree, and returns it; enters in the
        tree what comes before.
        """
        while (arrived := await self.branches.first_done()) is not branch:
            self._enter(arrived)
        return branch.result  # type: ignore[no-any-return]

    def _enter(self, arrived: Branch | Inquiry) -> list[Node]:
        """Enters a result in the tree. Returns the prefixes that it belongs to, without those where
        it is no longer needed.
        """
        node = arrived.node
        child = arrived.child
        assert node is not None
        prefixes = arrived.path if isinstance(arrived, Branch) and arrived.path else (node,)
        nodes = [n for n in prefixes if not (n.dropped or (child.dropped if child else n.chosen))]
        if nodes and isinstance(arrived, Inquiry):
            self.judging.enter(arrived)
        elif nodes and isinstance(arrived, Branch):
            match arrived.purpose:
                case "draft":
                    self._enter_draft(node, arrived)
                case "guess":
                    self._enter_guess(node, arrived)
                case "read":
                    self._enter_read(nodes, arrived)
                case _:
                    self._enter_target(node, arrived)
        arrived.release()
        return nodes

    def _enter_draft(self, node: Node, branch: Branch) -> None:
        child = branch.child
        assert child is not None
        if child.verdict is not None:
            return  # the draft came too late and is rejected already
        if isinstance(branch.result, LookaheadError):
            self._context.draft_failed(branch.result)
            self.judging.reject(child, "draft", str(branch.result), failed=True)
            return
        self.reader.compare_prompts(branch, node)
        tokenizer = self.roles["draft"].tokenizer
        room = self.tree.room(node)
        drafted, child.state = written_step(branch, tokenizer)
        tokens = tokens_of(drafted, tokenizer, self.roles["target"].tokenizer, room)
        if not drafted.ids or tokens > room:
            why = "the step is empty, or exceeds the token budget"
            self.judging.reject(child, "draft", why, failed=True)
            return
        child.confidence = branch.result.confidence(len(drafted.ids))
        self.tree.enter_draft(child, drafted, tokens)
        self._context.emitter.drafted(child)
        version = node.version
        if version.read_first and child.alternative == 0 and version.branch is None:
            version.guess = drafted.ids

    def _enter_target(self, node: Node, branch: Branch) -> None:
        if isinstance(branch.result, LookaheadError):
            self.judging.refuse(node, branch.result)
            return
        made, state = written_step(branch, self.roles["target"].tokenizer)
        self._enter_version(node, made, state)
        for late in node.children:
            if late.step is None and late.verdict is None:
                self.judging.reject(late, "late", "the target was faster than the draft")

    def _enter_version(self, node: Node, step: Step, state: ProgramState) -> None:
        """Enters the target's version of the step after ``node``, and learns how fast it came."""
        version = node.version
        version.complete(step, state)
        self._context.emitter.written(node)
        if version.since:
            seconds = (self._context.now() - version.since) / len(step.ids or "?")
            self.request.experience.reads.version_came(version.was_read, seconds)

    def _enter_guess(self, node: Node, branch: Branch) -> None:
        """Enters what the draft has written after what is known of the target's version, or after
        the guess that the target reads.
        """
        version = node.version
        result = branch.result
        is_next = branch is version.next_guesser
        if branch.outcome is not None:
            return  # it was closed
        if not is_next:
            version.branch = None
        if isinstance(result, LookaheadError):
            self._context.draft_failed(result)
            version.next_guesser = None if is_next else version.next_guesser
        elif is_next:
            version.next_guess = result.ids
        else:
            version.guess = self._guess_of(node, result)
            version.guesser = branch

    def _guess_of(self, node: Node, result: Generation) -> tuple[int, ...]:
        """The tokens of a guess, up to the end of the step unless it may go on after it."""
        known = node.version.known
        if node.version.runs_on:
            return result.ids
        tokenizer = self.roles["draft"].tokenizer
        made = make_step((*known, *result.ids), result.finish, node.step, tokenizer, result.ends)
        return made.ids[len(known) :]

    def _enter_read(self, nodes: Sequence[Node], branch: Branch) -> None:
        """Enters what the target says of the drafted tokens after those prefixes of a branch's path
        where it is needed.
        """
        for node, draws in zip(branch.path, self.reader.draws(branch), strict=True):
            if node in nodes:
                self._enter_draws(node, branch, draws)

    def _enter_draws(self, node: Node, branch: Branch, draws: list[int | None]) -> None:
        """Enters the draws at the drafted tokens after ``node``: they are the target's own, or its
        version is known up to the token that differs.
        """
        version = node.version
        drafted = len(version.guess or ())
        if version.runs_on:
            del draws[max(1, drafted) :]  # the draft goes on, and the next place is read again
        taken = version.take(draws)
        if draws:
            self.reader.agreed(taken.same, drafted, one_read=True)
        else:
            version.read_first = False
        guesser = version.guesser
        version.guesser = None
        outcome = Outcome.ACCEPTED if taken.whole else Outcome.REJECTED
        self.branches.close_branch(guesser, outcome)
        if version.runs_on:
            self.portions.enter(node, branch, taken, read=bool(draws))
            return
        child = node.children[0] if node.children else None
        if guesser is not None:
            self.request.experience.reads.guess_read(taken.tokens)
        elif taken.whole and drafted and child is not None and child.step is not None:
            self._enter_version(node, child.step, child.state)
            return
        most = min(self.request.lookahead.max_step_tokens, self.tree.room(node))
        target = self.roles["target"]
        made = make_step(version.known[:most], "length", node.step, target.tokenizer, target.ends)
        if made.complete or len(made.ids) >= most:
            self._enter_version(node, made, node.state_after(made.tokens()))
            return
        if node is branch.path[0]:  # whose version the branch's outcome is about
            self.branches.close_branch(branch, Outcome.CANCELLED)
        version.branch = None
        if draws and not taken.whole and taken.tokens == taken.same:
            version.guess = ()  # the target has to draw the next token itself

    async def keep_steps(self, branch: Branch, line: DraftLine | None = None) -> None:
        """Waits for a branch of the target after the root, which writes several steps, and keeps
        them: one by one while it streams (it has a line, or the answer's request ``on_tokens``),
        else all at its end.

        Args:
            line: what the draft writes ahead of the branch.

        Raises:
            LookaheadError: it failed; steps may have been kept.
        """
        before = self.tree.root.version.known
        began = len(self.trace.ids)

        def enter(ids: Sequence[int]) -> None:
            if line is not None:
                line.enter_target(ids)
            else:
                known = (*before, *ids)
                self.tree.root.version.known = known[len(self.trace.ids) - began :]

        def more(ids: Sequence[int]) -> None:
            enter(ids)
            self.branches.put(branch)

        if line is not None or self.request.on_tokens is not None:
            branch.on_tokens = more
        while (arrived := await self.branches.first_done()) is not branch or not branch.result:
            if arrived is branch:
                self.keeper.keep_known()
                if line is not None:
                    line.note_kept()
                if self.tree.concluded:
                    branch.cancel()
                    return
            elif line is not None and isinstance(arrived, Branch) and arrived.purpose == "guess":
                line.end_draft(arrived)
            else:
                self._enter(arrived)
        result: Generation | LookaheadError = branch.result
        branch.release()
        if isinstance(result, LookaheadError):
            raise result
        enter(result.ids)
        if not result.ids:
            self.keeper.keep_version(Step("", (), Ending.CAP))
        self.keeper.keep_known(result.finish, result.ends, ended=True)
        if line is not None:
            line.note_kept()
        else:
            self.request.experience.reads.wrote_alone(len(result.ids))
