"""The times of three servers, from a file as ``benchmarks/role_times.py`` writes it.

Beside its figures (``token, 8 at once``, ``read a step after 256``, ``verdict``, milliseconds) a
file may have ``assumed``: what no role alone shows. These constants are fitted to modes with one
answer at a time (``benchmarks/simulated_gpu.py --validate``):

- ``host``, ``host computes``, ``share``, ``overlap``: as of ``Times``; ``host`` in milliseconds.
- ``tokens of a read``: the part of the time of a read step that its tokens take.
- ``pass among answers``, ``request among answers``: parts of a token's time by which every pass
  takes longer among answers than alone, and for each of its requests.
- ``layer token``, ``layer prefill``, ``graph prefill``: milliseconds, as of ``RoleTimes`` and
  ``Times.with_graphs``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "benchmarks" / "times"


@dataclass(frozen=True)
class Curve:
    """Seconds by a number, between which and beyond the last of which they are linear; before the
    first they are its own."""

    points: tuple[tuple[float, float], ...]

    def at(self, number: float) -> float:
        """The seconds of this number."""
        first, last = self.points[0], self.points[-1]
        if number <= first[0] or len(self.points) == 1:
            return first[1]
        after = next((n for n, (x, _) in enumerate(self.points) if x >= number), -1)
        (x0, y0), (x1, y1) = self.points[after - 1], self.points[after]
        found = y0 + (y1 - y0) * (number - x0) / (x1 - x0)
        return max(found, last[1]) if number > last[0] else found

    @classmethod
    def of(cls, figures: Mapping[str, float], before: str, after: str) -> Curve | None:
        """The curve of figures in milliseconds whose names are a number between two texts."""
        found = {
            float(name.removeprefix(before).removesuffix(after)): value / 1000
            for name, value in figures.items()
            if name.startswith(before) and name.endswith(after)
        }
        return cls(tuple(sorted(found.items()))) if found else None


@dataclass(frozen=True)
class RoleTimes:
    """Seconds of the passes of one server.

    Attributes:
        tokens: of a decode pass, by its requests.
        read: of a prefill of one token that has no prefix.
        read_token: of each further token of a prefill, and of each guess that a pass verifies.
        prefix: of a prefill for each cached token before.
        more, each: by which every pass takes longer among answers than alone, and for each of its
            requests: sampling, streams, longer texts.
        layer_token: of a token that the layer's draft writes within a pass; ``layer_prefill``: of
            its part of a prefill.
    """

    tokens: Curve
    read: float
    read_token: float = 0.0
    prefix: float = 0.0
    more: float = 0.0
    each: float = 0.0
    layer_token: float = 0.0
    layer_prefill: float = 0.0

    def decode(self, requests: int, guesses: int = 0) -> float:
        """Of a pass of so many requests that verifies so many guesses together."""
        seconds = self.tokens.at(requests) + self.read_token * guesses
        return seconds + self.more + self.each * requests

    def prefill(self, requests: int, new: int, cached: int) -> float:
        """Of a prefill of so many requests with so many new tokens together, the longest prefix in
        the cache being ``cached`` tokens.
        """
        seconds = self.read + self.read_token * (new - 1) + self.prefix * cached
        return seconds + self.more + self.each * requests


@dataclass(frozen=True)
class Times:
    """The times of a deployment's servers.

    Attributes:
        host: seconds of a request outside of its server's passes: controller, HTTP, tokens to text.
        share: by which part a pass takes longer for each other server that computes on the same
            device; 0 where each has its own.
        overlap: whether a pass is chosen while the one before it runs, as on a GPU.
        host_computes: whether ``host`` is work on the device of the servers, as on cores without a
            GPU.
        given: the content of the file.
    """

    roles: Mapping[str, RoleTimes]
    host: float = 0.0
    share: float = 0.0
    overlap: bool = False
    host_computes: bool = False
    given: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, path: str | Path) -> Times:
        """Reads a file, or one of benchmarks/times by its name."""
        found = Path(path)
        if not found.exists():
            found = FOLDER / f"{path}.json"
        return cls.of(json.loads(found.read_text("utf-8")))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Times:
        """The times of a file's content."""
        known = given.get("assumed", {})
        step_tokens = int(given.get("step_tokens", 32))
        return cls(
            {name: _role(one, known, step_tokens) for name, one in given["roles"].items()},
            known.get("host", 0.0) / 1000,
            known.get("share", 0.0),
            bool(known.get("overlap", False)),
            bool(known.get("host computes", False)),
            given,
        )

    def slower(self, role: str, milliseconds: float) -> Times:
        """The same with a role all of whose passes take so much longer."""
        figures = {k: one + milliseconds for k, one in self.given["roles"][role].items()}
        return Times.of({**self.given, "roles": {**self.given["roles"], role: figures}})

    def with_graphs(self) -> Times:
        """The same with prefills of the target as full CUDA graphs, which take what the file says."""
        seconds = self.given["assumed"]["graph prefill"] / 1000
        return self.with_prefills(seconds / self.roles["target"].read)

    def with_prefills(self, share: float) -> Times:
        """The same with prefills of the target that take this share of the time."""
        target = self.roles["target"]
        changed = replace(target, read=share * target.read, read_token=share * target.read_token)
        return replace(self, roles={**self.roles, "target": changed})

    def alone(self) -> Times:
        """The same with a device for each server."""
        return replace(self, share=0.0)


def _role(figures: Mapping[str, float], known: Mapping[str, float], step_tokens: int) -> RoleTimes:
    host = known.get("host", 0.0) / 1000
    tokens = Curve.of(figures, "token, ", " at once")
    reads = Curve.of(figures, "read a step after ", "")
    if tokens is None or reads is None:  # a judge, whose label is one token
        read = figures["verdict"] / 1000
        return RoleTimes(Curve(((1, read),)), read - host)
    (near, low), (far, high) = reads.points[0], reads.points[-1]
    prefix = (high - low) / (far - near) if far > near else 0.0
    whole = low - host - prefix * near
    each_token = known.get("tokens of a read", 0.0) * whole / step_tokens
    alone = tokens.points[0][1]
    return RoleTimes(
        tokens,
        whole - each_token * (step_tokens - 1),
        each_token,
        prefix,
        alone * known.get("pass among answers", 0.0),
        alone * known.get("request among answers", 0.0),
        known.get("layer token", 0.0) / 1000,
        known.get("layer prefill", 0.0) / 1000,
    )
