"""The branches of one answer: requests in flight, those that have completed, and their outcomes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.algorithm.policy import Policy
from lr_sglang.engine.tokenizer import Tokenizer, resolve
from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.branch import Branch, Outcome, settle_reuse
from lr_sglang.steps.step import Step, completed, make_step
from lr_sglang.steps.trace import Trace

# The longest time that an ended answer waits for its cancelled requests.
DRAIN_SECONDS = 10.0


def written_step(branch: Branch, tokenizer: Tokenizer) -> tuple[Step, ProgramState]:
    """The step that a branch has generated, and the state after it; both without tokens past the
    step's end.

    Args:
        tokenizer: the tokenizer of the branch's role.
    """
    node = branch.node
    result = branch.result
    state = branch.state
    assert node is not None
    known_before = node.version.known if branch.role == "target" else ()
    ids = (*known_before, *result.ids)
    made = make_step(ids, result.finish, node.step, tokenizer, result.ends)
    wrote = state.stream_executor
    # Roles with another vocabulary read the state's text, so it must end with the text of the step.
    text = str.__getitem__(wrote.text_, slice(wrote.fork_start_text_pos, None))
    if made.ids != ids or text != made.text:
        state = node.state_after(made.tokens())
    return made, state


def tokens_of(step: Step, tokenizer: Tokenizer, target: Tokenizer, room: int) -> int:
    """The number of tokens of a drafted step in the target's vocabulary.

    A step that uses up ``room``, the answer's remaining tokens, ends the answer; an incomplete last
    character counts.

    Args:
        tokenizer: the draft's tokenizer.
    """
    tokens = len(resolve(step.tokens(), target))
    if tokens == room and not step.complete:
        tokens = len(resolve(completed(step, tokenizer).tokens(), target))
    return tokens


class Branches:
    """The requests and verdicts that one answer waits for, and the record of every branch.

    Args:
        trace: receives every branch that begins. Its times are seconds since this object was made.
        loop: the event loop of the answer.
        policy: is told when each generation begins and ends, also one that was cancelled.

    Attributes:
        done: called with a branch's number when it has its result, or when it is cancelled before,
            which the second argument says.
    """

    def __init__(self, trace: Trace, loop: asyncio.AbstractEventLoop, policy: Policy) -> None:
        self._trace = trace
        self._loop = loop
        self._policy = policy
        self._began = loop.time()
        self._draining = False
        self._arrived: deque[Branch | Inquiry | None] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._open: set[Branch | Inquiry] = set()
        self._unsettled: deque[Branch] = deque()
        self.done: Callable[[int, bool], None] = lambda number, cancelled: None

    def now(self) -> float:
        """Seconds since the answer began."""
        return self._loop.time() - self._began

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(self, branch: Branch) -> None:
        """Records the beginning of a branch."""
        branch.started = self.now()
        self._trace.branches.append(branch)
        self._unsettled.append(branch)
        if self._draining:  # a verifier whose request was cancelled asks for something else
            self.close_branch(branch, Outcome.CANCELLED)

    def expect(self, branch: Branch) -> None:
        """Waits for the next generation of the branch's state; ``first_done`` returns the branch
        when it has its result.
        """
        self._open.add(branch)
        self._policy.begun(branch)
        executor = branch.state.stream_executor

        def arrived() -> None:
            branch.result = branch.result or executor.error_ or Cancelled("cancelled")
            self.put(branch)

        executor.when_done(arrived)

    def expect_verdict(self, inquiry: Inquiry, work: Any) -> asyncio.Task[Any]:
        """Starts a verifier's coroutine; ``first_done`` returns the inquiry with its verdict."""
        self._open.add(inquiry)
        task = inquiry.task = self._loop.create_task(work)

        def arrived(task: asyncio.Task[Any]) -> None:
            error = Cancelled("cancelled") if task.cancelled() else task.exception()
            inquiry.task = None
            inquiry.result = error or task.result()
            self.put(inquiry)

        task.add_done_callback(arrived)
        return task

    def put(self, arrived: Branch | Inquiry | None) -> None:
        """Adds what ``first_done`` returns: a branch or an inquiry with its result, a branch with
        more tokens; None stops the answer. Call it on the loop.
        """
        self._arrived.append(arrived)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def stop(self) -> None:
        """Makes ``first_done`` raise ``Cancelled``; from any thread."""
        self._loop.call_soon_threadsafe(self.put, None)

    async def first_done(self) -> Branch | Inquiry:
        """Waits for the next branch or inquiry that has its result, and records the end of a
        branch. A branch without ``result`` has more tokens.

        Raises:
            Cancelled: the answer was stopped.
        """
        arrived = await self._first()
        if arrived is None:
            raise Cancelled("stopped")
        return arrived

    async def _first(self) -> Branch | Inquiry | None:
        while True:
            if not self._arrived:
                settle_reuse(self._unsettled)
            while not self._arrived:
                self._wake = self._loop.create_future()
                try:
                    await self._wake
                finally:
                    self._wake = None
            arrived = self._arrived.popleft()
            if arrived is None or arrived.result is None:
                return arrived
            if arrived in self._open:  # otherwise its result overtook its last tokens
                self._open.remove(arrived)
                if isinstance(arrived, Branch):
                    self.record_end(arrived)
                    told = arrived.decodes and not isinstance(arrived.result, LookaheadError)
                    self._policy.ended(arrived, len(arrived.result.ids) if told else 0)
                return arrived

    def record_end(self, branch: Branch) -> None:
        """Records the result of a branch's request."""
        if branch.ended is None:
            branch.record(self.now())
            self.done(branch.number, False)

    def close_branch(self, branch: Branch | None, outcome: Outcome) -> None:
        """Sets the outcome of a branch that has none yet. If its request still runs, it is
        cancelled, on the server too, unless the outcome says that its tokens are kept.
        """
        if branch is not None and branch.outcome is None:
            branch.close(outcome)
            if outcome not in (Outcome.BONUS, Outcome.CORRECTED):
                self.done(branch.number, True)
                self._cancel(branch)

    def _cancel(self, branch: Branch) -> None:
        if branch.ended is None:
            branch.cancel()

    async def drain(self) -> None:
        """Cancels the requests in flight, waits until they have ended on the runtimes, and
        completes the record.
        """
        self._draining = True
        for branch in self._trace.branches:
            self.close_branch(branch, Outcome.CANCELLED)
            self._cancel(branch)
        for inquiry in [one for one in self._open if isinstance(one, Inquiry)]:
            if inquiry.task is not None and all(b.ended is not None for b in inquiry.branches):
                inquiry.task.cancel()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._open:
                    await self._first()
        except TimeoutError:
            pass  # a runtime hangs; repeated aborts close the connections of its requests
        finally:
            settle_reuse(self._unsettled, include_unfinished=True)
            for branch in self._trace.branches:
                branch.release()
            self._trace.drained = self.now()
