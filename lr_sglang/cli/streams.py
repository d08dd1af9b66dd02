"""The standard streams of a command, and what it writes there for other programs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from lr_sglang.errors import SetupError
from lr_sglang.json_text import dumped

closed = set[str]()  # the streams that were closed when the command began


class Notes:
    """Standard error of a command whose work matters more than its notes: what cannot be written
    there, on a full disk or for want of a terminal, is lost.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes the text, or nothing."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Writes what is buffered, or nothing."""
        with suppress(OSError):
            self._stream.flush()


def prepare() -> None:
    """Opens streams that are closed, so that no other file gets their number. What no terminal
    shows is UTF-8; what a terminal cannot show becomes a question mark.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            closed.add(name)
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = None if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = Notes(sys.stderr)
    if "stdout" in closed:
        click.echo("Warning: standard output is closed: nothing is printed there", err=True)


@contextmanager
def _writing() -> Iterator[None]:
    """Turns an OSError of standard output into a SetupError, after which nothing more is written
    there; a broken pipe, which nobody reads any more, stays one.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        with suppress(OSError, ValueError):  # for Python's own flush
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SetupError(f"standard output cannot be written: {error.strerror}") from error


def flush() -> None:
    """Writes what is left of standard output; raises as ``_writing``."""
    with _writing():
        sys.stdout.flush()


def write_output(text: bytes | str, *, nl: bool = True) -> None:
    """Writes to standard output, and a line's end unless ``nl`` is false. Bytes are for other
    programs, whatever the terminal's encoding is.
    """
    with _writing():
        click.echo(text, nl=nl)


def write_json(value: Any, **how: Any) -> None:
    """Writes a value as JSON, and a line's end; see ``json_text.dumped``."""
    write_output(dumped(value, **how))
