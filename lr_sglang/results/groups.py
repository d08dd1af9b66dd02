"""Records of one task, mode and settings, and how tables name and order such groups."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lr_sglang.config import ROLES
from lr_sglang.modes import MODES
from lr_sglang.results.brief import Row

Pair = tuple[str, int, int]  # question, sample, and a number where several folders have these

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
        label: the settings that distinguish it from other groups of its task and mode; empty if
            there is none.
        marks: warnings about all its figures: ``dummy weights``, ``simulated acceptance``.
    """

    task: str
    mode: str
    concurrency: int
    settings: dict[str, Any]
    rows: list[Row] = field(repr=False)
    label: str = ""

    @property
    def name(self) -> str:
        """Mode and label."""
        return f"{self.mode} ({self.label})" if self.label else self.mode

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
    def ended(self) -> list[Row]:
        """Those without an error."""
        return [row for row in self.rows if row["error"] is None]

    def by_pair(self) -> dict[Pair, Row]:
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
    programs = len({program(group) for group in groups}) > 1
    made = []
    for alike in like.values():
        differing = _differing(alike)
        many = len({group.concurrency for group in alike}) > 1
        for group in alike:
            words = [f"{short(name)} {_said(group.settings.get(name))}" for name in differing]
            words += [f"{group.concurrency} at once"] if many else []
            words += (
                [f"program {program(group)}"] if programs and program(group) else []
            )  # others have none
            words += (
                [group.settings["fair"]] if group.settings.get("fair") else []
            )  # even if it is the same for all
            made.append(replace(group, label=", ".join(dict.fromkeys(words))))
    tasks, modes = list(dict.fromkeys(group.task for group in groups)), list(MODES)

    def place(group: Group) -> tuple[Any, ...]:
        """A sort key with the settings that are numbers, so that a sweep is in order."""
        numbers = sorted(
            (k, float(v)) for k, v in group.settings.items() if type(v) in (int, float)
        )
        rank = modes.index(group.mode) if group.mode in modes else len(modes)
        return tasks.index(group.task), rank, numbers, group.concurrency

    return sorted(made, key=place)


def program(group: Group) -> str:
    """The group's ``--program``; empty for the mode's own program."""
    found: str = group.settings.get("program") or ""
    return "" if found in {mode.program for mode in MODES.values()} else found


def _differing(alike: Sequence[Group]) -> list[str]:
    """Settings that differ. Of settings that always differ together only one, the target's before
    the draft's.
    """
    names = {name for group in alike for name in group.settings}
    found: dict[str, str] = {}
    for name in sorted(
        names, key=lambda name: (not name.startswith("lookahead."), name not in _SHORT, name)
    ):
        values = [json.dumps(group.settings.get(name)) for group in alike]
        if len(set(values)) > 1:
            found.setdefault(str([values.index(value) for value in values]), name)
    return list(found.values())


def short(setting: str) -> str:
    """The name of a setting in tables."""
    return _SHORT.get(
        setting, setting.removeprefix("lookahead.").removeprefix("sampling.").replace("_", " ")
    )


def _said(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
