"""Records of one or more folders, sorted into groups of the same task, mode and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.config import ROLES
from lr_sglang.errors import RecordError
from lr_sglang.results.brief import Row
from lr_sglang.results.groups import Group, labelled
from lr_sglang.results.record import Record
from lr_sglang.results.store import RECORDS, RUN, cut_off, flat, lines, sample_of
from lr_sglang.results.summary import grading_failed

_NEEDED = (
    *("seconds", "tokens", "steps", "branches", "config", "error", "correct", "judged", "accepted"),
    *("question", "gold", "text", "answer", "finish"),
)
# What may differ between records that belong together.
_LOOSE = ("sampling.seed", "mode", "questions", "task", "concurrency")


@dataclass(frozen=True)
class Collection:
    """All groups of the records that were read, with remarks on the reading."""

    groups: list[Group]
    notes: list[str]
    folders: list[str]

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(mark for group in self.groups for mark in group.marks))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(group.task for group in self.groups))

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    @property
    def models(self) -> str:
        """The names of all models, by role."""
        names: dict[str, dict[str, None]] = {role: {} for role in ROLES}
        for group in self.groups:
            for role, model in group.models.items():
                names.setdefault(role, {})[model] = None
        return "; ".join(f"{role} {', '.join(of)}" for role, of in names.items() if of)

    def base(self, group: Group, mode: str = "autoregressive") -> Group | None:
        """The group of this mode that a group is compared with; of several comparable ones, that
        with the most settings in common."""
        alike = [
            g for g in self.groups if g.mode == mode and g is not group and g.comparable(group)
        ]
        wanted = group.settings.items()
        return max(
            alike, key=lambda g: sum(item in wanted for item in g.settings.items()), default=None
        )


def read(arguments: Sequence[str | Path]) -> Collection:
    """Reads folders of runs; several of one task, mode and setting are merged.

    Args:
        arguments: folders with ``records.jsonl``, or folders of such folders.

    Raises:
        RecordError: there is nothing, or a line is no record.
    """
    groups: dict[str, Group] = {}
    notes: list[str] = []
    folders: list[str] = []
    for argument in arguments:
        try:
            path = plugin_files.expanded(str(argument))
            notes += [f"{path}: {warning}" for warning in _run_json(path).get("warnings", ())]
            for folder in folders_in(path):
                for group, row in _read(folder, groups, notes):
                    group.rows.append(row)
                folders.append(str(folder))
        except OSError as error:
            raise RecordError(
                f"{error.filename or argument}: cannot be read: {error.strerror}"
            ) from error
    if not groups:
        raise RecordError("there is no record yet", hint="lr-sglang run or bench makes some")
    return Collection(labelled(list(groups.values())), notes, folders)


def folders_in(path: Path) -> list[Path]:
    """The folders of runs that a path names: itself, or those below it.

    Raises:
        RecordError: there is none.
    """

    def is_run(folder: Path) -> bool:
        return (folder / RECORDS).exists()

    if path.is_file() or is_run(path):
        return [path]
    below = (
        sorted(folder for folder in path.iterdir() if folder.is_dir() and is_run(folder))
        if path.is_dir()
        else []
    )
    if not below:
        why = "there are no records in it" if path.is_dir() else "there is no such folder"
        raise RecordError(f"{path}: {why}", hint=f"give the folder of a run, which has {RECORDS}")
    return below


def _read(folder: Path, groups: dict[str, Group], notes: list[str]) -> Iterable[tuple[Group, Row]]:
    """What a report needs of the records of a folder, read one by one; the last one of each sample
    counts."""
    path = folder if folder.is_file() else folder / RECORDS
    try:
        concurrency = int(_run_json(path.parent).get("concurrency") or 1)
    except (ValueError, TypeError):
        concurrency = 1
    last: dict[Any, tuple[Group, Row]] = {}
    whole = 0
    with path.open("rb") as file:
        for number, (record, start, end) in enumerate(lines(file), 1):
            whole = end
            if missing := [name for name in _NEEDED if name not in record]:
                raise RecordError(f"{path}: record {number} has no {', '.join(missing)}")
            last[sample_of(record)] = (
                group_of(record, concurrency, groups),
                Row(record, path, start),
            )
        cut = cut_off(file, whole)
    if cut:
        notes.append(
            f"{path}: its last line is cut off ({len(cut)} bytes); the run may be at work, or "
            "was killed"
        )
    if failed := len(grading_failed(row for _, row in last.values())):
        again = f"lr-sglang report {path.parent} --grade does it again"
        notes.append(f"{path}: grading failed for {failed} of {len(last)} answers; {again}")
    return last.values()


def _run_json(folder: Path) -> dict[str, Any]:
    """The folder's run.json; empty if there is none."""
    try:
        found = json.loads((folder / RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def group_of(record: Record, concurrency: int, groups: dict[str, Group]) -> Group:
    """The group that a record belongs to, a new one if there is none yet.

    Args:
        concurrency: of the run, if the record does not say.
    """
    config, mode = record["config"], record["mode"]
    task = str(record.get("task") or config.get("task") or config.get("questions") or "questions")
    at_once = int(record.get("concurrency") or config.get("concurrency") or concurrency)
    settings = {name: value for name, value in flat(config) if name not in _LOOSE}
    name = json.dumps([task, mode, at_once, settings], sort_keys=True)
    return groups.setdefault(name, Group(task, mode, at_once, settings, []))
