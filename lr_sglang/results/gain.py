"""Whether looking ahead pays: speed against a plain mode on the same questions, and what it costs
the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from lr_sglang.errors import RecordError
from lr_sglang.results import statistics
from lr_sglang.results.collection import Collection
from lr_sglang.results.groups import Group
from lr_sglang.results.measures import differences, speed
from lr_sglang.results.statistics import Difference, Estimate


@dataclass(frozen=True)
class Gain:
    """One mode against another.

    Attributes:
        speed: seconds of the plain mode over those of the mode.
        accuracy: the mode's less the plain mode's; None if no right answer is known.
        written, plainly: tokens that the target generated for each token of an answer, with the
            mode and without.
        read: tokens of prompts that the target computed for each token of an answer, with the mode
            and without.
    """

    mode: str
    plain: str
    speed: Estimate
    accuracy: Difference | None
    written: tuple[float, float]
    read: tuple[float, float]

    @property
    def pays(self) -> bool:
        """Whether it is significantly faster, and not significantly less accurate."""
        worse = self.accuracy is not None and self.accuracy.verdict == "worse"
        return self.speed.low is not None and self.speed.low > 1 and not worse

    @property
    def clear(self) -> bool:
        """Whether the interval of the speed lies on one side of 1, so that more questions are
        hardly needed.
        """
        return not self.speed.holds(1.0) and self.speed.low is not None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **{"mode": self.mode, "plain": self.plain, "pays": self.pays, "clear": self.clear},
            "speedup": asdict(self.speed),
            "accuracy": asdict(self.accuracy) if self.accuracy else None,
            "target_tokens": {"generated": list(self.written), "prefilled": list(self.read)},
        }


def gain(collection: Collection, mode: str, plain: str) -> Gain:
    """The gain of a mode over another, from the questions that both have answered.

    Raises:
        RecordError: no question was answered in both.
    """
    groups: dict[str, Group] = {group.mode: group for group in collection.groups}
    found = speed(groups[mode], groups[plain]) if mode in groups and plain in groups else None
    if found is None:
        raise RecordError(f"no question was answered in both {mode} and {plain}")

    def each(name: str, count: Callable[[dict[str, int]], int]) -> float:
        tokens = [record["tokens"] for record in groups[name].ended]
        return float(
            sum(count(one["target"]) for one in tokens) / max(1, sum(one["used"] for one in tokens))
        )

    written = each(mode, lambda t: t["generated"]), each(plain, lambda t: t["generated"])
    read = (
        each(mode, lambda t: t["prompt"] - t["cached"]),
        each(plain, lambda t: t["prompt"] - t["cached"]),
    )
    accuracy = statistics.difference(differences(groups[mode], groups[plain]))
    return Gain(mode, plain, found.seconds, accuracy, written, read)
