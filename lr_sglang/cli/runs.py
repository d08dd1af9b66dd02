"""The records of runs that commands work from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lr_sglang.errors import RecordError
from lr_sglang.results.record import Record
from lr_sglang.results.store import RECORDS, each_record


def read(folder: Path) -> Iterator[Record]:
    """The records of a run one by one, by its folder or their file.

    Raises:
        RecordError: there are no records, or a line is no record.
    """
    path = folder / RECORDS if folder.is_dir() else folder
    try:
        yield from each_record(path)
    except OSError as error:
        hint = f"give the folder of a run, which has {RECORDS}"
        raise RecordError(f"{path}: cannot be read: {error.strerror}", hint=hint) from error


@contextmanager
def complete(*folders: Path) -> Iterator[None]:
    """For code that reads fields of unchecked records: turns its KeyError and the like into a named
    error.

    Raises:
        RecordError: a record lacks a field.
    """
    try:
        yield
    except (KeyError, TypeError) as error:
        where = ", ".join(map(str, folders))
        raise RecordError(
            f"{where}: a record lacks {error}", hint="take a run of this release"
        ) from error
