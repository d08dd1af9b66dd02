"""What reading drafted tokens has given in a run, and whether it pays; and the mean that statistics
are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lr_sglang.theory import reading
from lr_sglang.theory.reading import ReadTimes

# Effective number of values in a mean; the weight of older ones decays exponentially.
MEAN_MEMORY = 400

# Reading a drafted step first and writing at once are compared by their times, after more than so
# many of both; before that by the agreement.
READ_TRIES = 3
# The slower of the two is tried at most once in so many steps, and so rarely that this costs this
# share of the time.
TRY_AGAIN = 64
TRY_AGAIN_COST = 0.01
# The share of drafted tokens that is assumed to be the target's own, with the weight of so many.
TYPICAL_AGREEMENT = 0.92
AGREEMENT_WEIGHT = 1.0
# Reads of portions pay until they have given so many tokens less than they had to; they are tried
# again after so many tokens that the target wrote alone.
MOST_LACKING = 4.0
TOKENS_ALONE = 256


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


@dataclass
class ReadStatistics:
    """Shared by the answers of a run. Where a method takes ``times``, they are those of the run now
    (``RunStatistics.read_times``).

    Attributes:
        can_read: whether the target may read drafted tokens.
        agreement: share of drafted tokens that the target would have written there.
        read, wrote: mean seconds per token from where a step could begin until the target's version
            was there, if a drafted one was read first, and if not.
        untried: number of drafted steps since the slower of the two was tried.
        guesses: mean tokens that the target has kept of a drafted rest of a step, its own included.
        unguessed: number of rests that were written because guesses did not pay, since they were
            tried again.
        lacking: how many tokens fewer the last reads of portions gave than they had to; 0 where
            they gave more.
        alone: tokens that the target wrote alone since portions were tried again.
    """

    can_read: bool = False
    agreement: Mean = field(default_factory=Mean)
    read: Mean = field(default_factory=Mean)
    wrote: Mean = field(default_factory=Mean)
    untried: int = 0
    guesses: Mean = field(default_factory=Mean)
    unguessed: int = 0
    lacking: float = 0.0
    alone: int = 0

    def reads_next(self, times: ReadTimes) -> bool:
        """Decides whether the target reads the next drafted step before it writes: the faster way,
        and now and then the other.
        """
        gain = self.gain(times)
        self.untried += 1
        if self.untried < max(TRY_AGAIN, (max(gain, 1 / gain) - 1) / TRY_AGAIN_COST):
            return gain > 1
        self.untried = 0
        return gain <= 1

    def gain(self, times: ReadTimes) -> float:
        """How many times sooner the target's version of a step is there if a drafted one is read
        first: as measured, or as the agreement lets expect.
        """
        if min(self.read.weight, self.wrote.weight) > READ_TRIES:
            return self.wrote.value / self.read.value
        return self.foreseen_gain(times)

    def foreseen_gain(self, times: ReadTimes) -> float:
        """``gain`` as the agreement lets expect."""
        return reading.gain(self.agreed_share(), times)

    def version_came(self, read: bool, seconds: float) -> None:
        """Learns how many seconds a token of a target's version took, read or written."""
        (self.read if read else self.wrote).add(seconds)

    def compared(self, same: int, differs: bool) -> None:
        """Learns how many drafted tokens were the target's own, and whether one after them was not:
        from a read, or from two versions that were drawn with the same numbers.
        """
        self.agreement.add(1.0, same)
        self.agreement.add(0.0, int(differs))

    def portion_size(self, times: ReadTimes) -> int:
        """How many tokens to draft before the target reads them."""
        return reading.portion_size(self.agreed_share(), times)

    def agreed_share(self) -> float:
        """The share of drafted tokens that the target would have written there, as far as is
        known.
        """
        return self.agreement.given(TYPICAL_AGREEMENT, AGREEMENT_WEIGHT)

    def portion_read(self, tokens: int) -> None:
        """Learns how many tokens a read of a portion gave."""
        self.lacking = max(0.0, self.lacking + reading.LEAST_TOKENS_A_READ - tokens)

    def portions_pay(self) -> bool:
        """Whether the target writes sooner by reading portions, as far as the run's reads show."""
        return self.lacking < MOST_LACKING

    def wrote_alone(self, tokens: int) -> None:
        """Learns how many tokens the target has written alone, in whichever answers; after enough
        of them the next read of a portion decides whether they pay now.
        """
        self.alone += tokens
        if self.alone >= TOKENS_ALONE:
            self.alone = 0
            self.lacking = min(self.lacking, MOST_LACKING - 1)

    def guess_read(self, tokens: int) -> None:
        """Learns how many tokens were kept by reading a drafted rest of a step."""
        self.guesses.add(tokens)

    def guesses_next(self) -> bool:
        """Decides whether the next rest of a step is drafted and read, rather than written by the
        target. Where that did not pay, the next reads decide again now and then.
        """
        if not reading.pays(self.guesses.value * self.guesses.weight, self.guesses.weight):
            self.unguessed += 1
            if self.unguessed < TRY_AGAIN:
                return False
            self.unguessed = 0
            self.guesses.weight = reading.LEAST_READS - 1
        return True
