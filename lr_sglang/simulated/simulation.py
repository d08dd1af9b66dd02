"""The parameters of a simulation: the models' texts, and the times of requests."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lr_sglang.config_model import ConfigModel, need
from lr_sglang.errors import ConfigError
from lr_sglang.simulated.model import Model

_TOKEN = re.compile(r"token, (\d+) at once")
_READ = re.compile(r"read a step after (\d+)")
WRITERS = ("target", "draft")


@dataclass(frozen=True)
class Simulation(ConfigModel):
    """Three simulated runtimes.

    Attributes:
        step_seconds: time of a target step of mean length without concurrent requests; the same for
            each token.
        c1: time of a draft's token over that of a target's token.
        judge_seconds: time of a verdict.
        slowdown: share by which each further concurrent request slows the others, on every runtime.
        slots: requests that each runtime serves at a time; None for no limit.
        prefill: time to score a drafted step over that of writing it.
        page_in: by role, seconds before a request writes, in which it prefills the step that it
            continues.
        curves: by role, instead of ``slowdown``: points of (concurrent requests, duration over that
            of one alone), with linear interpolation, and extrapolation after the last point.
    """

    model: Model = field(default_factory=Model)
    step_seconds: float = 0.2
    c1: float = 0.1
    judge_seconds: float = 0.04
    slowdown: float = 0.0
    slots: int | None = None
    prefill: float = 0.05
    page_in: dict[str, float] = field(default_factory=dict)
    curves: dict[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        need(0 < self.step_seconds < math.inf, "step_seconds: must be more than 0")
        need(0 <= self.c1 < math.inf, "c1: must be 0 or more")
        need(0 <= self.judge_seconds < math.inf, "judge_seconds: must be 0 or more")
        need(0 <= self.slowdown < math.inf, "slowdown: must be 0 or more")
        need(self.slots is None or self.slots >= 1, "slots: must be at least 1")
        need(0 <= self.prefill < math.inf, "prefill: must be 0 or more")
        need(
            all(0 <= each < math.inf for each in self.page_in.values()),
            "page_in: must be 0 or more",
        )

    def work(self, role: str, tokens: int, scored: int = 0) -> float:
        """Seconds to write ``tokens`` and to score ``scored`` tokens of the prompt, without
        concurrent requests.
        """
        if role == "judge":
            return self.judge_seconds
        seconds = self.step_seconds * (tokens + self.prefill * scored) / self.model.tokens
        return seconds * self.c1 if role == "draft" else seconds

    def request(self, role: str, tokens: int, scored: int = 0) -> float:
        """Seconds of a request without concurrent ones: ``work`` and ``page_in``."""
        return self.work(role, tokens, scored) + (self.page_in.get(role, 0.0) if tokens else 0.0)

    def slower(self, role: str, count: int) -> float:
        """The factor by which ``count`` concurrent requests take longer than one alone."""
        if role in self.curves:
            return interpolated(self.curves[role], count)
        return 1 + (0.0 if self.curves else self.slowdown) * max(0, count - 1)

    @property
    def steady(self) -> bool:
        """Whether the durations of requests are independent of each other."""
        return not self.slowdown and not self.curves and self.slots is None


def interpolated(points: Sequence[Sequence[float]], x: float) -> float:
    """Linear interpolation; extrapolates after the last point, and is constant before the first."""
    at = min(bisect([point[0] for point in points], x), len(points) - 1)
    if at == 0:
        return points[0][1]
    (x0, y0), (x1, y1) = points[at - 1], points[at]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def role_times(file: Path, step_tokens: int, context: int) -> dict[str, Any]:
    """The fields of ``Simulation`` for real runtimes, each measured with the others idle
    (benchmarks/role_times.py).

    ``page_in``, of target and draft, is the time of a request that prefills a step and writes one
    token, less the time of a token in a running request. Verdicts are assumed not to slow each
    other down, which is not measured.

    Args:
        step_tokens: tokens of a step.
        context: tokens before it; the time of its prefill is interpolated between the measured
            ones.

    Raises:
        ConfigError: the file cannot be read, or lacks a role.
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
                role: max(0.0, interpolated(points, context) - alone[role]) / 1000
                for role, points in reads.items()
            },
            "curves": {
                role: tuple((n, ms / alone[role]) for n, ms in points)
                for role, points in tokens.items()
            },
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        hint = "python -m benchmarks.role_times --output FILE makes one"
        raise ConfigError(f"{file}: no times of target and draft ({error!r})", hint=hint) from error


def _points(figures: Mapping[str, float], name: re.Pattern[str]) -> list[tuple[int, float]]:
    """Pairs of the number in a figure's name and its milliseconds, sorted."""
    return sorted(
        (int(found[1]), float(ms)) for one, ms in figures.items() if (found := name.fullmatch(one))
    )
