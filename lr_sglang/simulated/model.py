"""The steps of simulated models, drawn from the seed, the question, the position and the version alone.

So the same drafts agree at any timing: on the real clock, on the virtual one, and in another process.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Literal, NamedTuple

from lr_sglang.config_model import ConfigModel, need
from lr_sglang.simulated.words import BASE, HEAD, NUMBERS, Head, Words, pocket_words

TURN = 64  # tokens that a judge's prompt may have around its two steps
STEPS = 2**16  # that a writer remembers, some 300 bytes each
TARGET = 0  # the version that the target writes of every step; drafts are versions from 1
Finish = Literal["delimiter", "end", "length"]


@dataclass(frozen=True)
class Model(ConfigModel):
    """What target, draft and judge of one simulation know.

    Attributes:
        alpha: share of drafts that agree, by position; the last holds for all positions after it.
        trace: by question, which positions' drafts agree, in place of ``alpha``; begun again where it ends.
        steps: of an answer.
        tokens: of a step, on average, its blank line among them.
        spread: how much they vary: standard deviation over mean, log-normal; 0 is not at all.
        own_words: a draft that agrees says it in other words, so that a judge is needed; else in the very same.
        auc: how well a draft's confidence tells what agrees from what does not: the chance that of two such drafts the
            one that agrees has more of it; 0.5 is not at all.
        width: drafted alternatives per step; with more than one they follow from the sampling seeds.
    """

    alpha: tuple[float, ...] = (0.63,)
    trace: tuple[tuple[bool, ...], ...] = ()
    steps: int = 300
    tokens: int = 24
    spread: float = 0.0
    own_words: bool = True
    auc: float = 0.5
    width: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        need(bool(self.alpha) and all(0 <= a <= 1 for a in self.alpha), "alpha: must be in [0, 1], one or more")
        need(all(self.trace), "trace: a question without positions")
        need(1 <= self.steps < NUMBERS, f"steps: must be in 1..{NUMBERS - 1}")
        need(self.tokens > HEAD, f"tokens: a step has at least {HEAD + 1}")
        need(0 <= self.spread <= 2, "spread: must be in 0..2")
        need(0 < self.auc < 1, "auc: must be in (0, 1)")

    def agrees(self, question: int, position: int, version: int) -> bool:
        """Whether a version of a step means what the target's means."""
        if version == TARGET:
            return True
        if self.trace:
            row = self.trace[question % len(self.trace)]
            return row[position % len(row)]
        alpha = self.alpha[min(position, len(self.alpha) - 1)]
        return _uniform(self._noise("agrees", question, position, version, 8)) < alpha

    def confidence(self, question: int, position: int, version: int) -> float:
        """The mean log-probability of a drafted step: two normal distributions, of what agrees and what does not."""
        drawn = NormalDist().inv_cdf(
            0.5 + 0.999999 * (_uniform(self._noise("sure", question, position, version, 8)) - 0.5)
        )
        apart = math.sqrt(2) * NormalDist().inv_cdf(self.auc)
        drawn += apart / 2 if self.agrees(question, position, version) else -apart / 2
        return min(0.0, 0.1 * drawn - 0.8)

    def rated(self, question: int, position: int, version: int) -> float:
        """Chance, in [0, 1): what a rating of the step is drawn with."""
        return _uniform(self._noise("rated", question, position, version, 8))

    def version(self, role: str, seed: int | None = None) -> int:
        if role != "draft":
            return TARGET
        return 1 if self.width == 1 or seed is None else 1 + seed % (BASE - 1)

    def step(self, words: Words, question: int, position: int, version: int) -> tuple[int, ...]:
        """The tokens of one version of a step."""
        agrees = self.agrees(question, position, version)
        if agrees and not self.own_words:
            version = TARGET
        noise = self._noise("step", question, position, version, 8 + self.longest)
        length = self._length(_uniform(noise[:8]))
        meaning = self._noise("means", question, position, TARGET, 1)[0] % BASE
        head = Head(question, position, version, meaning if agrees else (meaning + version) % BASE)
        last = words.eos if position >= self.steps - 1 else words.delimiter
        return (*words.head(head), *words.filler(noise[8 : 8 + length - HEAD - 1]), last)

    @property
    def longest(self) -> int:
        return self.tokens if not self.spread else 6 * self.tokens

    def _length(self, uniform: float) -> int:
        if not self.spread:
            return self.tokens
        sigma = math.sqrt(math.log(1 + self.spread**2))
        drawn = NormalDist(-(sigma**2) / 2, sigma).inv_cdf(min(max(uniform, 1e-9), 1 - 1e-9))
        return min(max(HEAD + 1, round(self.tokens * math.exp(drawn))), self.longest)

    def _noise(self, what: str, question: int, position: int, version: int, size: int) -> bytes:
        key = f"{self.seed}/{what}/{question}/{position}/{version}"
        return hashlib.shake_128(key.encode()).digest(size)


