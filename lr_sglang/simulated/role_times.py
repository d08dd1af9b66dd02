"""A simulation with the times of real runtimes, each measured while the others waited (benchmarks/role_times.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lr_sglang.errors import ConfigError

_TOKEN = re.compile(r"token, (\d+) at once")


def read(file: Path, branches: int, step_tokens: int) -> dict[str, float]:
    """The fields of ``Simulation`` that the file tells.

    Args:
        branches: target steps that are written at once; what each further one costs is taken from the measured batch
            that is nearest to it.
        step_tokens: of a step.

    Raises:
        ConfigError: it is no such file, or lacks a role.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
        roles = found["roles"]
        curves = {
            role: {int(n[1]): float(ms) for name, ms in roles[role].items() if (n := _TOKEN.fullmatch(name))}
            for role in ("target", "draft")
        }
        target, draft = curves["target"][1], curves["draft"][1]
        verdict = float(roles["judge"]["verdict"]) if "judge" in roles else 0.0
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        hint = "python -m benchmarks.role_times --output FILE makes one"
        raise ConfigError(f"{file}: no times of target and draft ({error!r})", hint=hint) from error
    batch = min(curves["target"], key=lambda n: abs(n - branches))
    slower = curves["target"][batch] / target - 1
    return {
        "step_seconds": step_tokens * target / 1000,
        "c1": draft / target,
        "judge_seconds": verdict / 1000,
        "batch_slowdown": max(0.0, slower / (batch - 1)) if batch > 1 else 0.0,
    }
