"""The target's version of the step after a prefix: what is known of it, and who writes the rest."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lr_sglang.sglang_api.lines import common_prefix
from lr_sglang.steps.branch import Branch
from lr_sglang.steps.step import Step, Vocabulary, split_ids

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
            none. Where it is (), the target is to read no token, and draws the next itself.
        guesser: the branch that wrote them; None where they are the drafted step.
        was_read: whether the target has read a part of it.
        branch: the request that writes, reads or guesses what comes after ``known``: in flight, or
            the one that completed it; None if nothing does, and while one request writes several
            steps.
        since: when it could begin, in seconds of the policy's clock; 0 if that is not known.
        step: the whole version; None as long as it is not known to its end.
        state: the program's state after it.
        runs_on: whether the draft's guesses do not end with the step: whole steps are kept as soon
            as they are known, and what is known after them begins the next version.
        last_portion: whether the next guess ends with the step all the same.
        next_guesser: the branch that writes the guess after ``guess``; ``next_guess`` is what it
            wrote.
        agreed: for each of the first known tokens, whether the draft wrote it.
        parted: by place in the version, the drafted tokens from the first on that is not the
            target's.
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
    runs_on: bool = False
    last_portion: bool = False
    next_guesser: Branch | None = None
    next_guess: Ids | None = None
    agreed: list[bool] = field(default_factory=list)
    parted: dict[int, Ids] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of its tokens so far, guessed ones included."""
        return len(self.known) + len(self.guess or ())

    @property
    def can_be_written(self) -> bool:
        """Whether the rest of it is unknown, and nobody writes or has to read anything first."""
        return self.step is None and self.branch is None and self.guess is None

    def take(self, draws: Sequence[int | None], *, decoded: bool = False) -> Taken:
        """Takes what the target says of the guess: the tokens that it draws too, and its own after
        them.

        Args:
            draws: of the target, from the first place of the guess on; None where one is not known.
                Nothing if the read has failed.
            decoded: whether the target has decoded them; if it has read the guess, its draws count
                up to the first that differs.
        """
        guess = self.guess or ()
        same = common_prefix(guess, tuple(draws))
        last = len(draws) if decoded else same + 1
        own = [token for token in draws[same:last] if token is not None]
        if own and same < len(guess):
            self.parted[len(self.known) + same] = guess[same:]
        self.agreed += [True] * same + [False] * len(own)
        self.known += (*guess[:same], *own)
        self.guess = None
        self.was_read = True
        return Taken(same, same == len(guess), same + len(own))

    def go_on(self) -> None:
        """Makes what the draft writes ahead the next guess."""
        if self.next_guess is not None:
            self.guess = self.next_guess
            self.guesser = self.next_guesser
        else:
            self.branch = self.next_guesser
        self.next_guesser = None
        self.next_guess = None

    def draft_version(
        self, step: Step, before: Step | None, tokenizer: Vocabulary, ends: Set[int]
    ) -> Step | None:
        """The draft's version of a step that this one begins with: the step itself where the draft
        wrote each of its tokens; None where it has not written it from its beginning.

        Args:
            before: the step before it.
            tokenizer, ends: as of ``make_step``.
        """
        size = len(step.ids)
        if 0 < size <= len(self.agreed) and all(self.agreed[:size]):
            return step
        place = min((place for place in self.parted if place < size), default=None)
        if place is None or not all(self.agreed[:place]):
            return None
        ids = (*self.known[:place], *self.parted[place])
        return split_ids(ids, "length", tokenizer, ends, before)[0]

    def after(self, size: int) -> Version:
        """The version of the next step: what is known after ``size`` tokens, and who writes the
        next portion.
        """
        rest = self.known[size:]
        if not self.runs_on:
            return Version(known=rest)
        made = replace(self, known=rest, agreed=self.agreed[size:], branch=None)
        made.parted = {at - size: ids for at, ids in self.parted.items() if at >= size}
        return made

    def complete(self, step: Step, state: Any) -> None:
        """Enters the whole version, and the program's state after it."""
        self.step = step
        self.state = state
