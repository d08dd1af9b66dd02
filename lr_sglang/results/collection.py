"""Records of one or more folders, sorted into groups of the same task, mode and settings, and how
tables name and order such groups.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.config import ROLES
from lr_sglang.errors import RecordError
from lr_sglang.modes import MODES
from lr_sglang.results.record import Record, ReportRow, doubts_of, grading_failed
from lr_sglang.results.store import RECORDS, RecordLines, flat, run_json, sample_of

SampleKey = tuple[str, int, int]  # question, sample, and a number where several folders have these

# Names of settings in tables.
_SHORT = {
    "lookahead.max_step_tokens": "step tokens",
    "runtimes.target.token_layer.tokens": "sd tokens",
    "runtimes.target.token_layer.algorithm": "token layer",
    "runtimes.target.token_layer.accept_length": "simulated acceptance",
}


@dataclass(frozen=True)
class Group:
    """Records that were made in one way.

    Attributes:
        rows: what a report needs of each record.
        settings: the configuration, flat, without the settings that may differ within a group.
        program: its program in a mode with lookahead, if it is not the mode's own; else empty.
        label: the settings that distinguish it from other groups of its task and mode; empty if
            there is none.
        marks: warnings about all its figures: ``dummy weights``, ``simulated acceptance``.
    """

    task: str
    mode: str
    concurrency: int
    settings: dict[str, Any]
    rows: list[ReportRow] = field(repr=False)
    label: str = ""
    program: str = ""

    @property
    def name(self) -> str:
        """Method and label."""
        return f"{self.method} ({self.label})" if self.label else self.method

    @property
    def method(self) -> str:
        """The mode; the program, where another than the mode's own looks ahead."""
        return self.program or self.mode

    @property
    def exact(self) -> bool:
        """Whether only the target's own tokens are accepted."""
        return self.mode == "lossless" or self.value("verifier") == "exact"

    @property
    def marks(self) -> tuple[str, ...]:
        lengths = (f"runtimes.{role}.token_layer.accept_length" for role in ROLES)
        found = {
            "dummy weights": any(one.startswith("dummy:") for one in self.models.values()),
            "simulated acceptance": any(self.settings.get(length) for length in lengths),
        }
        return tuple(mark for mark, holds in found.items() if holds)

    @property
    def models(self) -> dict[str, str]:
        """The known models, by role."""
        found = {role: self.settings.get(f"runtimes.{role}.model") for role in ROLES}
        return {role: str(model) for role, model in found.items() if model}

    @cached_property
    def ended(self) -> list[ReportRow]:
        """Those without an error."""
        return [row for row in self.rows if row["error"] is None]

    def by_pair(self) -> dict[SampleKey, ReportRow]:
        """Each record by its question and sample; those of several folders are numbered 0, 1 and so
        on.
        """
        seen: Counter[tuple[str, int]] = Counter()
        found = {}
        for row in self.rows:
            name = row["question_id"], row["sample"]
            found[*name, seen[name]] = row
            seen[name] += 1
        return found

    def value(self, setting: str) -> Any:
        """A setting by its short name or its own, such as ``depth``."""
        return next(
            (value for name, value in self.settings.items() if setting in (short(name), name)), None
        )

    def comparable(self, other: Group) -> bool:
        """Whether both are of the same task, target, sampling, limits and concurrency."""
        ours, theirs = (
            {
                k: v
                for k, v in one.settings.items()
                if v is not None and k.startswith(("sampling.", "limits."))
            }
            for one in (self, other)
        )
        places = [(g.task, g.concurrency, g.models.get("target")) for g in (self, other)]
        return ours == theirs and places[0] == places[1]


def labelled(groups: list[Group]) -> list[Group]:
    """Groups in the order of tables, labelled by the settings in which groups of a task and mode
    differ.
    """
    like: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        like[group.task, group.mode].append(group)
    made = []
    for alike in like.values():
        differing = [name for name in _differing(alike) if name != "program"]
        many = len({group.concurrency for group in alike}) > 1
        for group in alike:
            words = [f"{short(name)} {_said(group.settings.get(name))}" for name in differing]
            words += [f"{group.concurrency} at once"] if many else []
            mine = program_of(group).rpartition("/")[2]
            layer = group.mode.removeprefix("lookahead")
            named = f"{mine}{layer}" if mine and layer in ("", "+sd") else ""
            words += [f"program {mine}"] if mine and not named else []
            # even if it is the same for all
            words += [group.settings["fair"]] if group.settings.get("fair") else []
            label = ", ".join(dict.fromkeys(words))
            made.append(replace(group, label=label, program=named))
    tasks, modes = list(dict.fromkeys(group.task for group in groups)), list(MODES)

    def place(group: Group) -> tuple[Any, ...]:
        """A sort key with the settings that are numbers, so that a sweep is in order."""
        numbers = sorted(
            (k, float(v)) for k, v in group.settings.items() if type(v) in (int, float)
        )
        rank = modes.index(group.mode) if group.mode in modes else len(modes)
        return tasks.index(group.task), rank, numbers, group.concurrency

    return sorted(made, key=place)


