"""The verdicts of one answer: what is put to a verifier, and what follows from its ruling."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from lr_sglang.call import Call
from lr_sglang.dsl import Inquiry
from lr_sglang.errors import ConfigError
from lr_sglang.flight import Arrival, Flight
from lr_sglang.job import Job
from lr_sglang.tree import Branch, Node, Pair, Verdict, without_a_judge
from lr_sglang.witness import Witness

# Of a runtime's timeout: a verdict may not hold up a step for as long as a writer.
PATIENCE = 0.05


class Hearing:
    """Puts pairs of versions, and drafted steps alone, to the verifiers of a job.

    Args:
        flight: where a verdict that takes time is waited for.
        branch: makes the books of a request about a drafted node.
        priority: of what is asked after a node.
    """

    def __init__(
        self,
        job: Job,
        flight: Flight,
        witness: Witness,
        branch: Callable[[str, Node, Node | None], Branch],
        priority: Callable[[Node], int | None],
    ) -> None:
        self._job, self._flight, self._witness = job, flight, witness
        self._branch, self._priority = branch, priority

    def ask(self, child: Node, pair: Pair) -> None:
        """Puts a pair to the verifier, unless it is clear without one."""
        verifier = self._job.verifier
        if verifier is None:
            raise ConfigError("lookahead reasoning needs a verifier")
        verdict = without_a_judge(pair)
        if verdict is not None:
            child.verdict = verdict
            self._witness.verified(child, verdict)
            return
        child.asked = inquiry = self._inquire(child, pair)
        self.consult(inquiry, child, lambda: verifier.verify(inquiry))

    def weigh(self, child: Node) -> None:
        """Asks whether a drafted step is so certain that the target need not write its own version."""
        fast = self._job.fast
        assert fast is not None and child.step is not None
        child.weighed = inquiry = self._inquire(child, Pair(child.step, child.step))
        self.consult(inquiry, child, lambda: fast.verify(inquiry))

    def _inquire(self, child: Node, pair: Pair) -> Inquiry:
        node, asked = child.parent, time.monotonic()
        assert node is not None

        def begin(heard: Callable[[Any], None]) -> Call:
            branch, call = self._branch("judge", node, child), Call(None, self._priority(node), heard, self._job.key)
            call.patience = PATIENCE
            inquiry.branches.append(branch)
            self._flight.begin(branch, call, inquiry)
            self._witness.begun("judge", node, child)
            return call

        def arrive(result: Any) -> None:
            if isinstance(result, Verdict):
                result = dataclasses.replace(result, seconds=time.monotonic() - asked)
            self._flight.arrive(Arrival(inquiry, node, child, result))

        inquiry = Inquiry(pair, arrive, begin, arrive, node.state)
        return inquiry

    def consult(self, inquiry: Inquiry, child: Node, ask: Callable[[], Verdict | None]) -> None:
        """Asks a verifier, or its next stage: the verdict arrives, unless it is clear at once."""
        self._flight.expect(inquiry)
        verdict = ask()
        if verdict is not None:
            self._flight.forget(inquiry)
            self.ruled(inquiry, child, verdict)

    def ruled(self, inquiry: Inquiry, child: Node, verdict: Verdict) -> None:
        """A verdict is there."""
        weighing = inquiry is not child.asked
        if weighing:
            child.doubted = not verdict.accepted
        if child.verdict is not None:
            return  # it has been refused meanwhile: the target could not go on from it
        if weighing:
            if not verdict.accepted or child.asked is not None:
                return
            verdict = dataclasses.replace(verdict, by="certain")
        child.verdict = verdict
        self._witness.verified(child, verdict)
