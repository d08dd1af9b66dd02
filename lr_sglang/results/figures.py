"""The figures of a benchmark on one machine, in a file for others with nothing private in it, and
the table of many such files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lr_sglang import tasks
from lr_sglang.config import ROLES
from lr_sglang.errors import RecordError
from lr_sglang.results import machine
from lr_sglang.results.report import Report, report_json
from lr_sglang.runtimes.placement import gpus, models

KIND = "lr-sglang figures, version 1"
FIGURE_COLUMNS = (
    "",
    "task",
    "mode",
    "questions",
    "tokens/s",
    "speed-up",
    "alpha",
    "agreement",
    "c1",
    "accuracy",
)
LEFT_FIGURE_COLUMNS = FIGURE_COLUMNS[:3]
# Settings that say how fast something is. Others, such as paths, stay where they are.
_TOLD = re.compile(
    r"^(sampling|lookahead|limits|judge_prompt)\b|"
    r"^runtimes\.\w+\.(model|dtype|quantization|repeatable|token_layer\b|extra\b)"
)
_SECRET = re.compile(r"key|secret|pass|auth|credential|url|host|addr", re.IGNORECASE)
_WORD = re.compile(r"[\w.:@+=, -]{0,80}")
HIDDEN = "(not told)"


def of_run(report: Report, versions: Mapping[str, str]) -> dict[str, Any]:
    """The figures of a run, and what they depend on.

    Args:
        versions: as in a record.
    """
    here = machine.machine()
    here["gpus"] = [
        {"name": one.name, "memory": round(one.memory, 1), "driver": one.driver}
        for one in gpus.visible()
    ]
    figures = json.loads(report_json(report))["groups"]
    for one in figures:
        del one["models"]  # they are among the settings
        one["settings"] = dict(_settings(one["settings"]))
        one["task"] = one["task"] if one["task"] in tasks.task_names() else HIDDEN
        one["label"] = one["label"] if _WORD.fullmatch(one["label"]) else HIDDEN
    return {"kind": KIND, "machine": here, "versions": dict(versions), "figures": figures}


def _settings(flat: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings that may be told: numbers and single words; models by a name that is no path."""
    for name, value in flat.items():
        if not _TOLD.match(name) or _SECRET.search(name):
            continue
        if name.endswith("model") and isinstance(value, str):
            yield name, HIDDEN if models.is_path(value) else value
        elif not isinstance(value, str) or _WORD.fullmatch(value):
            yield name, value


def read_figures(path: Path) -> dict[str, Any] | None:
    """The figures in a file; None if it has none."""
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("kind") == KIND else None


def table(files: Sequence[Mapping[str, Any]]) -> tuple[list[list[str]], list[str]]:
    """The rows of a table of all figures, below ``FIGURE_COLUMNS``, and a line for each number
    in them.

    Raises:
        RecordError: a file lacks a field.
    """
    try:
        numbered = list(enumerate(files, 1))
        rows = [_row(n, figure) for n, one in numbered for figure in one["figures"]]
        return rows, [f"{n}: {_about(one)}" for n, one in numbered]
    except (KeyError, TypeError) as error:
        raise RecordError(f"a file of figures lacks {error}") from error


def _about(one: Mapping[str, Any]) -> str:
    """Machine, release and models of a file."""
    here = one["machine"]
    named = dict[str, str]()
    for figure in one["figures"]:
        for role in ROLES:
            model = figure["settings"].get(f"runtimes.{role}.model")
            named |= {role: model} if model else {}
    names = [f"{gpu['name']} ({gpu['memory']:g} GiB)" for gpu in here["gpus"]]
    where = ", ".join(names) or f"{here['cpu']}, {here['cores']} cores"
    what = ", ".join(f"{role} {model}" for role, model in named.items())
    return f"{where}, SGLang {one['versions']['sglang']}; {what}"


def _row(number: int, figure: Mapping[str, Any]) -> list[str]:
    speed = figure["speed"] and figure["speed"]["seconds"]
    return [
        str(number),
        figure["task"],
        f"{figure['mode']} {figure['label']}".rstrip(),
        str(figure["questions"]),
        _value(figure["rate"], "{:.1f}"),
        _value(speed, "{:.2f}x"),
        *(_value(figure.get(name), "{:.2f}") for name in ("alpha", "agreement", "c1", "accuracy")),
    ]


def _value(estimate: Mapping[str, Any] | None, form: str) -> str:
    return "" if estimate is None else form.format(estimate["value"])
