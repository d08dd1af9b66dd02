"""A folder with the records of a run: ``run.json`` says what was asked for, ``records.jsonl`` has a
line a sample.

A record reaches the disk when its answer is graded, so ``kill -9`` loses only answers in progress.
An answer that failed for a passing reason is made again: the last line of a sample counts. A line
that was cut off is recognised when the run is resumed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from lr_sglang.errors import RecordError
from lr_sglang.json_text import dumped
from lr_sglang.results.record import RECORD_SCHEMA, Brief, Key, Record, key

RECORDS = "records.jsonl"
RUN_FILE = "run.json"
LOCK = ".lock"


def new_folder(root: Path, name: str) -> Path:
    """Makes the folder of a new run, ``<root>/<name>_<YYYYMMDD_HHMMSS>``.

    If another run of that name began in the same second, it is the next second's folder.

    Raises:
        RecordError: it cannot be made.
    """
    now = time.time()
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        while True:
            folder = root / f"{name}_{time.strftime('%Y%m%d_%H%M%S', time.localtime(now))}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                now += 1


class Unread(NamedTuple):
    """A line of a file of records that is none; ``line`` counts from 1."""

    line: int
    why: str
    start: int
    end: int


LINES_NAMED = 3  # lines, and differing settings, that are named
NO_RECORD = "no record"
QUESTION_ONLY = "a question, no record"
LATER = "written by a later release"
# What no record is without; of the other fields an earlier release may have had fewer.
REQUIRED_FIELDS: Mapping[str, Any] = {
    "schema": int,
    "question_id": str,
    "sample": int,
    "mode": str,
    "question": str,
    "error": dict | None,
}


class RecordLines:
    """The records of a file one by one, each with the byte at which its line begins. Empty lines
    are passed over, and lines that are no record are counted.

    Attributes:
        unread: the lines that are no record.
        count: number of records so far.
        end: the byte at which the last line ends that is whole; what follows it was cut off. A last
            record may lack its line's end.
    """

    def __init__(self, file: BufferedReader) -> None:
        self.file = file
        self.unread = list[Unread]()
        self.count = self.end = 0
        self._line = Unread(0, "", 0, 0)

    def __iter__(self) -> Iterator[tuple[Record, int]]:
        for number, line in enumerate(self.file, 1):
            start = self.end
            record, why = _read(line)
            if record is None and not line.endswith(b"\n"):
                break
            self.end += len(line)
            self._line = Unread(number, why, start, self.end)
            if record is not None:
                self.count += 1
                yield record, start
            elif why:
                self.unread.append(self._line)

    def refuse(self, why: str) -> None:
        """Counts the last record among the lines that are none."""
        self.count -= 1
        self.unread.append(self._line._replace(why=why))

    @property
    def said(self) -> str:
        """What is left out, in words; empty if nothing is.

        Raises:
            RecordError: there is no record, and there are other lines.
        """
        if not self.unread:
            return ""
        named = [f"line {one.line} is {one.why}" for one in self.unread]
        told = "; ".join(named[:LINES_NAMED] + ["..."] * (len(named) > LINES_NAMED))
        if not self.count:
            hints = {
                QUESTION_ONLY: f"questions go with lr-sglang run --input {self.file.name}",
                LATER: "update lr-sglang",
            }
            hint = hints.get(self.unread[0].why, f"give the folder of a run, which has {RECORDS}")
            raise RecordError(f"{self.file.name}: there is no record in it: {told}", hint=hint)
        lines = "1 line is" if len(named) == 1 else f"{len(named)} lines are"
        return f"{self.file.name}: {lines} left out: {told}"


def _read(line: bytes) -> tuple[Record | None, str]:
    """The record in a line, or why it is none; neither of an empty line."""
    if not line.strip():
        return None, ""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None, NO_RECORD
    if not isinstance(found, dict):
        return None, NO_RECORD
    lacks = [
        name for name, kind in REQUIRED_FIELDS.items() if not isinstance(found.get(name, ...), kind)
    ]
    if lacks:
        asks = "schema" not in found and not {"question", "problem"}.isdisjoint(found)
        return None, QUESTION_ONLY if asks else f"{NO_RECORD} (it lacks {lacks[0]})"
    return (None, LATER) if found["schema"] > RECORD_SCHEMA else (found, "")


def each_record(run: Path, tell: Callable[[str], None] = lambda text: None) -> Iterator[Record]:
    """The records of a run one by one, by its folder or their file; the last one of each sample.

    Args:
        tell: called with what is left out, if anything is.

    Raises:
        RecordError: there are no records.
    """
    path = run / RECORDS if run.is_dir() else run
    try:
        with path.open("rb") as file:
            found = RecordLines(file)
            starts = {sample_of(record): start for record, start in found}
            if found.said:
                tell(found.said)
            for start in starts.values():
                file.seek(start)
                yield json.loads(file.readline())
    except OSError as error:
        hint = f"give the folder of a run, which has {RECORDS}"
        raise RecordError(f"{path}: cannot be read: {error.strerror}", hint=hint) from error


def unread(path: Path) -> list[bytes]:
    """The lines of a file that are no record, each with its end.

    Raises:
        RecordError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            found = RecordLines(file)
            for _ in found:
                pass
            kept = []
            for one in found.unread:
                file.seek(one.start)
                kept.append(file.read(one.end - one.start))
            return kept
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error


