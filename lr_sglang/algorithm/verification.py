"""The verdicts of one answer: which pairs go to a verifier, and what its verdict changes in the tree."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.branches import Branches
from lr_sglang.algorithm.inquiry import Inquiry, Verifier
from lr_sglang.engine.request import Request
from lr_sglang.errors import ConfigError
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.event_emitter import EventEmitter
from lr_sglang.steps.tree import Branch, Node, Outcome, Pair, Verdict, without_a_judge

# Share of a runtime's timeout that a verdict may take: shorter than a generation, because a step waits for it.
PATIENCE = 0.05


class Verification:
    """Gives pairs of versions to the verifier of a request.

    Args:
        branches: waits for verdicts that take time.
        branch: makes the record of a request about a drafted node.
        request: makes the request of a branch after a node.
    """

    def __init__(
        self,
        job: AnswerRequest,
        branches: Branches,
        emitter: EventEmitter,
        branch: Callable[[str, Node, Node | None], Branch],
        request: Callable[[Node], Request],
    ) -> None:
        self._job, self._branches, self._emitter = job, branches, emitter
        self._branch, self._request = branch, request

    def ask(self, child: Node, pair: Pair) -> None:
        """Gives a pair to the verifier, unless its verdict is clear without one."""
        verifier = self._job.verifier
        if verifier is None:
            raise ConfigError("lookahead reasoning needs a verifier")
        verdict = without_a_judge(pair, getattr(verifier, "reads_words", True))
        if verdict is not None:
            child.verdict = verdict
            self._emitter.verified(child, verdict)
            return
        child.asked = self._inquire(child, pair)
        self._consult(verifier, child.asked, child)

    def _inquire(self, child: Node, pair: Pair) -> Inquiry:
        node = child.parent
        assert node is not None

        def track(inquiry: Inquiry, state: ProgramState) -> Request:
            branch, request = self._branch("judge", node, child), self._request(node)
            request.seed, request.patience = None, PATIENCE
            state.stream_executor.request = request
            inquiry.branches.append(branch)
            self._branches.begin(branch, request)
            state.stream_executor.when_done(lambda: self._branches.ended(branch))
            self._emitter.begun("judge", node, child)
            if child.dropped or child.verdict is not None or node.chosen is not None:  # decided before it began
                self._branches.give_up(branch, Outcome.CANCELLED)
            return request

        return Inquiry(pair, node.state, track)

    def _consult(self, verifier: Verifier, inquiry: Inquiry, child: Node) -> None:
        found = verifier.verify(inquiry)
        if isinstance(found, Verdict):
            self.ruled(inquiry, child, found)
            return
        assert child.parent is not None
        task = self._branches.expect_verdict(inquiry, self._timed(found, inquiry), child.parent, child)
        if inspect.iscoroutine(found):
            task.add_done_callback(lambda _: found.close())  # it was never begun if the task was cancelled at once

    async def _timed(self, found: Any, inquiry: Inquiry) -> Verdict:
        asked = self._branches.now()
        verdict: Verdict = await (inquiry.replied() if found is None else found)
        return dataclasses.replace(verdict, seconds=self._branches.now() - asked)

    def ruled(self, inquiry: Inquiry, child: Node, verdict: Verdict) -> None:
        """Enters a verdict in the tree."""
        if child.verdict is not None:
            return  # refused meanwhile: the target could not continue from this step
        child.verdict = verdict
        self._emitter.verified(child, verdict)
