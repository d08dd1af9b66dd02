"""A version that is read portion by portion, while the draft writes the next portion."""

from __future__ import annotations

from lr_sglang.algorithm.answer_context import AnswerContext
from lr_sglang.algorithm.keeper import Keeper
from lr_sglang.algorithm.reader import Reader
from lr_sglang.algorithm.ways import Ways
from lr_sglang.steps.branch import Branch, Generation, Outcome
from lr_sglang.steps.tree import Node, Taken, Version


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