def _uniform(noise: bytes) -> float:
    return int.from_bytes(noise[:8], "big") / 2**64


class Place(NamedTuple):
    """Where an answer is: ``offset`` tokens into a version of a step (0: before it, and the version is open)."""

    question: int
    position: int = 0
    version: int = TARGET
    offset: int = 0


@dataclass(frozen=True)
class Written:
    """What a role wrote: tokens, why it stopped, and where the answer is then."""

    ids: tuple[int, ...]
    finish: Finish
    place: Place


class Writer:
    """Writes for every role."""

    def __init__(self, model: Model) -> None:
        self.model, self.words = model, pocket_words()
        self._step = lru_cache(maxsize=STEPS)(partial(model.step, self.words))  # the next prompt has it in it

    def prepare(self, questions: Sequence[int]) -> None:
        """Writes the steps of these questions now, so that a measurement of the controller does not contain it."""
        for question in questions:
            for position in range(self.model.steps):
                for version in (TARGET, 1):
                    self._step(question, position, version)

    def place(self, prompt: Sequence[int]) -> Place:
        """The place at which a prompt ends. Text after the end of a step belongs to another turn: its answer begins."""
        found = self._place(prompt)
        question, position, version, offset = found
        if offset and offset >= len(self._step(question, position, version)):
            return Place(self.words.number(prompt))
        return found

    def _place(self, prompt: Sequence[int]) -> Place:
        words, size = self.words, len(prompt)
        near, offset = tuple(prompt[-2 * self.model.longest :])[::-1], 0  # from its end
        while words.start in near[offset:]:
            offset = near.index(words.start, offset) + 1
            if head := words.read(prompt[size - offset : size - offset + HEAD]):
                after = near[: max(0, offset - HEAD)]
                if words.delimiter in after:  # the next step may be cut within its head
                    return Place(head.question, head.position + 1, TARGET, after.index(words.delimiter))
                return Place(head.question, head.position, head.version, offset)
        return Place(words.number(prompt))

    def write(self, place: Place, version: int, most: int, one_step: bool) -> Written:
        """Goes on from a place.

        Args:
            version: that the role writes.
            most: tokens.
            one_step: whether a blank line ends it.
        """
        ids: tuple[int, ...] = ()
        question, position, now, offset = place
        while True:
            now = now if offset else version
            rest = self._step(question, position, now)[offset:]
            room = most - len(ids)
            ids += rest[:room]
            if len(rest) > room:
                return Written(ids, "length", Place(question, position, now, offset + room))
            position, offset, last = position + 1, 0, rest[-1]
            if last == self.words.eos:
                return Written(ids, "end", Place(question, position))
            if one_step:
                return Written(ids, "delimiter", Place(question, position))

    def reported(self, written: Written, most: int) -> Written:
        """What a server reports that was asked for ``most`` tokens: of an end at the last of them, the length."""
        return written if len(written.ids) < most else replace(written, finish="length")

    def confidence(self, ids: Sequence[int]) -> float:
        """The draft's, in the step that it wrote."""
        head = self.words.read(ids[:HEAD])
        return self.model.confidence(head.question, head.position, head.version) if head else 0.0

    def judge(self, prompt: Sequence[int]) -> str:
        """The label for the last two steps that a judge's prompt shows; it has opened the label with a bracket."""
        for reach in (2 * self.model.longest + TURN, len(prompt)):  # most prompts end with the steps
            heads = self.words.find(self.words.tokenizer.decode(prompt[-reach:]))[-2:]
            if len(heads) == 2:
                break
        alike = len(heads) == 2 and heads[0][:2] == heads[1][:2] and heads[0].meaning == heads[1].meaning
        return "aligned" if alike else "unaligned"
