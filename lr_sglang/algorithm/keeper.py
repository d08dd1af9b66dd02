"""The steps of an answer as they are kept: what becomes of their branches, and the record; and a
version that is read portion by portion, whose steps are kept as they are known.
"""

from __future__ import annotations

from collections.abc import Iterator

from lr_sglang.algorithm.answer_request import AnswerContext
from lr_sglang.algorithm.judging import Judging
from lr_sglang.algorithm.reader import Reader
from lr_sglang.algorithm.ways import Ways
from lr_sglang.engine.tokenizer import resolve
from lr_sglang.steps.branch import Branch, Generation, Outcome
from lr_sglang.steps.step import Step, Verdict, completed, split_ids, up_to_marker
from lr_sglang.steps.trace import StepRecord
from lr_sglang.steps.tree import Node, Taken, Version


class Keeper:
    """Keeps the steps of one answer, and drops the versions that were not chosen."""

    def __init__(self, context: AnswerContext, judging: Judging) -> None:
        self._request = context.request
        self._trace = context.trace
        self._tree = context.tree
        self._branches = context.branches
        self._context = context
        self._judging = judging

    @property
    def _is_conclusion(self) -> bool:
        """Whether these are the steps after a judged thinking."""
        return self._request.exact and bool(self._trace.conclusion)

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
                self._branches.close_branch(branch, own)
            for unread in (below.version.branch, below.version.guesser):
                self._branches.close_branch(unread, Outcome.CANCELLED)
            self._context.emitter.dropped(below.source, below.parent, below, own)
            below.release()

    def keep_decided(self) -> None:
        """Keeps each step that is decided, up to the first that is not."""
        while not self._tree.over and (kept := self._tree.advance()):
            self._keep(kept)

    def _keep(self, node: Node) -> None:
        """Makes ``node``, the root, a step of the answer: closes its branches, records it, and adds
        its text to the program's state.
        """
        parent = node.parent
        kept = node.step
        assert parent is not None and kept is not None
        drafted = node.source == "draft"
        tokenizer = self._context.roles[node.source].tokenizer
        if kept.closes_thinking and self._request.splits_after_thinking:
            node.step = kept = up_to_marker(kept, parent.step, tokenizer)
            used = len(resolve(kept.tokens(), self._context.target.tokenizer))
            node.tokens_used = parent.tokens_used + used
            self._tree.concluded = True
        if self._tree.is_last(node) and not kept.complete:
            node.step = kept = completed(kept, tokenizer)
        outcome = (
            Outcome.ACCEPTED if drafted else Outcome.CORRECTED if parent.children else Outcome.BONUS
        )
        for branch in (*_branches_of(node), parent.version.branch):
            self._branches.close_branch(branch, outcome)
        self._record(kept, node.source, outcome, parent)
        self._context.emitter.kept(parent, node, outcome)
        if not self._is_conclusion:
            self._context.policy.learn(parent)
        self._trace.cycles += not drafted and self._request.verifier is not None
        if self._tree.is_last(node):
            self._trace.finish = "stop" if kept.final else "length"
            self._context.emitter.ended(node, self._trace.finish)
        elif any(backend.slots.waiting for backend in self._context.roles.values()):
            self._reorder(node)
        node.release()  # frees the memory of earlier steps
        state = self._context.state
        state += kept.tokens()

    def _reorder(self, root: Node) -> None:
        """Updates the order of requests that wait for a slot: each is now one step nearer to the
        root.
        """
        # a verifier may ask any role
        pools = {backend.slots for backend in self._context.roles.values()}
        for node in root.subtree():
            for branch in (*_branches_of(node), node.version.branch):
                if branch is not None and branch.ended is None and not branch.sent:
                    for pool in pools:
                        pool.reorder(branch, branch.position - root.position)

    def keep_portions(self) -> None:
        """Keeps the steps that are whole by what was read."""
        root = self._tree.root
        ends = self._context.target.ends
        known = root.version.known
        if not ends.isdisjoint(known):
            self.keep_known("stop", ends, ended=True)
        else:
            self.keep_known(ended=len(known) >= self._tree.room(root))

    def keep_known(
        self,
        finish: str = "length",
        ends: frozenset[int] = frozenset(),
        *,
        ended: bool = False,
    ) -> None:
        """Keeps the steps that are whole by what is known after the root; tells the request's
        ``on_tokens`` what is known after them.

        Args:
            finish, ends: as of ``split_ids``.
            ended: whether the generation has: then the last step is kept as it is.
        """
        root = self._tree.root
        tokenizer = self._context.target.tokenizer
        for step in split_ids(root.version.known, finish, tokenizer, ends, root.step, last=False):
            if (step.complete or ended) and not self._tree.concluded:
                self.keep_version(step)
        if self._request.on_tokens is not None and not (ended or self._tree.over):
            self._request.on_tokens(self._tree.root.version.known)

    def keep_version(self, step: Step) -> None:
        """Keeps a step that the target alone has written, or has read; what is known after it
        begins the next version.
        """
        node = self._tree.root
        version = node.version
        target = self._context.target
        drafted = version.draft_version(step, node.step, target.tokenizer, target.ends)
        rest = version.after(len(step.ids))
        if drafted is not None and self._request.exact:  # else no judge was asked
            (child,) = self._tree.add_children(node, 1)
            self._tree.enter_draft(child, drafted)
            child.state = node.state_after(drafted.tokens())
            self._context.emitter.drafted(child)
            self._judging.enter_verdict(child, Verdict(drafted is step, "reading"))
        version.complete(step, node.state_after(step.tokens()))
        if version.was_read:
            self._context.emitter.written(node)
        self._tree.decide(node)
        assert node.chosen is not None
        node.chosen.version = rest
        if rest.next_guesser is not None:
            rest.next_guesser.node = node.chosen
        self.keep_decided()

    def _record(self, kept: Step, source: str, outcome: Outcome, before: Node) -> None:
        """Records a step, and the versions after the prefix ``before`` that were there for it."""
        own = before.version.step
        gated = before.children if self._request.lookahead.gate else ()
        record = StepRecord(
            len(self._trace.steps),
            kept.text,
            len(kept.ids),
            source,
            outcome.value,
            kept.ending.value,
            self._branches.now(),
            target_text=own.text if own else None,
            draft_texts=tuple(c.step.text if c.step else None for c in before.children),
            verdicts=tuple(c.verdict for c in before.children),
            confidences=tuple(c.confidence for c in gated),
            after_thinking=self._is_conclusion,
        )
        self._trace.add(record, resolve(kept.tokens(), self._context.target.tokenizer))
        if self._request.on_step:
            self._request.on_step(record)


