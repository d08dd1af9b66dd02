"""How a command ends when something is wrong: a named error with a hint, and never a traceback."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from types import FrameType
from typing import IO, Any, NoReturn

import click

from lr_sglang.cli import streams
from lr_sglang.errors import LookaheadError, SetupError

DEBUG = "LR_SGLANG_DEBUG"
BUG_STATUS = 70  # EX_SOFTWARE
# Of the machine, not of our code: the disk is full or read-only, no file descriptor or no memory is
# left, a terminal has gone. So is what the system says of a file by its name: that this is too
# long, or the folder closed to this user.
NO_ROOM = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EIO,
)


class Failure(click.ClickException):
    """An error as it is printed: one of ours with its hint, any other as a bug."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
        self.exit_code = error.exit_code if isinstance(error, LookaheadError) else BUG_STATUS  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        if not isinstance(self.error, LookaheadError):
            text = " ".join(f"{type(self.error).__name__}: {self.message}".split())
            click.echo(
                styled(f"Internal error: {text} (a bug; {DEBUG}=1 shows where)", fg="red"), err=True
            )
            return
        if self.error.detail:
            click.echo(
                styled(f"{self.error.detail_name}:\n{self.error.detail}", dim=True), err=True
            )
        click.echo(styled("Error: ", fg="red", bold=True) + self.message, err=True)
        if self.error.hint:
            click.echo(styled("Hint: ", fg="yellow") + self.error.hint, err=True)


class Stopped(KeyboardInterrupt):
    """A signal that ends the command; ``exit_code`` is the shell's 128 + its number."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.exit_code = 128 + number


@contextmanager
def reported_failures() -> Iterator[None]:
    """Turns an exception of a command into a message for its user and an exit status."""
    try:
        with _signals():
            yield
            streams.flush()
    except KeyboardInterrupt as error:
        click.echo("Stopped.", err=True)
        raise click.exceptions.Exit(getattr(error, "exit_code", 130)) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        if isinstance(error, OSError) and (error.errno in NO_ROOM or error.filename):
            where = f": {shorten(str(error.filename), 200)}" if error.filename else ""
            raise Failure(SetupError(f"{error.strerror}{where}")) from error
        raise Failure(error) from error


def styled(text: str, **style: Any) -> str:
    """Coloured text, unless NO_COLOR is set (click itself removes colour where there is no
    terminal).
    """
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)


def warn(text: str) -> None:
    """Prints a warning."""
    click.echo(styled("Warning: ", fg="yellow") + text, err=True)


@contextmanager
def _signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end a command as Ctrl-C does: records are kept, servers stopped."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = [
        n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN
    ]  # nohup ignores it
    before = {number: signal.signal(number, end) for number in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
