"""How a command ends when something is wrong: a named error with a hint, and never a traceback."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any, NoReturn

import click

from lr_sglang.errors import LookaheadError

DEBUG = "LR_SGLANG_DEBUG"
BUG_STATUS = 70  # EX_SOFTWARE


class Failure(click.ClickException):
    """A named error on its way to the terminal."""

    def __init__(self, error: LookaheadError) -> None:
        super().__init__(str(error))
        self.error = error
        self.exit_code = error.exit_code  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        if self.error.detail:
            click.secho("the end of its log:", err=True, dim=True)
            click.secho(self.error.detail, err=True, dim=True)
        click.echo(click.style("Error: ", fg="red", bold=True) + self.message, err=True)
        if self.error.hint:
            click.echo(click.style("Hint: ", fg="yellow") + self.error.hint, err=True)


class Stopped(KeyboardInterrupt):
    """A signal that ends the command; ``exit_code`` is the shell's 128 + its number."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.exit_code = 128 + number


@contextmanager
def guarded() -> Iterator[None]:
    """Turns what a command raises into what its user should see, and into an exit status."""
    try:
        with _signals():
            yield
    except LookaheadError as error:
        if os.environ.get(DEBUG):
            raise
        raise Failure(error) from error
    except KeyboardInterrupt as error:
        raise click.exceptions.Exit(getattr(error, "exit_code", 130)) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        raise Bug(error) from error


class Bug(click.ClickException):
    """Something that we did not foresee."""

    exit_code = BUG_STATUS

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")

    def show(self, file: IO[Any] | None = None) -> None:
        text = " ".join(self.message.split())
        click.secho(f"Internal error: {text} (a bug; {DEBUG}=1 shows where)", err=True, fg="red")


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: records kept, servers stopped."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
