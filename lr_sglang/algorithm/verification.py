"""The verdicts of one answer: sends pairs to the verifier, and enters its verdicts in the tree."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.branches import Branches
from lr_sglang.algorithm.guarded import guarded
from lr_sglang.algorithm.inquiry import Inquiry, Verifier
from lr_sglang.engine.branch import Branch
from lr_sglang.errors import ConfigError
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.events import EventEmitter
from lr_sglang.steps.tree import Node, Outcome, Pair, Verdict, without_a_judge

Begin = Callable[[str, ProgramState, Node, Node], Branch]
# Share of a runtime's timeout that a verdict may take: shorter than a generation, because a step
# waits for it.
PATIENCE = 0.05


class Verification:
    """Gives pairs of versions to the verifier of an answer's request.

    Args:
        begin: makes the branch of a request to a runtime, as ``Answer.begin``.
    """

    def __init__(
        self, job: AnswerRequest, branches: Branches, emitter: EventEmitter, begin: Begin
    ) -> None:
        self._job, self._branches, self._emitter, self._begin = job, branches, emitter, begin

    def ask_verifier(self, child: Node, pair: Pair) -> None:
        """Asks the verifier about a pair, unless the pair is rejected without it."""
        verifier = self._job.verifier
        if verifier is None:
            raise ConfigError("lookahead reasoning needs a verifier")
        verdict = without_a_judge(pair, getattr(verifier, "reads_words", True))
        if verdict is None and not self._job.drafts:
            verdict = Verdict(False, "guard", "the judge accepts too many pairs that differ")
        if verdict is not None:
            child.verdict = verdict
            self._emitter.verified(child, verdict)
            return
        assert child.parent is not None
        child.asked = self._inquire(child.parent, child, pair)
        self._consult(verifier, child.asked)

    def _inquire(self, node: Node, child: Node, pair: Pair) -> Inquiry:
        def track(inquiry: Inquiry, state: ProgramState) -> Branch:
            branch = self._begin("judge", state, node, child)
            # a verifier that draws, and asks several times, gets a different reply each time
            where = node.lineage, child.alternative, len(inquiry.branches)
            branch.seed = self._job.seed("verifier", node.position, *where)
            branch.patience = PATIENCE
            inquiry.branches.append(branch)
            state.stream_executor.when_done(lambda: self._branches.ended(branch))
            self._emitter.begun("judge", node, child)
            if (
                child.dropped or child.verdict is not None or node.chosen is not None
            ):  # the step was decided meanwhile
                self._branches.give_up(branch, Outcome.CANCELLED)
            return branch

        return Inquiry(pair, node.state, track, node=node, child=child)

    def _consult(self, verifier: Verifier, inquiry: Inquiry) -> None:
        found = guarded(verifier).verify(inquiry)
        if isinstance(found, Verdict):
            self.enter(inquiry, found)
            return
        task = self._branches.expect_verdict(inquiry, self._timed(found, inquiry))
        if inspect.iscoroutine(found):
            task.add_done_callback(
                lambda _: found.close()
            )  # a task cancelled before it ran never awaits it

    async def _timed(self, found: Any, inquiry: Inquiry) -> Verdict:
        asked = self._branches.now()
        verdict: Verdict = await found
        return dataclasses.replace(verdict, seconds=self._branches.now() - asked)

    def enter(self, inquiry: Inquiry, verdict: Verdict) -> None:
        """Enters a verdict in the tree."""
        child = inquiry.child
        if child is None or child.verdict is not None:
            return  # rejected meanwhile: the target's server refused the tokens of this step
        child.verdict = verdict
        self._emitter.verified(child, verdict)
