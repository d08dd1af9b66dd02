"""What tells groups of records apart, in words, and in which order they stand in tables."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lr_sglang.modes import MODES

if TYPE_CHECKING:
    from lr_sglang.results.collection import Group

# Names of settings in tables.
_SHORT = {
    "lookahead.max_step_tokens": "step tokens",
    "runtimes.target.token_layer.tokens": "sd tokens",
    "runtimes.target.token_layer.algorithm": "token layer",
    "runtimes.target.token_layer.accept_length": "simulated acceptance",
}


def labelled(groups: list[Group]) -> list[Group]:
    """Groups in the order of tables, each with what tells it from its like."""
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
            words += [f"program {program(group)}"] if programs and program(group) else []  # a plain run is beside it
            words += [group.settings["fair"]] if group.settings.get("fair") else []  # also where all have it
            made.append(replace(group, label=", ".join(dict.fromkeys(words))))
    tasks, modes = list(dict.fromkeys(group.task for group in groups)), list(MODES)

    def place(group: Group) -> tuple[Any, ...]:
        """Settings that are numbers count, so that a sweep comes in its order."""
        numbers = sorted((k, float(v)) for k, v in group.settings.items() if type(v) in (int, float))
        rank = modes.index(group.mode) if group.mode in modes else len(modes)
        return tasks.index(group.task), rank, numbers, group.concurrency

    return sorted(made, key=place)


def program(group: Group) -> str:
    """What its ``--program`` was; empty where the mode has answered by itself."""
    found: str = group.settings.get("program") or ""
    return "" if found in {mode.program for mode in MODES.values()} else found


def _differing(alike: Sequence[Group]) -> list[str]:
    """Settings that differ; of those that tell the same groups apart, one: the target's rather than the draft's."""
    names = {name for group in alike for name in group.settings}
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (not name.startswith("lookahead."), name not in _SHORT, name)):
        values = [json.dumps(group.settings.get(name)) for group in alike]
        if len(set(values)) > 1:
            found.setdefault(str([values.index(value) for value in values]), name)
    return list(found.values())


def short(setting: str) -> str:
    """The name of a setting in tables."""
    return _SHORT.get(setting, setting.removeprefix("lookahead.").removeprefix("sampling.").replace("_", " "))


def _said(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
