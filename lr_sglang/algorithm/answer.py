"""One answer in progress: waits for the program's branches, keeps steps, and cancels requests at
the end.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import sglang as sgl

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.branches import Branches, tokens_of, written
from lr_sglang.algorithm.guarded import guarded
from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.algorithm.reader import Reader
from lr_sglang.algorithm.shared_draws import compare_prompts, note_draws
from lr_sglang.config import Sampling
from lr_sglang.engine.branch import Branch, Generation
from lr_sglang.engine.prefix_reuse import common_prefix
from lr_sglang.engine.tokenizer import resolve
from lr_sglang.errors import ConfigError, LookaheadError, PromptTooLong, RuntimeRefused
from lr_sglang.frontend.dsl import backend_of, sync
from lr_sglang.sglang_api.interpreter import ProgramState, SglGen
from lr_sglang.steps.events import SILENT, EventEmitter
from lr_sglang.steps.step import (
    DELIMITER,
    Ending,
    Step,
    StepStop,
    completed,
    make_step,
    split_ids,
)
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.trace import StepRecord
from lr_sglang.steps.tree import Node, Outcome, Pair, StepTree, Verdict, without_a_judge

if TYPE_CHECKING:
    from lr_sglang.algorithm.line import Line

# Share of a runtime's timeout that a verdict may take: shorter than a generation, because a step
# waits for it.
PATIENCE = 0.05
BACKOFF_SECONDS = (
    2.0  # after a failed draft request, before the next one: the target decodes alone meanwhile
)


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

    Attributes:
        tree: the steps so far.
        policy: chooses the nodes that get branches.
        complete: whether the answer has its end.
    """

    def __init__(
        self, s: ProgramState, job: AnswerRequest, prompt_tokens: int, budget: int
    ) -> None:
        self.s, self.job, self.trace = s, job, job.trace
        self.roles = backend_of(s, "target").roles
        self.complete = False
        self._resting: dict[str, float] = {}
        self._steps: dict[tuple[int, bool], SglGen] = {}
        self._loop, look = s.stream_executor.loop, job.lookahead
        # Where only the target's own tokens are kept, a step may begin in the middle of a sentence.
        guard = look.half_sentence_guard and not job.exact
        self.tree = StepTree(look.depth, look.width, budget, guard)
        self.tree.root.state = s
        self.policy = policy.make(look, self.tree, job.experience, self._loop.time)
        self.branches = Branches(self.trace, self._loop, self.policy)
        self.emitter = EventEmitter(job.on_event, self.branches.now) if job.on_event else SILENT
        self.branches.done = self.emitter.done
        self.reader = Reader(job, self.roles, self.can_ask)
        self.trace.prompt_tokens = prompt_tokens
        note_draws(job, self.roles, self.reader)

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

    def ask_verifier(self, child: Node) -> None:
        """Asks the verifier about a drafted step and the target's version of it, once both are
        there, unless it is rejected without it.
        """
        verifier, node, pair = self.job.verifier, child.parent, self.tree.pair(child)
        if node is None or pair is None:
            return
        if verifier is None:
            raise ConfigError("lookahead reasoning needs a verifier")
        self._compare_draws(node, child, pair)
        verdict = without_a_judge(pair, getattr(verifier, "reads_words", True))
        if verdict is None and not self.job.drafts:
            verdict = Verdict(False, "guard", "the judge accepts too many pairs that differ")
        if verdict is not None:
            self._judge(child, verdict)
            return
        track = partial(self._track, node, child)
        child.asked = inquiry = Inquiry(pair, node.state, track, node=node, child=child)
        found = guarded(verifier).verify(inquiry)
        if isinstance(found, Verdict):
            self._judge(child, found)
            return
        task = self.branches.expect_verdict(inquiry, self._timed(found))
        if inspect.iscoroutine(found):
            # a task cancelled before it ran never awaits it
            task.add_done_callback(lambda _: found.close())

    def _compare_draws(self, node: Node, child: Node, pair: Pair) -> None:
        """Counts the tokens on which two versions agree that were written with the same numbers, as
        reading would have shown it.
        """
        same_numbers = self.trace.shared_draws or self.job.sampling.greedy
        if same_numbers and child.alternative == 0 and not node.version.was_read:
            drafted, own = pair.draft.ids or (), pair.target.ids or ()
            same = common_prefix(drafted, own)
            self.job.experience.read_tokens(same, same < min(len(drafted), len(own)))

    def _track(self, node: Node, child: Node, inquiry: Inquiry, state: ProgramState) -> Branch:
        """Makes the branch of a verifier's request to a runtime."""
        branch = self.begin("judge", state, node, child)
        # a verifier that draws, and asks several times, gets a different reply each time
        where = node.lineage, child.alternative, len(inquiry.branches)
        branch.seed = self.job.seed("verifier", node.position, *where)
        branch.patience = PATIENCE
        branch.answered_by = state.stream_executor.backend.role
        inquiry.branches.append(branch)
        state.stream_executor.when_done(lambda: self.branches.ended(branch))
        if child.dropped or child.verdict is not None or node.chosen is not None:
            self.branches.give_up(branch, Outcome.CANCELLED)  # the step was decided meanwhile
        return branch

    async def _timed(self, found: Awaitable[Verdict]) -> Verdict:
        asked = self.branches.now()
        verdict = await found
        return dataclasses.replace(verdict, seconds=self.branches.now() - asked)

    def _judge(self, child: Node, verdict: Verdict) -> None:
        """Enters a verdict in the tree; one that comes after another is ignored."""
        if child.verdict is None:
            child.verdict = verdict
            self.emitter.verified(child, verdict)

    def can_ask(self, role: str) -> bool:
        """Whether a role can be asked for a step: it has a runtime, may draft, and did not fail a
        moment ago.
        """
        if role == "draft" and not self.job.drafts:
            return False
        return role in self.roles and self._resting.get(role, 0.0) <= self._loop.time()

    def writer_of_rest(self, node: Node) -> str:
        """The role that writes the rest of the target's step after ``node``: the draft where the
        target reads it again and that pays, else the target.
        """
        guesses = (
            node.version.read_first and self.job.experience.guesses_pay() and self.can_ask("draft")
        )
        return "draft" if guesses else "target"

    def gen_step(self, node: Node, role: str) -> SglGen:
        """``dsl.step`` for the step after ``node``: its token limit, the sampling,
        log-probabilities for the gate.
        """
        tokens = min(self.job.lookahead.max_step_tokens, self.tree.room(node))
        gated = role == "draft" and self.job.lookahead.gate > 0
        tokens -= len(node.version.known)
        made = self._steps.get((tokens, gated))
        if made is None:
            more: dict[str, Any] = {"return_logprob": True} if gated else {}
            made = self.gen(node, role, tokens, stop=StepStop(DELIMITER), **more)
            if not self.job.constraints.names():  # shared by all branches
                self._steps[tokens, gated] = made
        return made

    def gen_rest(self, node: Node, role: str) -> SglGen:
        """``gen_step`` for the rest of the target's step after ``node``; of the draft, so many of
        its tokens as are read at a time.
        """
        if role == "target":
            return self.gen_step(node, role)
        room = min(self.job.lookahead.max_step_tokens, self.tree.room(node))
        tokens = min(self.job.experience.piece(), room - len(node.version.known))
        return self.gen(node, role, tokens, self.reader.draft_sampling(), stop=StepStop(DELIMITER))

    def gen_read(self, node: Node) -> SglGen:
        """The ``sgl.gen`` by which the target reads the drafted tokens after ``node``, and writes
        one more.
        """
        return self.gen(node, "target", 1, **self.reader.options(len(node.version.guess or ())))

    def text(self, ids: tuple[int, ...] | None) -> TokenText:
        """Tokens of the target's vocabulary, to append to a program's state."""
        known = self.roles["target"].tokenizer
        return TokenText.of(known.decode(ids), ids, known.vocabulary) if ids else TokenText()

    def gen(
        self,
        node: Node,
        role: str,
        tokens: int,
        sampling: Sampling | None = None,
        *,
        after: tuple[int, ...] = (),
        **more: Any,
    ) -> SglGen:
        """A ``sgl.gen`` of up to so many tokens after ``node`` and the tokens ``after`` it, drawn
        as the answer's request or ``sampling`` says, within its constraints; ``more`` are options
        of ``sgl.gen``.
        """
        beyond: dict[str, Any] = {}
        if self.job.constraints.names():
            one, known = self.roles[role], self.roles["target"].tokenizer
            ids: tuple[int, ...] = ()
            at: Node | None = node
            while at is not None and at is not self.tree.root and at.step is not None:
                ids, at = resolve(at.step.tokens(), known) + ids, at.parent
            options, beyond = self.job.constraints.after(
                (*self.trace.ids, *ids, *after),
                tokens,
                one.tokenizer.vocabulary == known.vocabulary,
                one.counts_written,
            )
            more |= options
        drawn_as = (sampling or self.job.sampling).drawn()
        made = sgl.gen("step", max_tokens=tokens, **drawn_as, **more)
        made.sampling_params = self.s.stream_executor.resolve(made.sampling_params)
        made.sampling_params.more = beyond
        return made

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
            self._enter_verdict(arrived)
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

    def _enter_verdict(self, inquiry: Inquiry) -> None:
        if not isinstance(inquiry.result, Verdict):
            raise inquiry.result
        if inquiry.result.failed:
            self.trace.failed("judge", f"verifier {inquiry.result.by}: {inquiry.result.reason}")
        if inquiry.child is not None:
            self._judge(inquiry.child, inquiry.result)

    def _enter_draft(self, node: Node, child: Node, branch: Branch) -> None:
        if child.verdict is not None:
            return  # the draft came too late and is rejected already
        if isinstance(branch.result, LookaheadError):
            self.draft_failed(branch.result)
            self._judge(child, Verdict(False, "draft", str(branch.result), failed=True))
            return
        compare_prompts(self.job, self.roles["target"], branch, node)
        known, room = self.roles["draft"].tokenizer, self.tree.room(node)
        drafted, child.state = written(branch, known)
        tokens = tokens_of(drafted, known, self.roles["target"].tokenizer, room)
        if not drafted.ids or tokens > room:
            self._judge(
                child,
                Verdict(
                    False, "draft", "the step is empty, or exceeds the token budget", failed=True
                ),
            )
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
            self._refuse_unreadable(node, branch.result)
            return
        made, state = written(branch, self.roles["target"].tokenizer)
        self._enter_version(node, made, state)
        for late in node.children:
            if late.step is None and late.verdict is None:
                self._judge(late, Verdict(False, "late", "the target was faster than the draft"))

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

    def _refuse_unreadable(self, node: Node, error: LookaheadError) -> None:
        """Rejects the drafted step at ``node`` if the target's server refused its tokens; raises
        any other error.
        """
        refused = (
            isinstance(error, RuntimeRefused)
            and not error.retryable
            and not isinstance(error, PromptTooLong)
        )
        if not refused or node.source != "draft" or node.verdict is not None:
            raise error
        self.trace.failed("draft", f"the target refused its tokens: {error.message}")
        self._judge(node, Verdict(False, "draft", str(error), failed=True))

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