def program_of(group: Group) -> str:
    """The group's ``--program``; empty for the mode's own program."""
    found: str = group.settings.get("program") or ""
    return "" if found in {mode.program for mode in MODES.values()} else found


def _differing(alike: Sequence[Group]) -> list[str]:
    """Settings that differ. One that follows from those before it is left out: those of lookahead
    come first, then those that tables name, and the target's before the draft's.
    """
    names = {name for group in alike for name in group.settings}
    found: list[str] = []
    # the values of ``found``, by group
    told: list[tuple[str, ...]] = [()] * len(alike)
    for name in sorted(
        names, key=lambda name: (not name.startswith("lookahead."), name not in _SHORT, name)
    ):
        with_this: list[tuple[str, ...]] = [
            (*values, json.dumps(group.settings.get(name)))
            for group, values in zip(alike, told, strict=True)
        ]
        if len(set(with_this)) > len(set(told)):
            found.append(name)
            told = with_this
    return found


def short(setting: str) -> str:
    """The name of a setting in tables."""
    return _SHORT.get(
        setting, setting.removeprefix("lookahead.").removeprefix("sampling.").replace("_", " ")
    )


def _said(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# What may differ between records that belong together.
_LOOSE = ("sampling.seed", "mode", "questions")


@dataclass(frozen=True)
class Collection:
    """All groups of the records that were read, with remarks on the reading.

    Attributes:
        folders: those that have the records.
        names: of what was asked for, which may be folders of such folders.
    """

    groups: list[Group]
    notes: list[str]
    folders: list[str]
    names: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(mark for group in self.groups for mark in group.marks))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(group.task for group in self.groups))

    @property
    def rows(self) -> list[ReportRow]:
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


def read_runs(arguments: Sequence[str | Path]) -> Collection:
    """Reads folders of runs; several of one task, mode and setting are merged.

    Args:
        arguments: folders with ``records.jsonl``, or folders of such folders.

    Raises:
        RecordError: there is nothing that can be read.
    """
    groups: dict[str, Group] = {}
    notes: list[str] = []
    folders: list[str] = []
    for argument in arguments:
        try:
            path = plugin_files.expanded(str(argument))
            notes += [f"{path}: {warning}" for warning in run_json(path).get("warnings", ())]
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
    said = doubts_of(row for group in groups.values() for row in group.rows)
    notes += [doubt for doubt in said if not any(doubt in note for note in notes)]
    names = dict.fromkeys(map(_name, arguments))
    return Collection(labelled(list(groups.values())), notes, folders, tuple(names))


def _name(argument: str | Path) -> str:
    """The name of a folder, or of the folder that a file of records is in."""
    path = plugin_files.expanded(str(argument)).resolve()
    return (path.parent if path.name == RECORDS else path).name or str(path)


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


def _read(
    folder: Path, groups: dict[str, Group], notes: list[str]
) -> Iterable[tuple[Group, ReportRow]]:
    """What a report needs of the records of a folder, read one by one; the last one of each sample
    counts. Adds new groups to ``groups``, and to ``notes`` what a reader of the report must know.
    """
    path = folder if folder.is_file() else folder / RECORDS
    concurrency = int(run_json(path.parent).get("concurrency") or 1)
    last: dict[Any, tuple[Group, ReportRow]] = {}
    with path.open("rb") as file:
        found = RecordLines(file)
        for record, start in found:
            try:
                row = ReportRow(record, path, start)
                group = group_of(record, concurrency, groups)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                found.refuse(f"a record that lacks {error}")
                continue
            last[sample_of(record)] = (group, row)
        cut = file.tell() - found.end
        notes += filter(None, [found.said])
    if cut:
        notes.append(
            f"{path}: its last line is cut off ({cut} bytes); the run may be at work, or was killed"
        )
    if failed := len(grading_failed(row for _, row in last.values())):
        again = f"lr-sglang report {path.parent} --grade does it again"
        notes.append(f"{path}: grading failed for {failed} of {len(last)} answers; {again}")
    return last.values()


def group_of(record: Record, concurrency: int, groups: dict[str, Group]) -> Group:
    """The group that a record belongs to, a new one if there is none yet.

    Args:
        concurrency: of the run.
    """
    config = record["config"]
    mode = record["mode"]
    task = str(config.get("questions") or "questions")
    settings = {name: value for name, value in flat(config) if name not in _LOOSE}
    name = json.dumps([task, mode, concurrency, settings], sort_keys=True)
    return groups.setdefault(name, Group(task, mode, concurrency, settings, []))
