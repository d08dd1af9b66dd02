"""The times of three servers, from a file as ``benchmarks/role_times.py`` writes it.

Beside its figures (``token, 8 at once``, ``read a step after 256``, ``verdict``, milliseconds) a
file may have ``pass of 8 rows`` and ``read 12 tokens`` where they were measured, and ``assumed``:
what no role alone shows. These constants are fitted to modes with one answer at a time
(``benchmarks/simulated_gpu.py --validate``).
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
        rows: of a pass, by its rows, without what each request costs.
        read: of a prefill, by its new tokens.
        prefix: of a prefill for each cached token before.
        graph: of a prefill that is a full graph; None where it was not measured.
        layer_token: of a token that the layer's draft writes within a pass; ``layer_prefill``: of
            its part of a prefill.
        verify: that each verified request adds to a pass.
    """

    tokens: Curve
    rows: Curve
    read: Curve
    prefix: float = 0.0
    graph: float | None = None
    layer_token: float = 0.0
    layer_prefill: float = 0.0
    verify: float = 0.0

    def decode(self, requests: int, rows: int) -> float:
        """Of a pass of so many requests with so many rows together."""
        return self.tokens.at(requests) + self.rows.at(rows) - self.rows.at(requests)

    def prefill(self, requests: int, new: int, cached: int, graph: bool = False) -> float:
        """Of a prefill of so many requests with so many new tokens together, the longest prefix in
        the cache being ``cached`` tokens.
        """
        each = self.tokens.at(requests) - self.rows.at(requests)
        more = each - self.tokens.at(1) + self.rows.at(1) + self.prefix * cached
        if graph and self.graph is not None:
            return self.graph + self.read.at(new) - self.read.at(1) + more
        return self.read.at(new) + more


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
    source: str = ""
    given: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, path: str | Path, **assumed: float) -> Times:
        """Reads a file, or one of benchmarks/times by its name.

        Args:
            assumed: in place of the file's own ``assumed``.
        """
        found = Path(path)
        if not found.exists():
            found = FOLDER / f"{path}.json"
        return cls.of(json.loads(found.read_text("utf-8")), **assumed)

    @classmethod
    def of(cls, given: Mapping[str, Any], **assumed: float) -> Times:
        """The times of a file's content; ``assumed`` as of ``load``."""
        known = {**given.get("assumed", {}), **assumed}
        host = known.get("host", 0.0) / 1000
        roles = {name: _role(figures, known, host) for name, figures in given["roles"].items()}
        return cls(
            roles,
            host,
            known.get("share", 0.0),
            bool(known.get("overlap", False)),
            bool(known.get("host computes", False)),
            given.get("source", ""),
            {**given, "assumed": known},
        )

    def slower(self, role: str, milliseconds: float) -> Times:
        """The same with a role all of whose passes take so much longer."""
        figures = {k: one + milliseconds for k, one in self.given["roles"][role].items()}
        return Times.of({**self.given, "roles": {**self.given["roles"], role: figures}})

    def with_graphs(self) -> Times:
        """The same with prefills of the target that take as long as its full graph."""
        target = self.roles["target"]
        now = target.read.at(1)
        return self.with_prefills((target.graph or now) / now)

    def with_prefills(self, share: float) -> Times:
        """The same with prefills of the target that take this share of the time."""
        target = self.roles["target"]
        read = Curve(tuple((tokens, share * seconds) for tokens, seconds in target.read.points))
        return replace(self, roles={**self.roles, "target": replace(target, read=read)})

    def alone(self) -> Times:
        """The same with a device for each server."""
        return replace(self, share=0.0)


def _role(figures: Mapping[str, float], known: Mapping[str, float], host: float) -> RoleTimes:
    step = known.get("step_tokens", 32)
    slope = known.get("read token", 0.0) / 1000
    read = Curve.of(figures, "read ", " tokens")
    after = Curve.of(figures, "read a step after ", "")
    if read is None:
        whole = figures["verdict"] / 1000 if after is None else after.points[0][1]
        read = Curve(((step, whole), (step + 1000, whole + 1000 * slope)))
    read = Curve(tuple((tokens, max(1e-4, seconds - host)) for tokens, seconds in read.points))
    prefix = 0.0
    if after is not None and len(after.points) > 1:
        (near, low), (far, high) = after.points[0], after.points[-1]
        prefix = (high - low) / (far - near)
    tokens = Curve.of(figures, "token, ", " at once") or read
    graph = known.get("graph prefill")
    return RoleTimes(
        tokens,
        Curve.of(figures, "pass of ", " rows") or tokens,
        read,
        prefix,
        None if graph is None else graph / 1000,
        known.get("layer token", 0.0) / 1000,
        known.get("layer prefill", 0.0) / 1000,
        known.get("verify", 0.0) / 1000,
    )
