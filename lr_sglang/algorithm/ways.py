"""How the target's next version comes to be: the one place that programs ask. By the settings, what
the servers can, and what the policy (``Turns``) and ``ReadStatistics`` find faster.
"""

from __future__ import annotations

from lr_sglang.algorithm.answer_request import AnswerContext
from lr_sglang.algorithm.policy.read_statistics import TOKENS_ALONE
from lr_sglang.algorithm.policy.turns import Way
from lr_sglang.algorithm.reader import Reader
from lr_sglang.engine.server_facts import FedLayer
from lr_sglang.steps.tree import Version


class Ways:
    """Decides how the target's versions come to be in one answer: as the settings say, the servers
    can, and was faster so far.

    Args:
        reader: says whether drafted tokens can be read.
    """

    def __init__(self, context: AnswerContext, reader: Reader) -> None:
        self._request = context.request
        self._experience = context.request.experience
        self._reads = self._experience.reads
        self._context = context
        self._reader = reader
        self._way: Way = "written"
        self._feeds: bool | None = None

    def next_way(self) -> Way:
        """Decides the way of the next versions; ``written`` is the tree's, whichever of its steps
        are read first. Records why none is fed or drafted.
        """
        if self._feeds is None:
            self._feeds = self._can_feed()
        self._reads.can_read = self._can_read()
        self._way = self._after(self._way)
        return self._way

    def _after(self, last: Way) -> Way:
        if self._request.exact:
            if self._feeds:
                return "fed"
            if self._context.trace.alone:
                return "alone"
            if last == "portions":
                return "alone"  # for a while, then reading is tried again
            if self._reads_portions():
                return "portions" if self._reads.portions_pay() else "alone"
        if not self._context.policy.tokens_alone():
            return "written"
        if self._feeds and self._context.policy.way == "fed":
            return "fed"
        return "portions" if self._reads_portions() else "alone"

    def tokens_at_once(self) -> int:
        """Tokens that the target may write in one generation, fed or alone."""
        tree = self._context.tree
        if self._request.exact and (self._feeds or self._context.trace.alone):
            return tree.room(tree.root)
        return self._context.policy.tokens_alone() or TOKENS_ALONE

    def reads_first(self) -> bool:
        """Whether the target reads the next drafted step before it writes its version; asked once
        for each step.
        """
        if not self._can_read():
            return False
        if self._request.lookahead.reading == "first":
            return True
        if (way := self._context.policy.way) is not None:
            return way == "read"
        return self._reads.reads_next(self._experience.read_times())

    def guesses_rest(self, version: Version) -> bool:
        """Whether the draft writes what is missing of a version, and the target reads it again,
        because that pays; else the target writes it.
        """
        if version.runs_on or not version.read_first:
            return version.runs_on
        return self._context.can_ask("draft") and self._reads.guesses_next()

    def wants_portion(self, version: Version) -> bool:
        """Whether a version is read on, by a portion more; where not because the policy has chosen
        another way, one more to the end of the step that was begun, if that is foreseen to pay.
        Notes in the version whether it is the last.
        """
        version.last_portion = not self._reads_portions()
        if self._request.exact:
            pays = self._reads.portions_pay()
        else:
            gain = self._reads.foreseen_gain(self._experience.read_times())
            pays = gain > 1 or not version.last_portion
        pays = pays and self._reader.can_read()
        return pays and (bool(version.known) or not version.last_portion)

    def _can_read(self) -> bool:
        """Whether the target can read, and its server is known to."""
        return self._context.target.readable is True and self._reader.can_read()

    def _reads_portions(self) -> bool:
        """Whether the target reads portions: for an exact answer, and where the policy says so."""
        if self._request.exact:
            return self._reader.can_read()
        return self._context.policy.way == "portions" and self._can_read()

    def _can_feed(self) -> bool:
        """Whether the target's requests that write on after the answer are fed; records why not,
        and where a lossless answer is therefore written by the guesses of the target's own layer:
        drafted steps would seldom be its own to their last tokens.
        """
        facts = self._context.target.facts
        trace = self._context.trace
        feeds = False
        if facts.fed is not None:
            trace.not_fed = self._why_not_fed(facts.fed)
            feeds = not trace.not_fed
            self._experience.fed_tokens = facts.fed.width - 1 if feeds else 0
        if facts.token_layer and self._request.lossless and not feeds:
            layer = f"the target's token layer, {facts.token_layer}, takes no drafts"
            trace.alone = trace.not_fed or layer
        return feeds

    def _why_not_fed(self, fed: FedLayer) -> str:
        """Why what the draft writes is not delivered; empty if it is."""
        request = self._request
        target = self._context.target
        if request.verifier is None or "draft" not in self._context.roles:
            return "nothing is drafted"
        if not self._context.shares_vocabulary("draft"):
            return "draft and target have different vocabularies"
        if not target.facts.streams:
            return "the target's server does not stream"
        if relaxed := target.facts.relaxes(request.parameters):
            return f"the target's server does not verify exactly with {', '.join(relaxed)}"
        if fed.draws == "coins" and not request.sampling.greedy and target.facts.repeatable:
            return "a seed gives another text where drafted tokens are verified (repeatable = true)"
        return ""
