"""A verifier's input: two versions of a step, and methods to send requests to the runtimes; and
what protects an answer from a user's verifier.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.branch import Branch, Generation, Request
from lr_sglang.steps.step import Pair, Verdict
from lr_sglang.steps.tree import Node


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


_OWN = f"{__name__.partition('.')[0]}."


class Guarded:
    """A user's verifier: an error in it, or a result that is no ``Verdict``, becomes a failed
    rejection.

    A verdict times out after the timeout of the target's runtime. Other attributes are those of the
    verifier itself.

    Args:
        name: the name in verdicts, if the verifier has no ``name``.
    """

    def __init__(self, inner: Any, name: str = "") -> None:
        self.inner = inner
        self.name = str(getattr(inner, "name", name or type(inner).__name__))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        try:
            made = self.inner.verify(inquiry)
        except BaseException as error:  # noqa: BLE001 - a failed verdict costs time and changes no answer
            made = self._failed(_why(error))
        if isinstance(made, Verdict) and not made.failed:
            return made
        return self._checked(inquiry, made)  # failures of coroutines are counted

    async def _checked(self, inquiry: Inquiry, made: Any) -> Verdict:
        seconds: float = inquiry.state.stream_executor.backend.roles["target"].timeout
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                made = await made if inspect.isawaitable(made) else made
        except BaseException as error:  # noqa: BLE001 - as above
            why = _why(error)
            return self._failed(f"no verdict in {seconds:g} s" if limit.expired() else why)
        return (
            made
            if isinstance(made, Verdict)
            else self._failed(f"verify() returned {made!r}, not an lr.Verdict")
        )

    def _failed(self, why: str) -> Verdict:
        return Verdict(False, self.name, why, failed=True)


def guard_verifier(verifier: Any) -> Verifier:
    """A verifier of this package as it is, any other wrapped in ``Guarded``."""
    own: Verifier = verifier if type(verifier).__module__.startswith(_OWN) else Guarded(verifier)
    return own


async def ask(verifier: Verifier, inquiry: Inquiry) -> Verdict:
    """The verdict of a verifier, which it returns or computes in a coroutine."""
    found = guard_verifier(verifier).verify(inquiry)
    return found if isinstance(found, Verdict) else await found


def _why(error: BaseException) -> str:
    """Describes an error of a user's code, or of a runtime that it asked; raises again one that
    ends the answer.
    """
    if isinstance(error, ConfigError) or plugin_files.is_stop(error):
        raise error
    return str(error) if isinstance(error, LookaheadError) else plugin_files.describe(error)
