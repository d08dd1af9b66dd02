"""Counts of the token layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Speculation:
    """Counts of SGLang's speculative decoding, of one generation or of many together.

    Attributes:
        verified: forward passes of the large model that checked drafted tokens.
        drafted: tokens that were drafted for these passes.
        accepted: drafted tokens that were accepted.
    """

    verified: int = 0
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def read(cls, meta: Mapping[str, Any]) -> Self:
        """Reads a runtime's meta_info; all zero where there is no token layer."""
        names = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")
        return cls(*(int(meta.get(name) or 0) for name in names))

    def __add__(self, other: Speculation) -> Speculation:
        return Speculation(
            self.verified + other.verified,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )

    def __bool__(self) -> bool:
        return self.verified > 0

    @property
    def length(self) -> float | None:
        """Acceptance length: tokens per verification, including the one that the large
        model adds.
        """
        return 1 + self.accepted / self.verified if self.verified else None

    @property
    def rate(self) -> float | None:
        """Share of the drafted tokens that were accepted."""
        return self.accepted / self.drafted if self.drafted else None

    def to_dict(self) -> dict[str, Any]:
        """The counts, the acceptance length and the acceptance rate, for JSON."""
        counts = {"verified": self.verified, "drafted": self.drafted, "accepted": self.accepted}
        return {**counts, "length": self.length, "rate": self.rate}


NO_SPECULATION = Speculation()
