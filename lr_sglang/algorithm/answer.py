"""One answer in progress: waits for the program's branches, keeps steps, and cancels requests at
the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.branches import Branches, tokens_of, written
from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.algorithm.judging import Judging
from lr_sglang.algorithm.reader import Reader
from lr_sglang.algorithm.shared_draws import compare_prompts, exactness, note_draws
from lr_sglang.algorithm.step_gens import StepGens
from lr_sglang.engine.branch import Branch, Generation
from lr_sglang.engine.tokenizer import resolve
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.dsl import backend_of, sync
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.events import SILENT, EventEmitter
from lr_sglang.steps.step import (
    Ending,
    Step,
    completed,
    make_step,
    split_ids,
    up_to_marker,
)
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.trace import StepRecord
from lr_sglang.steps.tree import Node, Outcome, StepTree, Verdict

if TYPE_CHECKING:
    from lr_sglang.algorithm.line import Line

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
        complete: whether the answer has its end.
        concluded: whether its thinking is over, and what follows is an answer of its own.
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
        self.complete = self.concluded = False
        self._before = before
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
        return self.complete or self.concluded

    def conclusion(self) -> Answer:
        """The answer after the thinking, in the same turn: each of its tokens is the target's."""
        root = self.tree.root
        for node in (*root.children, *([root.correction] if root.correction else ())):
            self._drop(node, Outcome.CANCELLED)
        for branch in (root.version.branch, root.version.guesser):
            self.branches.give_up(branch, Outcome.CANCELLED)
        root.dropped = True
        room = self.tree.room(self.tree.root)
        return Answer(self.s, self.job.concluding(), self.trace.prompt_tokens, room, self)

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
        branch = self.begin(role, state, node, child)
        version = node.version
        if child is None:
            version.branch = branch
        else:
            child.drafting = branch
            version.since = version.since or self._loop.time()
        if role == "draft" and version.read_first:
            self.reader.hurry(branch)
        branch.reads = role == "target" and version.guess is not None
        self.branches.expect(branch)
        return branch

    def begin(self, role: str, state: ProgramState, node: Node, child: Node | None) -> Branch:
        """Makes a branch, after ``node``, for the next generation of ``state``."""
        alternative = child.alternative if child else 0
        seed, place = self.job.draws(role, node, alternative)
        ahead = self.tree.ahead(node)
        if child is None:
            place += node.version.place
        branch = Branch(role, node.position, alternative, seed, self.job.key, ahead, place)
        branch.state, branch.node, branch.child = state, node, child
        state.stream_executor.request = branch
        # a place in the middle of a step is no node of the tree, nor is one that was left behind
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
        """Enters what the draft has written after what is known of the target's version."""
        version, result = node.version, branch.result
        version.branch = None
        if isinstance(result, LookaheadError):
            self.draft_failed(result)
            return
        ids = (*version.known, *result.ids)
        made = make_step(ids, result.finish, node.step, self.roles["draft"].tokenizer, result.ends)
        version.guess = made.ids[len(version.known) :]
        version.guesser = branch

    def _enter_read(self, node: Node, branch: Branch) -> None:
        """Enters what the target says of the drafted tokens after ``node``: they are its own, or
        its version is known up to the token that differs.
        """
        version, drafted = node.version, len(node.version.guess or ())
        draws = self.reader.draws(branch, drafted)
        taken = version.take(draws)
        if draws:
            self.reader.agreed(taken.same, drafted, one_read=True)
        else:
            version.read_first = False
        child = node.children[0] if node.children else None
        if version.guesser is not None:
            self.job.experience.guessed(taken.tokens)
            outcome = Outcome.ACCEPTED if taken.whole else Outcome.REJECTED
            self.branches.give_up(version.guesser, outcome)
            version.guesser = None
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

    def cancel_all_but_chosen(self, node: Node) -> None:
        """Cancels, on the server too, the branches after versions that were not chosen for the step
        after ``node``.
        """
        for child in (c for c in node.children if c is not node.chosen):
            refused = (
                child.verdict and not child.verdict.accepted
            )  # another draft may have been accepted too
            self._drop(child, Outcome.REJECTED if refused else Outcome.CANCELLED)

    def _drop(self, node: Node, outcome: Outcome) -> None:
        """Drops a node: the branches of its step get ``outcome``, all branches after it are
        cancelled.
        """
        for below in self.tree.drop(node):
            own = outcome if below is node else Outcome.CANCELLED
            for branch in _branches_of(below):
                self.branches.give_up(branch, own)
            for unread in (below.version.branch, below.version.guesser):
                self.branches.give_up(unread, Outcome.CANCELLED)
            self.emitter.dropped(below.source, below.parent, below, own)
            below.release()

    def keep(self, node: Node) -> TokenText:
        """Makes ``node`` a step of the answer: closes its branches and records it. Returns its
        text, which the caller adds to the program's state.
        """
        parent, kept = node.parent, node.step
        assert parent is not None and kept is not None
        drafted = node.source == "draft"
        if kept.closes_thinking and self.job.concludes:
            known = self.roles["draft" if drafted else "target"].tokenizer
            node.step = kept = up_to_marker(kept, parent.step, known)
            used = len(resolve(kept.tokens(), self.roles["target"].tokenizer))
            node.tokens_used = parent.tokens_used + used
            self.concluded = True
        if self.tree.ends(node) and not kept.complete:
            node.step = kept = completed(
                kept, self.roles["draft" if drafted else "target"].tokenizer
            )
        outcome = (
            Outcome.ACCEPTED if drafted else Outcome.CORRECTED if parent.children else Outcome.BONUS
        )
        for branch in (*_branches_of(node), parent.version.branch):
            self.branches.give_up(branch, outcome)
        self._record(
            kept,
            node.source,
            outcome.value,
            target_text=own.text if (own := parent.version.step) else None,
            draft_texts=tuple(c.step.text if c.step else None for c in parent.children),
            verdicts=tuple(c.verdict for c in parent.children),
            confidences=tuple(c.confidence for c in parent.children)
            if self.job.lookahead.gate
            else (),
        )
        self.emitter.kept(parent, node, outcome)
        if self._before is None:
            self.policy.decided(parent)
        self.trace.cycles += not drafted and self.job.verifier is not None
        if self.tree.ends(node):
            self.trace.finish, self.complete = "stop" if kept.final else "length", True
            self.emitter.ended(node, self.trace.finish)
        elif any(backend.pool.waiting for backend in self.roles.values()):
            self._reorder(node)
        node.release()  # frees the memory of earlier steps
        return kept.tokens()

    def _reorder(self, root: Node) -> None:
        """Updates the order of requests that wait for a slot: each is now one step nearer to the
        root.
        """
        for node in root.subtree():
            for branch in (*_branches_of(node), node.version.branch):
                if branch is not None and branch.ended is None and not branch.sent:
                    for pool in {
                        backend.pool for backend in self.roles.values()
                    }:  # a verifier may ask any role
                        pool.reorder(branch, branch.position - root.position)

    async def keep_steps(self, line: Line | None = None) -> None:
        """Waits for the target's branch after the root, of several steps, and keeps them: each when
        it is written if the branch has a line or the answer's request ``on_tokens``, else all at
        the end.

        Args:
            line: what the draft writes ahead of the branch.

        Raises:
            LookaheadError: it failed; steps may have been kept.
        """
        root, known = self.tree.root, self.roles["target"].tokenizer
        before, kept, branch = root.step, 0, root.version.branch
        assert branch is not None

        def more(ids: Sequence[int]) -> None:
            branch.so_far = ids
            if line is not None:
                line.heard(ids)
            self.branches.put(branch)

        if line is not None:
            # it writes on, whatever becomes of the step that was begun
            self.branches.give_up(branch, Outcome.BONUS)
            root.version.branch = None
        if line is not None or self.job.on_tokens is not None:
            branch.on_tokens = more
        while (arrived := await self.branches.first_done()) is not branch or not branch.result:
            if arrived is not branch:
                if line is not None and isinstance(arrived, Branch) and arrived.child is None:
                    line.draft_ended(arrived)
                else:
                    self._enter(arrived)
                continue
            steps = split_ids(branch.so_far[kept:], "length", known, frozenset(), before)
            for step in (one for one in steps if one.complete):
                kept, before = kept + len(step.ids), step
                self._keep_alone(step, line)
                if self.concluded:
                    branch.cancel()
                    return
            if self.job.on_tokens is not None:
                self.job.on_tokens(branch.so_far[kept:])
        result: Generation | LookaheadError = branch.result
        branch.release()
        if isinstance(result, LookaheadError):
            raise result
        if line is not None:
            line.heard(result.ids)
        for step in split_ids(result.ids[kept:], result.finish, known, result.ends, before):
            self._keep_alone(step, line)
            if self.concluded:
                break
        if not result.ids:
            self._keep_alone(Step("", (), Ending.CAP), line)

    def _keep_alone(self, step: Step, line: Line | None) -> None:
        """Keeps a step that the target has written in one request with others."""
        if line is None:
            self._keep_written(step)
            return
        drafted = line.version(step)
        line.step_kept(step)
        self.keep_read(step, drafted, by="line")

    def _keep_written(self, step: Step) -> None:
        """Keeps a step that the target has written alone."""
        node = self.tree.root
        after = node.state.fork(1)[0]
        after += step.tokens()
        node.version.complete(step, after)
        self.tree.decide(node)
        self.s += self.keep(self.tree.advance() or node)

    def keep_read(self, step: Step, drafted: Step | None, by: str = "reading") -> None:
        """Keeps a step that the target has read.

        Args:
            drafted: the draft's version, which may be the step itself; None if it wrote none. It
                counts in exact answers only: no judge was asked.
            by: what has compared the two.
        """
        node = self.tree.root
        if drafted is not None and self.job.exact:
            (child,) = self.tree.add_children(node, 1)
            self.tree.drafted(child, drafted)
            child.state = node.state.fork(1)[0]
            child.state += drafted.tokens()
            self.emitter.drafted(child)
            child.verdict = Verdict(drafted is step, by)
            self.emitter.verified(child, child.verdict)
        node.version.step = step
        self.emitter.written(node)
        self._keep_written(step)

    def _record(self, kept: Step, source: str, outcome: str, **versions: Any) -> None:
        position, seconds = len(self.trace.steps), self.branches.now()
        record = StepRecord(
            position,
            kept.text,
            len(kept.ids),
            source,
            outcome,
            kept.ending.value,
            seconds,
            **versions,
        )
        self.trace.add(record, resolve(kept.tokens(), self.roles["target"].tokenizer))
        if self.job.on_step:
            self.job.on_step(record)


def _branches_of(node: Node) -> Iterator[Branch]:
    """The branches that drafted the step leading to ``node``, and those of the verifiers that
    checked it.
    """
    if node.drafting is not None:
        yield node.drafting
    if node.asked is not None:
        yield from node.asked.branches
