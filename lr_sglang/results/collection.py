"""Records of one or more folders, sorted into what was measured in one way: a task, a mode and its settings."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.config import ROLES
from lr_sglang.errors import RecordError
from lr_sglang.modes import MODES
from lr_sglang.results import reference
from lr_sglang.results.labels import labelled, short
from lr_sglang.results.record import Record, key
from lr_sglang.results.store import RECORDS, RUN, flat, read_records
from lr_sglang.results.summary import grading_failed

Pair = tuple[str, int, int]  # question, sample, and which of several of that name

_NEEDED = (
    *("seconds", "tokens", "steps", "branches", "config", "error", "correct", "judged", "accepted"),
    *("question", "gold", "text", "answer", "finish"),
)
_NAMED = re.compile(r"(?P<mode>[\w+]+)(?:@(?P<task>[^=/]+))?=(?P<path>.+)$")
# What may differ between records that belong together.
_LOOSE = ("sampling.seed", "mode", "questions", "task", "concurrency")


@dataclass(frozen=True)
class Group:
    """Records that were made in one way.

    Attributes:
        settings: the configuration, flat, without what may differ.
        label: what tells it from others of its task and mode; empty if there is no other.
        marks: what a reader must know of all its figures: ``simulated``, ``dummy weights``, ``simulated acceptance``,
            ``reference``.
    """

    task: str
    mode: str
    concurrency: int
    settings: dict[str, Any]
    records: list[Record] = field(repr=False)
    label: str = ""

    @property
    def name(self) -> str:
        """Mode and label."""
        return f"{self.mode} ({self.label})" if self.label else self.mode

    @cached_property
    def marks(self) -> tuple[str, ...]:
        return marks(self.records)

    @property
    def models(self) -> dict[str, str]:
        """Those that are known, by role."""
        roles = self.records[0]["config"].get("runtimes") or {}
        return {role: str(one["model"]) for role, one in roles.items() if one.get("model")}

    @property
    def ended(self) -> list[Record]:
        """Without those that failed."""
        return [record for record in self.records if record["error"] is None]

    def by_pair(self) -> dict[Pair, Record]:
        """Each record under its question and sample; what several folders have comes under 0, 1 and so on."""
        seen: Counter[tuple[str, int]] = Counter()
        found = {}
        for record in self.records:
            name = record["question_id"], record["sample"]
            found[*name, seen[name]] = record
            seen[name] += 1
        return found

    def value(self, setting: str) -> Any:
        """A setting by its short name or its own, such as ``depth``."""
        if setting == "concurrency":
            return self.concurrency
        return next((value for name, value in self.settings.items() if setting in (short(name), name)), None)


@dataclass(frozen=True)
class Collection:
    """All groups, and remarks on how they were read."""

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
    def records(self) -> list[Record]:
        return [record for group in self.groups for record in group.records]

    @property
    def models(self) -> str:
        """All of each role, in words."""
        names: dict[str, dict[str, None]] = {role: {} for role in ROLES}
        for group in self.groups:
            for role, model in group.models.items():
                names.setdefault(role, {})[model] = None
        return "; ".join(f"{role} {', '.join(of)}" for role, of in names.items() if of)

    def base(self, group: Group, mode: str = "autoregressive") -> Group | None:
        """What a group is compared with: the same task, target, sampling and concurrency; of several the likest."""
        alike = [g for g in self.groups if g.mode == mode and g is not group and _comparable(g, group)]
        wanted = group.settings.items()
        return max(alike, key=lambda g: sum(item in wanted for item in g.settings.items()), default=None)


def marks(records: Iterable[Record]) -> tuple[str, ...]:
    """What must be said of every figure that these records go into."""
    found = dict.fromkeys(("simulated", "dummy weights", "simulated acceptance", "reference"), False)
    for record in records:
        versions, runtimes = record.get("versions") or {}, record["config"].get("runtimes") or {}
        found["simulated"] |= versions.get("runtimes") == "simulated"
        found["reference"] |= versions.get("made_by") == "reference"
        layers = [one.get("token_layer") for one in runtimes.values()]
        found["simulated acceptance"] |= any(isinstance(it, dict) and it.get("accept_length") for it in layers)
        found["dummy weights"] |= any(str(one.get("model", "")).startswith("dummy:") for one in runtimes.values())
    return tuple(mark for mark, true in found.items() if true)


def read(arguments: Sequence[str | Path]) -> Collection:
    """Reads folders of runs; several of one task, mode and setting are merged.

    Args:
        arguments: folders with ``records.jsonl``, folders of such folders, or the reference's. Before one of the
            latter may stand ``MODE=`` or ``MODE@TASK=``, which its files do not say.

    Raises:
        RecordError: nothing is there, or something that is no record.
    """
    records: list[tuple[Record, int]] = []
    notes: list[str] = []
    folders: list[str] = []
    for argument in arguments:
        try:
            path, mode, task = _argument(str(argument))
            for folder in _folders(path):
                found, about = _read(folder, mode, task, notes)
                records += [(record, about) for record in found]
                folders.append(str(folder))
        except OSError as error:
            raise RecordError(f"{error.filename or argument}: cannot be read: {error.strerror}") from error
    if not records:
        raise RecordError("there is no record yet", hint="lr-sglang run or bench makes some")
    groups: dict[str, Group] = {}
    for record, about in records:
        group = _group_of(record, about)
        name = json.dumps([group.task, group.mode, group.concurrency, group.settings], sort_keys=True)
        groups.setdefault(name, group).records.append(record)
    return Collection(labelled(list(groups.values())), notes, folders)


def path_of(argument: str) -> Path:
    """The folder or file that an argument of ``read`` names.

    Raises:
        RecordError: it names no mode.
    """
    return _argument(argument)[0]


def _argument(text: str) -> tuple[Path, str, str]:
    named = _NAMED.match(text)
    if named is None or Path(text).exists():
        return plugin_files.expanded(text), "", ""
    if named["mode"] not in MODES:
        raise RecordError(f"{text}: there is no mode {named['mode']!r}", hint=f"one of {', '.join(MODES)}")
    return plugin_files.expanded(named["path"]), named["mode"], named["task"] or ""


def _folders(path: Path) -> list[Path]:
    if path.is_file() or (path / RECORDS).exists() or (path.is_dir() and reference.is_reference(path)):
        return [path]
    if not path.is_dir():
        raise RecordError(f"{path}: there is no such folder", hint=f"give the folder of a run, which has {RECORDS}")
    below = sorted(p for p in path.iterdir() if p.is_dir() and ((p / RECORDS).exists() or reference.is_reference(p)))
    if not below:
        raise RecordError(f"{path}: there are no records in it", hint=f"give the folder of a run, which has {RECORDS}")
    return below


def _read(folder: Path, mode: str, task: str, notes: list[str]) -> tuple[list[Record], int]:
    """The records of a folder, each once, and how many answers were made at a time."""
    path = folder if folder.is_file() else folder / RECORDS
    if not path.exists():
        return reference.read(folder, mode, task), 1
    if mode:
        raise RecordError(f"{folder}: its records say which mode they are of", hint=f"leave out {mode}=")
    size = path.stat().st_size  # before it is read: a run at work writes more meanwhile
    records, whole = read_records(path)
    if (cut := size - whole) > 0:
        notes.append(f"{path}: its last line is cut off ({cut} bytes); the run may be at work, or was killed")
    if failed := len(grading_failed(records)):
        again = f"lr-sglang grade {path.parent} does it again"
        notes.append(f"{path}: grading failed for {failed} of {len(records)} answers; {again}")
    for number, record in enumerate(records, 1):
        if missing := [name for name in _NEEDED if name not in record]:
            raise RecordError(f"{path}, line {number}: this record has no {', '.join(missing)}")
    once = {(*key(r), r.get("concurrency"), json.dumps(r["config"], sort_keys=True)): r for r in records}
    return list(once.values()), _concurrency(path.parent / RUN)


def _concurrency(path: Path) -> int:
    try:
        return int(json.loads(path.read_text(encoding="utf-8")).get("concurrency") or 1)
    except (OSError, ValueError, TypeError, AttributeError):
        return 1


def _group_of(record: Record, concurrency: int) -> Group:
    """The group that a record belongs to, empty."""
    config = record["config"]
    task = str(record.get("task") or config.get("task") or config.get("questions") or "questions")
    at_once = record.get("concurrency") or config.get("concurrency") or concurrency
    settings = {name: value for name, value in flat(config) if name not in _LOOSE}
    return Group(task, record["mode"], int(at_once), settings, [])


def _comparable(one: Group, other: Group) -> bool:
    same = all(
        one.settings.get(name) == other.settings.get(name)
        for name in {*one.settings, *other.settings}
        if name.startswith(("sampling.", "limits."))
    )
    models = one.models.get("target") == other.models.get("target")
    return same and models and (one.task, one.concurrency) == (other.task, other.concurrency)
