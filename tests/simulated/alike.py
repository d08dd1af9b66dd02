"""The texts of a draft that agrees with the target token by token.

The target has one version of each step. A draft writes the target's tokens up to a first one on
which they do not agree, and from there on a version of its own, which means the same or not. So a
target that reads drafted tokens, a token layer that verifies them and a judge that compares two
versions find what they would find on models: tokens that agree with a given probability, steps
that are accepted with another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean
from typing import Any, NamedTuple

from tests.simulated.model import _STEPS, Model, Place, Writer, Written, _uniform

OWN = -1  # divergence of a text that is the target's
_SPREAD = 0.7548776662466927, 0.5698402909980532  # of the sequence R2, in two dimensions


@dataclass(frozen=True)
class Alike(Model):
    """A target and a draft.

    Attributes:
        agreement: share of the places at which a draft that has written the target's tokens so far
            writes the target's next one.
        alpha: share of drafted steps that are accepted, those that are the target's own included;
            of the others so many mean the same that this share comes out.
    """

    agreement: float = 0.9

    def differs(self, question: int, position: int, offset: int) -> bool:
        """Whether the draft's token at a place of a step is another one than the target's."""
        return _uniform(self._noise("differs", question, position, offset, 8)) >= self.agreement

    def length(self, question: int, position: int, version: int) -> int:
        """Tokens of a version of a step."""
        return self._length(_uniform(self._noise("length", question, position, version, 8)))

    def means_the_same(self, number: int, position: int) -> bool:
        """Whether a draft's own version of a step of the question of this number means the
        target's. Evenly spread, so that few answers have the share that is asked for.
        """
        alpha = self.alpha[min(position, len(self.alpha) - 1)]
        drawn = ((number + 1) * _SPREAD[0] + (position + self.seed) * _SPREAD[1]) % 1.0
        return drawn < max(0.0, alpha - self.same) / max(1e-9, 1 - self.same)

    @cached_property
    def same(self) -> float:
        """Share of the drafted steps that are the target's own."""
        lengths = (self._length((n + 0.5) / 64) for n in range(64))
        return fmean(self.agreement**length for length in lengths)


class At(NamedTuple):
    """A place in an answer: after ``offset`` tokens of a step that is the target's up to token
    ``divergence`` (OWN: all of it).
    """

    question: int
    position: int
    divergence: int
    offset: int


class AlikeWriter(Writer):
    """Writes the texts of an ``Alike`` model."""

    model: Alike

    def __init__(self, model: Alike) -> None:
        super().__init__(model)
        chat = self.words.tokenizer.chat([{"role": "user", "content": "?"}], True).ids
        self._turn = chat[0]  # the token that opens a turn
        self._opening = chat[::-1].index(self._turn) + 1  # tokens that open the assistant's
        self._numbers: dict[int, int] = {}  # of questions, in order
        self._said: dict[str, tuple[int, int, int]] = {}  # versions of steps by their text
        self._version = lru_cache(maxsize=2**16)(self._new_version)

    def version(self, question: int, position: int, divergence: int = OWN) -> tuple[int, ...]:
        """The tokens of a version of a step."""
        return self._version(question, position, divergence)

    def _new_version(self, question: int, position: int, divergence: int) -> tuple[int, ...]:
        model, words = self.model, self.words
        last = words.eos if position >= model.steps - 1 else words.delimiter
        length = max(model.length(question, position, divergence), divergence + 2)
        noise = model._noise("words", question, position, divergence, length)
        ids = (*words.filler(noise[: length - 1]), last)
        if divergence != OWN:
            own = self.version(question, position)
            begun, first = own[:divergence], own[divergence]
            other = next(one for one in words.known if one not in (first, ids[divergence + 1]))
            ids = (*begun, other if ids[divergence] == first else ids[divergence])
            ids += (*words.filler(noise[divergence + 1 : length - 1]), last)
        self._said.setdefault(words.text(ids[:-1]).strip(), (question, position, divergence))
        return ids

    def place(self, prompt: Sequence[int]) -> At:  # type: ignore[override]
        """The place at the end of a prompt."""
        ids = tuple(prompt)
        try:
            begin = len(ids) - 1 - ids[::-1].index(self._turn) + self._opening
        except ValueError:
            begin = len(ids)
        question, answer = self.words.number(ids[:begin]), ids[begin:]
        self._numbers.setdefault(question, len(self._numbers))
        position = answer.count(self.words.delimiter)
        if position:
            answer = answer[len(answer) - answer[::-1].index(self.words.delimiter) :]
        own = self.version(question, position)
        same = next((n for n, one in enumerate(answer) if n >= len(own) or one != own[n]), OWN)
        return At(question, position, same, len(answer))

    def write(  # type: ignore[override]
        self, place: At, version: int, most: int, one_step: bool
    ) -> Written:
        """As ``Writer.write``; ``version`` 0 writes as the target."""
        ids: tuple[int, ...] = ()
        while True:
            question, position, divergence, offset = place
            if version and divergence == OWN:
                own = self.version(question, position)
                places = range(offset, len(own))
                differs = (n for n in places if self.model.differs(question, position, n))
                divergence = next(differs, OWN)
            rest = self.version(question, position, divergence)[offset:]
            if not rest:  # a longer text than this version has
                rest = self.version(question, position)[-1:]
            room = most - len(ids)
            ids += rest[:room]
            if len(rest) > room:
                return Written(ids, "length")
            if rest[-1] == self.words.eos:
                return Written(ids, "end")
            if one_step:
                return Written(ids, "delimiter")
            place = At(question, position + 1, OWN, 0)

    def confidence(self, ids: Sequence[int]) -> float:
        return -0.5

    def judge(self, prompt: Sequence[int]) -> str:
        texts = [one.strip() for one in _STEPS.findall(self.words.tokenizer.decode(prompt))[-2:]]
        known = [self._said.get(text) for text in texts]
        if len(known) == 2 and known[0] and known[1] and known[0][:2] == known[1][:2]:
            number = self._numbers.setdefault(known[0][0], len(self._numbers))
            alike = self.model.means_the_same(number, known[0][1])
        else:
            alike = len(set(texts)) == 1
        return "aligned" if alike else "unaligned"

    def reads(self, prompt: Sequence[int], start: int) -> list[list[list[Any]]]:
        """The most probable tokens of the target at the places of a prompt after ``start``, with
        log-probabilities that leave no doubt.
        """
        rows = []
        for end in range(start + 1, len(prompt)):
            question, position, divergence, offset = self.place(prompt[:end])
            version = self.version(question, position, divergence)
            token = version[min(offset, len(version) - 1)]
            rows.append(rows_of(token, self.words.known))
        return rows


def rows_of(token: int, known: Sequence[int]) -> list[list[Any]]:
    """A place at which a model writes this token."""
    other = known[0] if token != known[0] else known[1]
    return [[-1e-5, token, None], [-12.0, other, None]]


__all__ = ["OWN", "Alike", "AlikeWriter", "At", "Place", "rows_of"]
