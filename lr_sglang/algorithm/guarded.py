"""Protects an answer from a user's verifier that raises, hangs, or returns no verdict."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.algorithm.inquiry import Inquiry, Verifier
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.steps.tree import Verdict

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
