"""All error classes of lr-sglang.

They have one base class, so that a caller can catch all of them. An error has a *role* (or None), a
one-line *hint* for the user, and says whether a retry can help.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class LookaheadError(Exception):
    """Base class of all named errors.

    Args:
        message: what went wrong, in one line.
        role: ``target``, ``draft`` or ``judge`` when the error concerns one runtime.
        hint: what the user can do about it.
        detail: longer material for a log or a terminal, such as the tail of a server's log.
    """

    retryable = False
    exit_code = 1
    detail_name = "the end of its log"  # what ``detail`` is
    heard = False  # whether it was raised in a program, by reading the failed state

    def __init__(
        self, message: str, *, role: str | None = None, hint: str = "", detail: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.role = role
        self.hint = hint
        self.detail = detail
        # at the end of a traceback
        if detail:
            self.add_note(detail)
        if hint:
            self.add_note(f"Hint: {hint}")

    def __str__(self) -> str:
        return f"{self.role}: {self.message}" if self.role else self.message


class ConfigError(LookaheadError):
    """An option, a deployment file or an input file has an invalid value."""

    exit_code = 2


class SetupError(LookaheadError):
    """This machine lacks something that is needed (a compiler, an operator, a package)."""


class LaunchError(LookaheadError):
    """A server did not start: ``detail`` has the tail of its log."""


class RuntimeDown(LookaheadError):
    """A runtime does not answer: it does not run, or the connection broke."""

    retryable = True


class RuntimeTimeout(LookaheadError):
    """A runtime took longer than its timeout allows."""

    retryable = True


class RuntimeRefused(LookaheadError):
    """A runtime replied with an error status: the request is invalid, or the server has failed.

    Attributes:
        status: the HTTP status; 0 if unknown.
    """

    status = 0


class RuntimeBusy(RuntimeRefused):
    """A runtime cannot accept the request at the moment (429, or a router's 502 to 504)."""

    retryable = True


class PromptTooLong(RuntimeRefused):
    """The prompt does not fit the model's context, or leaves no room for an answer."""


class BadReply(LookaheadError):
    """A runtime's reply is not a generation."""


class Cancelled(LookaheadError):
    """The request was cancelled by this process. ``generation`` is the part that was generated, if
    known.
    """

    def __init__(self, message: str, *, role: str | None = None, generation: Any = None) -> None:
        super().__init__(message, role=role)
        self.generation = generation


class GradingError(LookaheadError):
    """No answer of a run could be graded, because the grader fails."""


class RecordError(LookaheadError):
    """A result file cannot be read, or belongs to another run."""


def reason_of(error: Exception) -> str:
    """What the system says of an error, without its number and path; else the error's text."""
    return getattr(error, "strerror", None) or str(error)


def did_you_mean(name: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """The hint for an unknown name: the most similar known name, or ``otherwise`` if none is
    similar.
    """
    names = {one.casefold(): one for one in known}
    near = get_close_matches(name.casefold(), names, n=1, cutoff=cutoff)
    return f"did you mean {names[near[0]]}?" if near else otherwise