def sample_of(record: Record) -> tuple[Any, ...]:
    """Equal for records of which only the last one counts."""
    config = json.dumps(record.get("config"), sort_keys=True).encode()
    return *key(record), hashlib.blake2b(config, digest_size=16).digest()


def record_line(record: Record) -> bytes:
    """A record as the file has it."""
    return dumped(dict(record), separators=(",", ":")) + b"\n"


class Store(contextlib.AbstractContextManager["Store"]):
    """One run's folder, held by this process alone. A context manager.

    Args:
        folder: made if it does not exist.
        config: the run's settings; a run can only be resumed with the same.
        about: more for ``run.json``, not compared: versions, machine, placement.
        resume: whether existing records belong to this run.

    Attributes:
        records: the last one of each sample, in short.
        cut: bytes of an incomplete last line, which was removed.
        unread: what of the file is no record, in words; it stays where it is.

    Raises:
        RecordError: another run uses the folder; there are records and ``resume`` is false; they
            have another configuration; or the folder cannot be written.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], about: dict[str, Any], *, resume: bool = False
    ) -> None:
        self.folder = folder
        self.path = folder / RECORDS
        self.records: dict[Key, Brief] = {}
        self._lock = threading.Lock()
        self._file = -1
        with contextlib.ExitStack() as stack:
            stack.enter_context(own_folder(folder))
            stack.callback(self._leave)
            with writing(folder):
                self._open(json.loads(dumped(config)), about, resume)
            self._held = stack.pop_all()

    def done(self, record_key: Key) -> bool:
        """Whether a sample need not be made again, because it has a record without a transient
        error.
        """
        record = self.records.get(record_key)
        return record is not None and not (record["error"] and record["error"]["retryable"])

    def append(self, record: Record) -> None:
        """Writes one record and syncs it to the disk. Thread-safe.

        Raises:
            RecordError: it cannot be written; the file then has no part of it, unless the disk
                itself has failed.
        """
        line = record_line(record)
        of = key(record)
        with self._lock:
            end = os.lseek(self._file, 0, os.SEEK_END)
            try:
                if os.write(self._file, line) < len(line):
                    raise OSError(0, "the disk is full")
                os.fsync(self._file)
            except OSError as error:
                with contextlib.suppress(OSError):  # else the next resumption cuts it
                    os.ftruncate(self._file, end)
                raise RecordError(
                    f"{self.path}: cannot write a record: {error.strerror}"
                ) from error
            self.records[of] = Brief(record, self.path, end)

    def __exit__(self, *_: object) -> None:
        """Releases the folder for other processes."""
        self._held.close()

    def _leave(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1  # for an ``append`` of another thread after this

    def _open(self, config: dict[str, Any], about: dict[str, Any], resume: bool) -> None:
        whole = 0
        self.unread = ""
        with self.path.open("rb") if self.path.exists() else contextlib.nullcontext() as file:
            if file:
                found = RecordLines(file)
                for record, start in found:
                    self.records[key(record)] = Brief(record, self.path, start)
                whole = found.end
                self.unread = found.said
        if self.records and not resume:
            hint = "--resume goes on with them; or give another --output"
            raise RecordError(f"{self.folder} has {len(self.records)} records already", hint=hint)
        if self.records:
            self._compare(config)
        else:
            if (self.folder / RUN_FILE).exists():
                told_before(self.folder, "config")  # no record was made; no other file is replaced
            write_whole(
                self.folder / RUN_FILE, {"schema": RECORD_SCHEMA, "config": config, **about}
            )
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.cut = os.fstat(self._file).st_size - whole
        if self.cut:
            os.ftruncate(self._file, whole)
        if whole and os.pread(self._file, 1, whole - 1) != b"\n":
            os.write(self._file, b"\n")

    def _compare(self, config: dict[str, Any]) -> None:
        before = told_before(self.folder, "config")
        old, new = dict(flat(before)), dict(flat(config))
        wrong = [
            f"{k}: {shorten(str(old.get(k)), 60)} then, {shorten(str(new.get(k)), 60)} now"
            for k in sorted({*old, *new})
            if old.get(k) != new.get(k)
        ]
        if before.keys() != config.keys():  # of the modes
            wrong = [f"{', '.join(before)} then, {', '.join(config)} now"]
        if wrong:
            told = "; ".join(wrong[:LINES_NAMED] + ["..."] * (len(wrong) > LINES_NAMED))
            raise RecordError(
                f"{self.folder} belongs to another configuration ({told})",
                hint="resume with the same options, or give another --output",
            )


def run_json(folder: Path) -> dict[str, Any]:
    """A folder's run.json; empty if it is missing or damaged."""
    try:
        found = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def told_before(folder: Path, name: str) -> dict[str, Any]:
    """What run.json says under a name that the command at hand writes there.

    Raises:
        RecordError: nothing, because the file is missing, damaged or of another command.
    """
    before = run_json(folder).get(name)
    if not isinstance(before, dict):
        raise RecordError(
            f"{folder / RUN_FILE} is missing, damaged or of another command",
            hint="give another --output",
        )
    return before