def _branches_of(node: Node) -> Iterator[Branch]:
    """The branches that drafted the step leading to ``node``, and those of the verifiers that
    checked it.
    """
    if node.drafting is not None:
        yield node.drafting
    if node.asked is not None:
        yield from node.asked.branches


class Portions:
    """Goes on with the root's version portion by portion, and keeps the steps that are whole."""

    def __init__(self, context: AnswerContext, reader: Reader, ways: Ways, keeper: Keeper) -> None:
        self._tree = context.tree
        self._branches = context.branches
        self._context = context
        self._reader = reader
        self._ways = ways
        self._keeper = keeper

    def enter_check(self, written: Branch, wrote: Generation, again: Branch) -> None:
        """Enters what the target has written and read again; an exact answer goes on after it."""
        self._reader.check(wrote, again)
        self._branches.close_branch(again, Outcome.CANCELLED)
        self._branches.close_branch(written, Outcome.BONUS)
        version = self._tree.root.version
        version.guess = None
        version.branch = None
        if self._context.request.exact:
            version.known = wrote.ids
            version.agreed = [False] * len(wrote.ids)
            version.was_read = True
            self._keeper.keep_portions()
        written.release()
        again.release()

    def enter(self, node: Node, branch: Branch, taken: Taken, *, read: bool) -> None:
        """Goes on after a portion that was read, and keeps the steps that are whole by it."""
        version = node.version
        self._branches.close_branch(branch, Outcome.ACCEPTED if taken.whole else Outcome.CORRECTED)
        version.branch = None
        if read:
            self._context.request.experience.reads.portion_read(taken.tokens)
        if not taken.whole:
            self._stop_drafting()
            if read and taken.tokens == taken.same:
                version.guess = ()  # the target has to write the next token itself
        self._keeper.keep_portions()

    def end(self) -> None:
        """Ends reading portion by portion: what is known stays."""
        self._stop_drafting()
        root = self._tree.root
        root.version.runs_on = False
        root.version.guess = None
        if not root.version.known:
            root.version = Version()

    def _stop_drafting(self) -> None:
        """Gives up what the draft writes ahead of the portion that the target reads."""
        version = self._tree.root.version
        self._branches.close_branch(version.next_guesser, Outcome.CANCELLED)
        version.next_guesser = None
        version.next_guess = None

    def next_portion(self) -> bool:
        """Makes what the draft wrote ahead the portion that is read next, unless one is in flight.
        Returns False where the target reads no more.
        """
        version = self._tree.root.version
        if self._tree.over or version.branch is not None:
            return not self._tree.over
        version.runs_on = True
        if not self._ways.wants_portion(version):
            return False
        version.go_on()
        return True

    def drafts_on(self) -> bool:
        """Whether the draft may go on after the portion that the target reads now."""
        version = self._tree.root.version
        return (
            version.branch is not None
            and version.branch.purpose == "read"
            and bool(version.guess)
            and version.next_guesser is None
            and not version.last_portion
            and self._context.request.lookahead.schedule == "async"
            and self._tree.room(self._tree.root) > version.size
            and self._context.target.ends.isdisjoint(version.guess or ())
            and self._context.can_ask("draft")
        )
