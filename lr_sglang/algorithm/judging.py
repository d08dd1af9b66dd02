"""The verdicts of one answer: which pairs of versions are compared, by whom, and which are rejected
without being asked about.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable
from functools import partial

from lr_sglang.algorithm.answer_request import AnswerContext
from lr_sglang.algorithm.inquiry import Inquiry, guard_verifier
from lr_sglang.errors import ConfigError, LookaheadError, PromptTooLong, RuntimeRefused
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.sglang_api.plugin_protocol import common_prefix
from lr_sglang.steps.branch import Branch, Outcome
from lr_sglang.steps.step import Pair, Verdict, without_a_judge
from lr_sglang.steps.tree import Node

# Share of a runtime's timeout that a verdict may take: shorter than a generation, because a step
# waits for it.
PATIENCE = 0.05


class Judging:
    """Asks the verifier of one answer, and enters verdicts in its tree."""

    def __init__(self, context: AnswerContext) -> None:
        self._request = context.request
        self._branches = context.branches
        self._context = context

    def ask(self, child: Node) -> None:
        """Asks the verifier about a drafted step and the target's version of it, once both are
        there, unless it is rejected without it; counts the tokens on which they agree.
        """
        verifier = self._request.verifier
        node = child.parent
        pair = self._context.tree.pair(child)
        if node is None or pair is None:
            return
        if verifier is None:
            raise ConfigError("lookahead reasoning needs a verifier")
        self._compare_draws(node, child, pair)
        verdict = without_a_judge(pair, getattr(verifier, "reads_words", True))
        if verdict is None and not self._request.drafts:
            verdict = Verdict(False, "untrusted", "the judge accepts too many pairs that differ")
        if verdict is not None:
            self.enter_verdict(child, verdict)
            return
        track = partial(self._track, node, child)
        child.asked = inquiry = Inquiry(pair, node.state, track, node=node, child=child)
        found = guard_verifier(verifier).verify(inquiry)
        if isinstance(found, Verdict):
            self.enter_verdict(child, found)
            return
        task = self._branches.expect_verdict(inquiry, self._timed(found))
        if inspect.iscoroutine(found):
            # a task cancelled before it ran never awaits it
            task.add_done_callback(lambda _: found.close())

    def enter(self, inquiry: Inquiry) -> None:
        """Enters the verdict of an inquiry; raises its error."""
        verdict = inquiry.result
        if not isinstance(verdict, Verdict):
            raise verdict
        if verdict.failed:
            self._request.trace.failed("judge", f"verifier {verdict.by}: {verdict.reason}")
        if inquiry.child is not None:
            self.enter_verdict(inquiry.child, verdict)

    def enter_verdict(self, child: Node, verdict: Verdict) -> None:
        """Enters a verdict in the tree; one that comes after another is ignored."""
        if child.verdict is None:
            child.verdict = verdict
            self._context.emitter.verified(child, verdict)

    def reject(self, child: Node, by: str, why: str, *, failed: bool = False) -> None:
        """Rejects a drafted step without a comparison; ``failed``: it was none."""
        self.enter_verdict(child, Verdict(False, by, why, failed=failed))

    def refuse(self, node: Node, error: LookaheadError) -> None:
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
        self._request.trace.failed("draft", f"the target refused its tokens: {error.message}")
        self.reject(node, "draft", str(error), failed=True)

    def _compare_draws(self, node: Node, child: Node, pair: Pair) -> None:
        """Counts the tokens on which two versions agree that were written with the same numbers, as
        reading would have shown it.
        """
        same_numbers = self._request.trace.shared_draws or self._request.sampling.greedy
        if same_numbers and child.alternative == 0 and not node.version.was_read:
            drafted = pair.draft.ids
            own = pair.target.ids
            same = common_prefix(drafted, own)
            self._request.experience.reads.compared(same, same < min(len(drafted), len(own)))

    def _track(self, node: Node, child: Node, inquiry: Inquiry, state: ProgramState) -> Branch:
        """Makes the branch of a verifier's request to a runtime."""
        branch = self._context.new_branch("verify", state, node, child)
        # a verifier that draws, and asks several times, gets a different reply each time
        where = node.lineage, child.alternative, len(inquiry.branches)
        branch.seed = self._request.seed("verifier", node.position, *where)
        branch.patience = PATIENCE
        branch.answered_by = state.stream_executor.backend.role
        inquiry.branches.append(branch)
        state.stream_executor.when_done(lambda: self._branches.record_end(branch))
        if child.dropped or child.verdict is not None or node.chosen is not None:
            self._branches.close_branch(branch, Outcome.CANCELLED)  # the step was decided meanwhile
        return branch

    async def _timed(self, found: Awaitable[Verdict]) -> Verdict:
        asked = self._branches.now()
        verdict = await found
        return dataclasses.replace(verdict, seconds=self._branches.now() - asked)
