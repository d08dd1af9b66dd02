"""A simulation with the times of real runtimes, each measured while the others waited (benchmarks/role_times.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lr_sglang.errors import ConfigError
from lr_sglang.simulated.simulation import interpolated

_TOKEN = re.compile(r"token, (\d+) at once")
_READ = re.compile(r"read a step after (\d+)")
WRITERS = ("target", "draft")


def read(file: Path, step_tokens: int, context: int) -> dict[str, Any]:
    """The fields of ``Simulation`` that the file tells.

    A request that reads a step and writes one token takes longer than a token that follows on another: the difference
    is ``page_in``, of target and draft alike. How much verdicts slow each other down is not measured, and taken to be
    nothing.

    Args:
        step_tokens: of a step.
        context: tokens before it: what reading it takes is interpolated between those that were measured.

    Raises:
        ConfigError: it is no such file, or lacks a role.
    """
    try:
        roles = json.loads(file.read_text("utf-8"))["roles"]
        tokens = {role: _points(roles[role], _TOKEN) for role in WRITERS}
        alone = {role: points[0][1] for role, points in tokens.items() if points[0][0] == 1}
        reads = {role: points for role in WRITERS if (points := _points(roles[role], _READ))}
        verdict = float(roles["judge"]["verdict"]) if "judge" in roles else 0.0
        return {
            "step_seconds": step_tokens * alone["target"] / 1000,
            "c1": alone["draft"] / alone["target"],
            "judge_seconds": verdict / 1000,
            "page_in": {
                role: max(0.0, interpolated(points, context) - alone[role]) / 1000 for role, points in reads.items()
            },
            "curves": {role: tuple((n, ms / alone[role]) for n, ms in points) for role, points in tokens.items()},
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        hint = "python -m benchmarks.role_times --output FILE makes one"
        raise ConfigError(f"{file}: no times of target and draft ({error!r})", hint=hint) from error


def _points(figures: Mapping[str, float], name: re.Pattern[str]) -> list[tuple[int, float]]:
    """Milliseconds by the number in a figure's name, the least first."""
    return sorted((int(found[1]), float(ms)) for one, ms in figures.items() if (found := name.fullmatch(one)))
