"""What reading drafted tokens gains over plain decoding (docs/theory.md#reading). Times are in
tokens of plain decoding.
"""

from __future__ import annotations

# Tokens that may be drafted at a time.
PIECES = (3, 4, 6, 8, 12, 16, 24)
# What a read takes, and a drafted token with its row in the target's pass.
READ, DRAFTED = 1.5, 0.13


def speedup(agreement: float, tokens: int) -> float:
    """Of a draft of so many tokens at a time, each of which agrees with this probability.

    Of n tokens (1 - a^n) / (1 - a) are kept in the mean: those that agree, and the target's own
    where one differs.
    """
    a = min(0.999, agreement)
    return (1 - a**tokens) / (1 - a) / (READ + tokens * DRAFTED)


def gain(agreement: float) -> float:
    """The speed-up with as many tokens at a time as are best."""
    return speedup(agreement, piece(agreement))


def piece(agreement: float) -> int:
    """How many tokens to draft at a time."""
    return max(PIECES, key=lambda tokens: speedup(agreement, tokens))