def flat(table: dict[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Nested keys as ``a.b``."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def own_folder(folder: Path) -> contextlib.ExitStack:
    """Makes a folder if there is none, and keeps other processes from writing to it.

    Raises:
        RecordError: it cannot be made or written, or another process has it.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return locked_folder(folder, "wait for it, or give another --output")


def locked_folder(folder: Path, hint: str) -> contextlib.ExitStack:
    """Keeps other processes from writing to a folder.

    Args:
        hint: the error's, if another process has it.

    Raises:
        RecordError: another process has it.
        OSError: it does not exist, or cannot be written.
    """
    with contextlib.ExitStack() as stack:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(f"another run is writing to {folder}", hint=hint) from None
        return stack.pop_all()


@contextlib.contextmanager
def writing(path: Path, hint: str = "give another --output") -> Iterator[None]:
    """Turns an OSError of the ``with`` block, which writes ``path``, into a RecordError."""
    try:
        yield
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error.strerror}", hint=hint) from error


def write_whole(path: Path, table: dict[str, Any]) -> None:
    """Writes a table as JSON by ``replace_file``."""
    replace_file(path, [dumped(table, indent=1), b"\n"])


def replace_file(path: Path, data: Iterable[bytes]) -> None:
    """Replaces a file atomically.

    Raises:
        OSError: it cannot be written; the old file is unchanged then.
    """
    path = path.resolve()  # a link stays one
    if path.is_char_device() or path.is_fifo():
        raise OSError(errno.EINVAL, "it is a device or a pipe")
    draft = path.with_name(f"{path.name}.new")
    try:
        with draft.open("wb") as file:
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
