"""What is kept in memory of a record: its short fields. A run of the paper's size has tens of
thousands of records, of up to a megabyte each, and they stay on the disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lr_sglang.errors import RecordError
from lr_sglang.results import accounting
from lr_sglang.results.record import Record
from lr_sglang.theory.measured import Answer

_LONG = (*("extra", "text", "steps", "branches", "outcomes", "program", "config", "versions"),)
# ``Verdict.by`` of steps that no verifier was asked about.
_UNASKED = ("late", "draft", "guard", "ending", "special")


class Brief:
    """The short fields of a record, read as from the record (``brief["seconds"]``).

    Attributes:
        steps: number of steps.
        answer: what the formulas need of it; None if the record lacks it.
        path, start: the file, and the byte at which the record's line begins.
    """

    __slots__ = ("_fields", "answer", "path", "start", "steps")

    def __init__(self, record: Record, path: Path | None = None, start: int = 0) -> None:
        self._fields: dict[str, Any] = _shared(
            {name: value for name, value in record.items() if name not in _LONG}
        )
        self.steps = len(record.get("steps", ()))
        try:
            self.answer: Answer | None = Answer.of(record)
        except (KeyError, TypeError):
            self.answer = None
        self.path, self.start = path, start

    @classmethod
    def of(cls, record: Record | Brief) -> Brief:
        """The short part of a record, which may be one already."""
        return record if isinstance(record, Brief) else cls(record)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def get(self, name: str, default: Any = None) -> Any:
        """A short field, or the default."""
        return self._fields.get(name, default)

    def whole(self) -> Record:
        """The record, read from the disk.

        Raises:
            RecordError: it is not there any more.
        """
        try:
            with (self.path or Path()).open("rb") as file:
                file.seek(self.start)
                found: Record = json.loads(file.readline())
            if found["question_id"] != self["question_id"]:
                raise ValueError(found["question_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{self.path}: record of {self['question_id']} is not where it was",
                hint="the run was at work; try again",
            ) from error
        return found


def _shared(fields: dict[str, Any]) -> dict[str, Any]:
    """A copy whose names, and whose question, are objects that all records share."""
    found = {
        sys.intern(name): _shared(value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }
    if isinstance(question := found.get("question"), str):
        found["question"] = sys.intern(question)
    return found


class Row(Brief):
    """What a report needs of a record.

    Attributes:
        late: steps whose draft came too late.
        verdicts: summed seconds and number of verdicts that asked a verifier.
        parts: seconds of its critical path by part; ``waits_known`` says whether the runtimes
            reported queueing and prefill.
        timed: whether it has branches.
    """

    __slots__ = ("late", "parts", "timed", "verdicts", "waits_known")

    def __init__(self, record: Record, path: Path | None = None, start: int = 0) -> None:
        super().__init__(record, path, start)
        said = [v for step in record["steps"] for v in step["verdicts"] if v is not None]
        self.late = sum(
            any(v is not None and v["by"] == "late" for v in step["verdicts"])
            for step in record["steps"]
        )
        asked = [
            v["seconds"]
            for v in said
            if not v["failed"] and v["by"] not in _UNASKED and v["seconds"] > 0
        ]
        self.verdicts = (sum(asked), len(asked))
        self.timed = bool(record["branches"])
        self.waits_known = any(one.get("prefill") is not None for one in record["branches"])
        self.parts = accounting.parts(record) if record["error"] is None else {}
