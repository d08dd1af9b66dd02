"""Every error that lr-sglang raises on purpose.

One root, so that a caller can catch all of them; each instance knows the *role* it concerns (or None),
a one-line *hint* for the person who reads it, and whether trying again can help.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class LookaheadError(Exception):
    """Root of all named errors.

    Args:
        message: what went wrong, in one line.
        role: ``target``, ``draft`` or ``judge`` when the error concerns one runtime.
        hint: what the reader can do about it.
        detail: longer material for a log or a terminal, such as the tail of a server's log.
    """

    retryable = False
    exit_code = 1
    heard = False  # whether a program has read the state that failed with it

    def __init__(self, message: str, *, role: str | None = None, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.role = role
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.role}: {self.message}" if self.role else self.message


class ConfigError(LookaheadError):
    """An option, a deployment file or an input file has an invalid value."""

    exit_code = 2


class SetupError(LookaheadError):
    """This machine lacks something that is needed (a compiler, an operator, a package)."""


class LaunchError(LookaheadError):
    """A server did not come up: ``detail`` holds the tail of its log."""


class RuntimeDown(LookaheadError):
    """A runtime does not answer: it died, was never there, or the connection broke."""

    retryable = True


class RuntimeTimeout(LookaheadError):
    """A runtime took longer than its timeout allows."""

    retryable = True


class RuntimeRefused(LookaheadError):
    """A runtime answered with an error status: the request is wrong, or the server is.

    Attributes:
        status: HTTP's; 0 is not known.
    """

    status = 0


class RuntimeBusy(RuntimeRefused):
    """A runtime is there and takes no more at the moment (429, or a router's 502 to 504)."""

    retryable = True


class PromptTooLong(RuntimeRefused):
    """The prompt does not fit the model's context, or leaves no room for an answer."""


class BadReply(LookaheadError):
    """A runtime answered with something that is not a generation."""


class Cancelled(LookaheadError):
    """The request was cancelled by this process. ``generation`` is what it had generated, if known."""

    def __init__(self, message: str, *, role: str | None = None, generation: Any = None) -> None:
        super().__init__(message, role=role)
        self.generation = generation


class GradingError(LookaheadError):
    """Not one answer of a run could be graded: the grader itself fails."""


class RecordError(LookaheadError):
    """A result file cannot be read, or belongs to another run."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """The hint for a name that is not known: the one that is most like it, or what is said ``otherwise``."""
    near = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else otherwise
