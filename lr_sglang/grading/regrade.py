"""Grading the records of a run again, without generating anything.

Each verdict is appended to a file beside the records, so that a stopped grading can be resumed.
When all verdicts are there, the records are replaced atomically.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from lr_sglang.errors import RecordError
from lr_sglang.grading.grader import Grader
from lr_sglang.results.packed import Packed
from lr_sglang.results.record import Key, Record, key
from lr_sglang.results.store import RECORDS, RUN, held, line_of, read_records, replace_file, writing

JOURNAL = "grading.part"
VERSION = 2  # raised when the same answer may be graded differently
FIELDS = ("answer", "correct", "grade")
_NAMES = {True: "correct", False: "wrong", None: "ungraded"}


@dataclass
class Changes:
    """The changes by a grading.

    Attributes:
        resumed: number of verdicts from an earlier grading that was stopped.
        turned: the changed verdicts: key of the sample, verdict before, verdict now.
        verdicts: numbers of correct, wrong and ungraded answers; ``reasons``: of the ungraded ones.
    """

    records: int = 0
    resumed: int = 0
    turned: list[tuple[Key, bool | None, bool | None]] = field(default_factory=list)
    verdicts: Counter[str] = field(
        default_factory=lambda: Counter(dict.fromkeys(_NAMES.values(), 0))
    )
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, old: Record, new: Record) -> None:
        """Counts one record, before and after."""
        before, now = old["correct"], new["correct"]
        self.verdicts[_NAMES[now]] += 1
        if before is not now:
            self.turned.append((key(new), before, now))
        if now is None and (reason := new["grade"].get("reason")):
            self.reasons[reason] += 1

    def to_dict(self) -> dict[str, Any]:
        names = ("question_id", "sample", "mode", "before", "now")
        turned = [
            dict(zip(names, (*of, before, now), strict=True)) for of, before, now in self.turned
        ]
        about = {"records": self.records, "resumed": self.resumed, **self.verdicts}
        return about | {"changed": turned, "ungraded_because": self.reasons}


def asked(folder: Path) -> str:
    """The questions of the run in a folder: a task's name, a file's name, or a single question.

    Raises:
        RecordError: no run was made there.
    """
    try:
        config = json.loads((folder / RUN).read_text(encoding="utf-8"))["config"]
        return str(next(iter(config.values()))["questions"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration, AttributeError) as error:
        raise RecordError(
            f"{folder}: there is no run in it ({RUN} is missing or damaged)"
        ) from error


def graded_by(folder: Path) -> str:
    """The grader of the run's first record, by name; empty where it was not graded."""
    try:
        with (folder / RECORDS).open(encoding="utf-8") as file:
            return str(json.loads(file.readline())["grade"]["grader"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def regrade(
    folder: Path,
    grader: Grader,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Changes:
    """Grades all records of a folder.

    Args:
        jobs: number of answers that are graded at a time.
        progress: called with the number of verdicts so far and of records.

    Raises:
        RecordError: there are no records, they are damaged, or a run uses the folder.
    """
    path, journal = folder / RECORDS, folder / JOURNAL
    with held(folder, "a run or a grading is at work in", "wait for it"):
        try:
            records, cut = read_records(path)
        except OSError as error:
            raise RecordError(
                f"{path}: {error.strerror}", hint="give the folder of a run"
            ) from error
        known = _journal(journal, grader)
        todo = [record for record in records if _mark(record) not in known]
        changes = Changes(len(records), len(records) - len(todo))
        progress(changes.resumed, len(records))
        for done, (record, graded) in enumerate(_graded(todo, grader, jobs), changes.resumed + 1):
            verdict = known[_mark(record)] = {name: graded[name] for name in FIELDS}
            _append(journal, json.dumps({"mark": _mark(record), **verdict}))
            progress(done, len(records))
        after: list[Record] = [Packed({**record, **known[_mark(record)]}) for record in records]
        for old, new in zip(records, after, strict=True):
            changes.add(old, new)
        with writing(path, ""):
            replace_file(path, chain(map(line_of, after), [cut]))
        journal.unlink()
    return changes


def _graded(todo: list[Record], grader: Grader, jobs: int) -> Iterator[tuple[Record, Record]]:
    """Yields records as they are graded, ``jobs`` at a time, in daemon threads, so that Ctrl-C
    waits for none.
    """
    left, running = iter(todo), dict[Future[Record], Record]()
    while True:
        for record in islice(left, jobs - len(running)):
            future = Future[Record]()
            running[future] = record
            threading.Thread(
                target=_grade, args=(grader, record, future), name="lr-grade", daemon=True
            ).start()
        if not running:
            return
        ready, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in ready:
            yield running.pop(future), future.result()


def _grade(grader: Grader, record: Record, future: Future[Record]) -> None:
    try:
        future.set_result(grader.apply(record))
    except BaseException as error:  # noqa: BLE001 - raised by ``result``
        future.set_exception(error)


def _mark(record: Record) -> str:
    """A digest of a sample, its text and its previous grade; a kept verdict is valid for the same
    digest only.
    """
    about = [
        *key(record),
        record["text"],
        record["gold"],
        bool(record["error"]),
        record.get("grade"),
    ]
    return hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()


def _file(grader: Grader) -> str:
    """A digest of the file of a user's grader, so that verdicts from before a change of it are not
    used.
    """
    path = getattr(sys.modules.get(getattr(grader.kind, "__module__", "")), "__file__", None)
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest() if path else ""


def _journal(path: Path, grader: Grader) -> dict[str, dict[str, Any]]:
    """The kept verdicts, if the journal has the same rules; else begins a new journal."""
    head = json.dumps(
        {"version": VERSION, "grader": grader.name, "file": _file(grader), **grader.rules.to_dict()}
    )
    found: dict[str, dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else [""]
    if lines[0] != head:
        with writing(path, ""):
            replace_file(path, [head.encode() + b"\n"])
        return found
    for line in lines[1:-1]:
        try:
            table = json.loads(line)
            if not table["grade"].get("failed"):
                found[table["mark"]] = {name: table[name] for name in FIELDS}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # an incomplete line; its record is graded again
    if lines[-1]:  # an incomplete last line
        _append(path, "")
    return found


def _append(path: Path, line: str) -> None:
    with writing(path, ""), path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
