"""A verifier's input: two versions of a step, and methods to send requests to the runtimes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.branch import Branch
from lr_sglang.steps.generation import Generation
from lr_sglang.steps.request import Request
from lr_sglang.steps.tree import Node, Pair, Verdict


@dataclass(eq=False)
class Inquiry:
    """One pair of versions that a verifier compares.

    Attributes:
        state: the program after the prefix that both versions follow; fork it, do not add to it.
        track: records a request to a runtime in the answer, which cancels it when the verdict is no
            longer needed.
        branches: the requests so far, in order.
        node, child: the prefix, and the drafted node that is judged.
        result: the verdict of a verifier that was waited for, or the error that it raised.
    """

    pair: Pair
    state: ProgramState
    track: Callable[[Inquiry, ProgramState], Request]
    branches: list[Branch] = field(default_factory=list)
    node: Node | None = field(default=None, repr=False)
    child: Node | None = field(default=None, repr=False)
    task: asyncio.Task[Any] | None = field(default=None, init=False, repr=False)
    result: Any = field(default=None, init=False, repr=False)

    def release(self) -> None:
        """Frees its nodes, so that no reference cycle keeps them in memory."""
        self.node = self.child = None

    async def generation(self, state: ProgramState) -> Generation:
        """Waits for the only ``gen`` in progress in a state, and returns what the runtime
        generated.

        Raises:
            LookaheadError: the request failed, or was cancelled because the verdict is not needed
                any more.
        """
        executor = state.stream_executor
        request = self.track(self, state)
        await executor.drained()
        if isinstance(request.result, Generation):
            return request.result
        # a copy, whose traceback does not keep the state in memory
        raise copy(request.result or executor.error_)


class Verifier(Protocol):
    """Decides whether two versions of a step agree."""

    name: str

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        """Returns the verdict, or a coroutine for it. Must not block."""
