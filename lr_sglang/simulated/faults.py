"""Configurable faults of a simulated runtime: their kinds, frequency and start."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lr_sglang.config_model import ConfigModel, need
from lr_sglang.errors import ConfigError

Kind = Literal["late", "fail", "busy", "hang", "die", "garbage"]


@dataclass(frozen=True)
class Fault(ConfigModel):
    """A configured fault.

    Attributes:
        kind: ``late`` takes ``seconds`` longer; ``fail`` replies with an error status, ``busy``
            with that of a full server; ``hang`` never replies; ``die`` ends the runtime;
            ``garbage`` is a reply that is no generation.
        share: share of requests with the fault, drawn with a seed.
        times: maximum number of requests with the fault; None for no limit.
        after: number of first requests without the fault.
    """

    kind: Kind
    share: float = 1.0
    times: int | None = None
    after: int = 0
    seconds: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        need(0 < self.share <= 1, "share: must be in (0, 1]")
        need(self.times is None or self.times >= 1, "times: must be at least 1")
        need(self.after >= 0, "after: must be 0 or more")
        need(0 <= self.seconds < math.inf, "seconds: must be 0 or more")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parses ``late:share=0.1,seconds=2``; raises ``ConfigError`` if it is no fault."""
        kind, _, rest = text.partition(":")
        table: dict[str, Any] = {"kind": kind}
        for part in filter(None, rest.split(",")):
            key, _, value = part.partition("=")
            try:
                table[key.strip()] = (
                    int(value) if key.strip() in ("times", "after") else float(value)
                )
            except ValueError:
                hint = f"such as late:share=0.1,seconds=2; kinds: {', '.join(get_args(Kind))}"
                raise ConfigError(
                    f"fault {text!r}: {part!r} is not KEY=NUMBER", hint=hint
                ) from None
        return cls.from_dict(table, f"fault {kind}")


class Faults:
    """The faults of a runtime."""

    def __init__(self, seed: int = 0) -> None:
        self._orders: list[list[Any]] = []  # fault, requests seen, times left
        self._draw = random.Random(seed)
        self.dead = False

    def order(self, fault: Fault) -> None:
        self._orders.append([fault, 0, fault.times])

    def clear(self) -> None:
        self._orders.clear()
        self.dead = False

    def next(self) -> Fault | None:
        """The fault of the next request: the first one that applies, or None."""
        if not self._orders:
            return None
        for order in self._orders:
            fault: Fault
            fault, seen, left = order
            order[1] += 1
            if (
                seen < fault.after
                or left == 0
                or (fault.share < 1 and self._draw.random() >= fault.share)
            ):
                continue
            if left is not None:
                order[2] -= 1
            self.dead = self.dead or fault.kind == "die"
            return fault
        return None
