"""A mean that forgets."""

from __future__ import annotations

from dataclasses import dataclass

# Effective number of values in a mean; the weight of older ones decays exponentially.
MEAN_MEMORY = 400


@dataclass
class Mean:
    """A mean in which recent values weigh most."""

    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Adds a value, ``times`` in a row."""
        fade = (1 - 1 / MEAN_MEMORY) ** times
        added = (1 - fade) * MEAN_MEMORY
        self.weight = self.weight * fade + added
        if added:
            self.value += (value - self.value) * added / self.weight

    def given(self, prior: float, trust: float) -> float:
        """The mean, with a prior that has the weight of ``trust`` values."""
        return (self.value * self.weight + trust * prior) / (self.weight + trust)
