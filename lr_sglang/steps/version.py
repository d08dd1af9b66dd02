"""The target's version of the step after a prefix: what is known of it, and who writes the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lr_sglang.steps.step import Step

if TYPE_CHECKING:
    from lr_sglang.engine.branch import Branch

Ids = tuple[int, ...]


class Taken(NamedTuple):
    """What a read has given.

    Attributes:
        same: number of guessed tokens that are the target's own.
        whole: whether all of them are.
        tokens: number of tokens that are known now, and were not before.
    """

    same: int
    whole: bool
    tokens: int


@dataclass(eq=False)
class Version:
    """The target's tokens after a prefix. They are written by the target, or guessed by the draft
    and read by the target, which says up to where they are its own.

    Attributes:
        read_first: whether a drafted step is read by the target before it writes.
        known: its first tokens, as far as they are known.
        guess: drafted tokens after those, which the target has not read yet; None if there are
            none.
        guesser: the branch that wrote them; None where they are the drafted step.
        was_read: whether the target has read a part of it.
        branch: the request that writes, reads or guesses what comes after ``known``: in flight, or
            the one that completed it; None if nothing does.
        since: when it could begin, in seconds of the policy's clock; 0 if that is not known.
        step: the whole version; None as long as it is not known to its end.
        state: the program's state after it.
    """

    read_first: bool = False
    known: Ids = ()
    guess: Ids | None = None
    guesser: Branch | None = None
    was_read: bool = False
    branch: Branch | None = None
    since: float = 0.0
    step: Step | None = None
    state: Any = field(default=None, repr=False)

    @property
    def place(self) -> int:
        """Number of its tokens before what is written next."""
        return len(self.known) + len(self.guess or ())

    @property
    def can_be_written(self) -> bool:
        """Whether the rest of it is unknown, and nobody writes or has to read anything first."""
        return self.step is None and self.branch is None and self.guess is None

    def take(self, draws: Sequence[int | None]) -> Taken:
        """Takes what the target says of the guess: the tokens that it draws too, and its own after
        them.

        Args:
            draws: of the target, at each place of the guess and after it; None where one is not
                known. Nothing if the read has failed.
        """
        guess = self.guess or ()
        differing = (at for at, token in enumerate(guess) if draws[at : at + 1] != [token])
        same = next(differing, len(guess))
        own = [token for token in draws[same : same + 1] if token is not None]
        self.known += (*guess[:same], *own)
        self.guess = None
        self.was_read = True
        return Taken(same, same == len(guess), same + len(own))

    def complete(self, step: Step, state: Any) -> None:
        """Enters the whole version, and the program's state after it."""
        self.step = step
        self.state = state
