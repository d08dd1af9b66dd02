"""The steps of an answer as they are kept: what becomes of their branches, and the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.branches import Branches
from lr_sglang.algorithm.judging import Judging
from lr_sglang.algorithm.policy import Policy
from lr_sglang.engine.tokenizer import resolve
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.branch import Branch, Outcome
from lr_sglang.steps.events import EventEmitter
from lr_sglang.steps.step import Step, completed, split_ids, up_to_marker
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.trace import StepRecord
from lr_sglang.steps.tree import Node, StepTree, Verdict

if TYPE_CHECKING:
    from lr_sglang.algorithm.draft_line import DraftLine


class Keeper:
    """Keeps the steps of one answer, and drops the versions that were not chosen.

    Args:
        policy: learns from verdicts; None: from none.
        state: of the answer, which grows by the steps that are known to be the target's.
    """

    def __init__(
        self,
        job: AnswerRequest,
        roles: Mapping[str, RuntimeBackend],
        tree: StepTree,
        branches: Branches,
        judging: Judging,
        policy: Policy | None,
        emitter: EventEmitter,
        state: ProgramState,
    ) -> None:
        self._job = job
        self._trace = job.trace
        self._roles = roles
        self._tree = tree
        self._branches = branches
        self._judging = judging
        self._policy = policy
        self._emitter = emitter
        self._state = state

    def drop_others(self, node: Node) -> None:
        """Cancels, on the server too, the branches after versions that were not chosen for the step
        after ``node``.
        """
        for child in (c for c in node.children if c is not node.chosen):
            # another draft may have been accepted too
            refused = child.verdict and not child.verdict.accepted
            self.drop(child, Outcome.REJECTED if refused else Outcome.CANCELLED)

    def drop(self, node: Node, outcome: Outcome) -> None:
        """Drops a node: the branches of its step get ``outcome``, all branches after it are
        cancelled.
        """
        for below in self._tree.drop(node):
            own = outcome if below is node else Outcome.CANCELLED
            for branch in _branches_of(below):
                self._branches.give_up(branch, own)
            for unread in (below.version.branch, below.version.guesser):
                self._branches.give_up(unread, Outcome.CANCELLED)
            self._emitter.dropped(below.source, below.parent, below, own)
            below.release()

    def keep(self, node: Node) -> TokenText:
        """Makes ``node`` a step of the answer: closes its branches and records it. Returns its
        text, which the caller adds to the program's state.
        """
        parent, kept = node.parent, node.step
        assert parent is not None and kept is not None
        drafted = node.source == "draft"
        if kept.closes_thinking and self._job.concludes:
            known = self._roles["draft" if drafted else "target"].tokenizer
            node.step = kept = up_to_marker(kept, parent.step, known)
            used = len(resolve(kept.tokens(), self._roles["target"].tokenizer))
            node.tokens_used = parent.tokens_used + used
            self._tree.concluded = True
        if self._tree.ends(node) and not kept.complete:
            node.step = kept = completed(
                kept, self._roles["draft" if drafted else "target"].tokenizer
            )
        outcome = (
            Outcome.ACCEPTED if drafted else Outcome.CORRECTED if parent.children else Outcome.BONUS
        )
        for branch in (*_branches_of(node), parent.version.branch):
            self._branches.give_up(branch, outcome)
        self._record(
            kept,
            node.source,
            outcome.value,
            target_text=own.text if (own := parent.version.step) else None,
            draft_texts=tuple(c.step.text if c.step else None for c in parent.children),
            verdicts=tuple(c.verdict for c in parent.children),
            confidences=tuple(c.confidence for c in parent.children)
            if self._job.lookahead.gate
            else (),
        )
        self._emitter.kept(parent, node, outcome)
        if self._policy is not None:
            self._policy.decided(parent)
        self._trace.cycles += not drafted and self._job.verifier is not None
        if self._tree.ends(node):
            self._trace.finish = "stop" if kept.final else "length"
            self._emitter.ended(node, self._trace.finish)
        elif any(backend.pool.waiting for backend in self._roles.values()):
            self._reorder(node)
        node.release()  # frees the memory of earlier steps
        return kept.tokens()

    def _reorder(self, root: Node) -> None:
        """Updates the order of requests that wait for a slot: each is now one step nearer to the
        root.
        """
        pools = {backend.pool for backend in self._roles.values()}  # a verifier may ask any role
        for node in root.subtree():
            for branch in (*_branches_of(node), node.version.branch):
                if branch is not None and branch.ended is None and not branch.sent:
                    for pool in pools:
                        pool.reorder(branch, branch.position - root.position)

    def keep_portions(self) -> None:
        """Keeps the steps that are whole by what was read."""
        root, ends = self._tree.root, self._roles["target"].ends
        known = root.version.known
        if not ends.isdisjoint(known):
            self.keep_known(None, "stop", ends, over=True)
        else:
            self.keep_known(over=len(known) >= self._tree.room(root))

    def keep_known(
        self,
        line: DraftLine | None = None,
        finish: str = "length",
        ends: frozenset[int] = frozenset(),
        *,
        over: bool = False,
    ) -> None:
        """Keeps the steps that are whole by what is known after the root.

        Args:
            line: what the draft has written ahead of the target.
            finish, ends: as of ``split_ids``.
            over: whether the generation has ended: then the last step is kept as it is.
        """
        root, known = self._tree.root, self._roles["target"].tokenizer
        for step in split_ids(root.version.known, finish, known, ends, root.step, last=False):
            if (step.complete or over) and not self._tree.concluded:
                self.keep_version(step, line)
        if self._job.on_tokens is not None and not (over or self._tree.over):
            self._job.on_tokens(self._tree.root.version.known)

    def keep_version(self, step: Step, line: DraftLine | None) -> None:
        """Keeps a step that the target alone has written, or has read; what is known after it
        begins the next version.
        """
        node, version = self._tree.root, self._tree.root.version
        if line is not None:
            drafted, by = line.version(step), "line"
            line.step_kept(step)
        else:
            drafted = version.drafted(step, node.step, self._roles["target"].tokenizer)
            by = "reading"
        rest = version.after(len(step.ids))
        if drafted is not None and self._job.exact:  # else no judge was asked
            (child,) = self._tree.add_children(node, 1)
            self._tree.drafted(child, drafted)
            child.state = node.state.fork(1)[0]
            child.state += drafted.tokens()
            self._emitter.drafted(child)
            self._judging.decide(child, Verdict(drafted is step, by))
        after = node.state.fork(1)[0]
        after += step.tokens()
        version.complete(step, after)
        if line is not None or version.was_read:
            self._emitter.written(node)
        self._tree.decide(node)
        kept = self._tree.advance()
        assert kept is not None
        kept.version = rest
        if rest.ahead is not None:
            rest.ahead.node = kept
        self._state += self.keep(kept)

    def _record(self, kept: Step, source: str, outcome: str, **versions: Any) -> None:
        position, seconds = len(self._trace.steps), self._branches.now()
        record = StepRecord(
            position,
            kept.text,
            len(kept.ids),
            source,
            outcome,
            kept.ending.value,
            seconds,
            concludes=self._job.exact and bool(self._trace.conclusion),
            **versions,
        )
        self._trace.add(record, resolve(kept.tokens(), self._roles["target"].tokenizer))
        if self._job.on_step:
            self._job.on_step(record)


def _branches_of(node: Node) -> Iterator[Branch]:
    """The branches that drafted the step leading to ``node``, and those of the verifiers that
    checked it.
    """
    if node.drafting is not None:
        yield node.drafting
    if node.asked is not None:
        yield from node.asked.branches
