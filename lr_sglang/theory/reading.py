"""What reading drafted tokens gains over plain decoding (docs/theory.md#reading). Times are in
tokens of plain decoding.
"""

from __future__ import annotations

from typing import NamedTuple

# Tokens of a portion, which is drafted, and then read at once.
PORTIONS = (3, 4, 6, 8, 12, 16, 24)
# Reading goes on while a read gives so many tokens in the mean, over at least so many reads: a read
# of a portion takes longer than a token of plain decoding.
LEAST_TOKENS_A_READ = 2.0
LEAST_READS = 8
# Passes of a target, each of which writes one token, until a new line of the draft arrives.
NEW_LINE = 2.0


class ReadTimes(NamedTuple):
    """What a read takes, and a drafted token with its row in the target's pass."""

    read: float = 1.5
    drafted: float = 0.13


# Before anything is measured.
TYPICAL_TIMES = ReadTimes()


def reading_speedup(agreement: float, tokens: int, times: ReadTimes = TYPICAL_TIMES) -> float:
    """Of a draft of so many tokens at a time, each of which agrees with this probability.

    Of n tokens (1 - a^n) / (1 - a) are kept in the mean: those that agree, and the target's own
    where one differs.
    """
    a = min(0.999, agreement)
    return (1 - a**tokens) / (1 - a) / (times.read + tokens * times.drafted)


def gain(agreement: float, times: ReadTimes = TYPICAL_TIMES) -> float:
    """The speed-up with as many tokens at a time as are best."""
    return reading_speedup(agreement, portion_size(agreement, times), times)


def portion_size(agreement: float, times: ReadTimes = TYPICAL_TIMES) -> int:
    """How many tokens to draft before they are read."""
    return max(PORTIONS, key=lambda tokens: reading_speedup(agreement, tokens, times))


def fed_speedup(agreement: float, tokens: float) -> float:
    """Of a target that verifies up to so many delivered tokens in a pass. After one that differs it
    writes alone until a new line arrives.
    """
    run = 1 / (1 - min(0.999, agreement))  # up to the target's own token where one differs
    return (run + NEW_LINE) / (max(1.0, run / (1 + tokens)) + NEW_LINE)


def pays(tokens: float, reads: float) -> bool:
    """Whether to read on after so many reads, which gave so many tokens."""
    return reads < LEAST_READS or tokens >= LEAST_TOKENS_A_READ * reads
