"""The verdicts of one answer: sends pairs to the verifier, and enters its verdicts in the tree."""

from __future__ import annotations

import asyncio
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
from lr_sglang.steps.judge_check import read_alike
from lr_sglang.steps.step import Step
from lr_sglang.steps.tree import Node, Outcome, Pair, Verdict, without_a_judge

Begin = Callable[[str, ProgramState, Node, Node], Branch]
LAST = 2**30  # the order of a request that waits for a slot until no other request does
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
        self._last: tuple[int, Step] | None = (
            None  # position and target's version of the pair of the last verdict
        )

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

    def _inquire(self, node: Node, child: Node, pair: Pair, aside: bool = False) -> Inquiry:
        check = self._job.check

        def track(inquiry: Inquiry, state: ProgramState) -> Branch:
            branch = self._begin("judge", state, node, child)
            # a verifier that draws, and asks several times, gets a different reply each time
            where = node.lineage, child.alternative, aside, len(inquiry.branches)
            branch.seed = self._job.seed("verifier", node.position, *where)
            branch.patience = PATIENCE
            branch.order = LAST if aside else branch.order
            if check is not None and getattr(state.stream_executor.backend, "role", "") == "judge":
                check.asked_judge(self._job.lookahead.max_false_accepts)
            inquiry.branches.append(branch)
            state.stream_executor.when_done(lambda: self._branches.ended(branch))
            if aside:
                return branch
            self._emitter.begun("judge", node, child)
            if (
                child.dropped or child.verdict is not None or node.chosen is not None
            ):  # the step was decided meanwhile
                self._branches.give_up(branch, Outcome.CANCELLED)
            return branch

        return Inquiry(pair, node.state, track, aside=aside, node=node, child=child)

    def _consult(self, verifier: Verifier, inquiry: Inquiry) -> asyncio.Task[Verdict] | None:
        found = guarded(verifier).verify(inquiry)
        if isinstance(found, Verdict):
            if not inquiry.aside:
                self.enter(inquiry, found)
            return None
        task = self._branches.expect_verdict(inquiry, self._timed(found, inquiry))
        if inspect.iscoroutine(found):
            task.add_done_callback(
                lambda _: found.close()
            )  # a task cancelled before it ran never awaits it
        return task

    async def _timed(self, found: Any, inquiry: Inquiry) -> Verdict:
        asked = self._branches.now()
        verdict: Verdict = await (inquiry.replied() if found is None else found)
        return dataclasses.replace(verdict, seconds=self._branches.now() - asked)

    def enter(self, inquiry: Inquiry, verdict: Verdict) -> None:
        """Enters a verdict in the tree."""
        child = inquiry.child
        if child is None or child.verdict is not None:
            return  # rejected meanwhile: the target's server refused the tokens of this step
        self._check_judge(inquiry.pair, child, verdict)
        child.verdict = verdict
        self._emitter.verified(child, verdict)

    def _check_judge(self, pair: Pair, child: Node, verdict: Verdict) -> None:
        """Checks the judge now and then: asks about a draft and the target's step of another
        position.
        """
        other, self._last = self._last, (child.position, pair.target)
        check, verifier, node = self._job.check, self._job.verifier, child.parent
        if (
            check is None
            or verdict.failed
            or not check.judged(verdict.seconds)
            or other is None
            or node is None
        ):
            return
        position, step = other
        if position == child.position or read_alike(step.text, pair.draft.text) or verifier is None:
            return
        began, shown = (
            self._branches.now(),
            self._inquire(node, child, Pair(step, pair.draft), aside=True),
        )
        task = self._consult(verifier, shown)

        def done(task: asyncio.Task[Verdict]) -> None:
            check.showing, check.checking = False, check.checking + self._branches.now() - began
            found = None if task.cancelled() or task.exception() else task.result()
            for branch in shown.branches:
                self._branches.give_up(
                    branch, Outcome.ACCEPTED if found and found.accepted else Outcome.REJECTED
                )
            if found is not None and not found.failed:
                check.add([found.accepted], self._job.lookahead.max_false_accepts)

        if task is not None:
            check.showing = True
            task.add_done_callback(done)
