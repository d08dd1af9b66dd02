"""The branches of one answer: requests in flight, those that have completed, and their outcomes."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from lr_sglang.engine.prefix_reuse import PendingReuse
from lr_sglang.engine.tokenizer import Tokenizer, resolve
from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.step import Step, completed, make_step
from lr_sglang.steps.trace import Trace
from lr_sglang.steps.tree import Branch, Node, Outcome

# The longest time that an ended answer waits for its cancelled requests.
DRAIN_SECONDS = 10.0


@dataclass(eq=False)
class Completion:
    """A completed generation or verdict.

    Attributes:
        key: the branch, or the inquiry of a verdict; None stops the answer.
        node: the prefix that it belongs to.
        child: the drafted node that was written or judged; None for a step that the target wrote.
        result: a ``Generation``, a ``Verdict``, or the error that was raised.
        state: the program state that generated it.
    """

    key: Any
    node: Node
    child: Node | None
    result: Any = None
    state: ProgramState | None = None

    def step(self, known: Tokenizer) -> tuple[Step, ProgramState]:
        """The generated step, and the state after it; both without tokens past the step's end.

        Args:
            known: the tokenizer of the role that generated the step.
        """
        node, result, state = self.node, self.result, self.state
        made = make_step(result.ids, result.finish, node.step, known, result.ends)
        assert state is not None
        wrote = state.stream_executor
        # Roles with another vocabulary read the state's text, so it must end with the text of the
        # step.
        if (
            made.ids != result.ids
            or str.__getitem__(wrote.text_, slice(wrote.fork_start_text_pos, None)) != made.text
        ):
            state = node.state.fork(1)[0]
            state += made.tokens()
        return made, state


def tokens_of(step: Step, known: Tokenizer, target: Tokenizer, room: int) -> int:
    """The number of tokens of a drafted step in the target's vocabulary.

    A step that uses up ``room``, the answer's remaining tokens, ends the answer; an incomplete last
    character counts.

    Args:
        known: the draft's tokenizer.
    """
    tokens = len(resolve(step.tokens(), target))
    if tokens == room and not step.complete:
        tokens = len(resolve(completed(step, known).tokens(), target))
    return tokens


class Branches:
    """The requests and verdicts that one answer waits for, and the record of every branch.

    Args:
        trace: receives every branch that begins. Its times are seconds since this object was made.
        loop: the event loop of the answer.
    """

    def __init__(self, trace: Trace, loop: asyncio.AbstractEventLoop) -> None:
        self._trace, self._loop, self._began, self._draining = trace, loop, loop.time(), False
        self._arrived: deque[Completion] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._open: set[Any] = set()
        self._pending_reuse = PendingReuse()

    def now(self) -> float:
        """Seconds since the answer began."""
        return self._loop.time() - self._began

    def __bool__(self) -> bool:
        return any(not getattr(key, "aside", False) for key in self._open)

    def begin(self, branch: Branch) -> None:
        """Records the beginning of a branch."""
        branch.started = self.now()
        self._trace.branches.append(branch)
        self._pending_reuse.add(branch)
        if (
            self._draining
        ):  # of a verifier whose request was cancelled, and which asks for something else
            self.give_up(branch, Outcome.CANCELLED)

    def expect(self, branch: Branch, state: ProgramState, node: Node, child: Node | None) -> None:
        """Waits for the generation of ``state``; ``first_done`` returns it."""
        self._open.add(branch)
        request = branch.request

        def arrived() -> None:
            result = request.result or state.stream_executor.error_ or Cancelled("cancelled")
            self.put(Completion(branch, node, child, result, state))

        state.stream_executor.when_done(arrived)

    def expect_verdict(self, inquiry: Any, work: Any, node: Node, child: Node) -> asyncio.Task[Any]:
        """Starts a verifier's coroutine; ``first_done`` returns its verdict."""
        self._open.add(inquiry)
        task = inquiry.task = self._loop.create_task(work)

        def arrived(task: asyncio.Task[Any]) -> None:
            error = Cancelled("cancelled") if task.cancelled() else task.exception()
            inquiry.task = None
            self.put(Completion(inquiry, node, child, error or task.result()))

        task.add_done_callback(arrived)
        return task

    def put(self, completion: Completion) -> None:
        """Adds a completion for ``first_done``. Call it on the loop."""
        self._arrived.append(completion)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def first_done(self) -> Completion:
        """Waits for the next completion, and records the end of its branch."""
        if not self._arrived:
            self._pending_reuse.settle()
        while not self._arrived:
            self._wake = self._loop.create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        completion = self._arrived.popleft()
        self._open.discard(completion.key)
        if isinstance(completion.key, Branch):
            self.ended(completion.key)
        return completion

    def ended(self, branch: Branch) -> None:
        """Records the result of a branch's request."""
        if branch.ended is not None:
            return
        branch.ended = self.now()
        result, branch.request = branch.request.result, None
        if isinstance(result, LookaheadError):
            if not isinstance(result, Cancelled):
                branch.error = str(result)
            result = getattr(result, "generation", None)
        if result is not None:
            result.record_in(branch)

    def give_up(self, branch: Branch | None, outcome: Outcome) -> None:
        """Closes a branch with its outcome. A request still running is cancelled, on the server
        too, unless its own tokens are kept: then it writes on.
        """
        if branch is not None and branch.outcome is None:
            branch.close(outcome)
            if outcome not in (Outcome.BONUS, Outcome.CORRECTED):
                self._cancel(branch)

    def _cancel(self, branch: Branch) -> None:
        if branch.request is not None:
            branch.request.cancel()

    async def drain(self) -> None:
        """Cancels the requests in flight, waits until they have ended on the runtimes, and
        completes the record.
        """
        self._draining = True
        for branch in self._trace.branches:
            self.give_up(branch, Outcome.CANCELLED)
            self._cancel(branch)
        for inquiry in [key for key in self._open if not isinstance(key, Branch)]:
            if inquiry.task is not None and all(
                branch.request is None for branch in inquiry.branches
            ):
                inquiry.task.cancel()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._open:
                    await self.first_done()
        except TimeoutError:
            pass  # a runtime hangs; repeated aborts close the connections of its requests
        finally:
            self._pending_reuse.settle(include_unfinished=True)
            self._trace.drained = self.now()
