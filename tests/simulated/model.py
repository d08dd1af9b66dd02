"""The steps of simulated models, which depend only on the seed, the question, the position and the
version.

So the same drafts are accepted at any timing: on the real clock, on the virtual clock, and in
another process.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Literal, NamedTuple

from tests.simulated.words import BASE, HEAD, Head, Words, pocket_words

TURN = 64  # maximum tokens of a judge's prompt around its two steps
STEPS = 2**16  # number of steps that a writer caches, about 300 bytes each
TARGET = 0  # the target's version of every step; drafts are versions from 1
Finish = Literal["delimiter", "end", "length"]
# A version of a step in a judge's prompt (programs/judge.py).
_STEPS = re.compile(r"(?:<start_s\d>\n|Step \d: )(.*)")


@dataclass(frozen=True)
class Model:
    """The texts of target, draft and judge in one simulation. A draft agrees if it means the same
    as the target's step.

    Attributes:
        alpha: share of drafts that agree, by position; the last value is for all further positions.
        trace: by question, whether the draft of each position agrees, instead of ``alpha``;
            repeated at its end.
        steps: number of steps of an answer.
        tokens: mean tokens of a step, including its blank line.
        spread: standard deviation over mean of these tokens, which are log-normal; 0 for equal
            lengths.
        own_words: whether a draft that agrees has other words than the target's step, so that a
            judge is needed.
        auc: the probability that a draft that agrees has a higher confidence than one that does
            not; 0.5 means that the confidence has no information.
        width: drafted alternatives per step; more than one are chosen by the sampling seeds.
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

    def agrees(self, question: int, position: int, version: int) -> bool:
        """Whether a version of a step means the same as the target's."""
        if version == TARGET:
            return True
        if self.trace:
            row = self.trace[question % len(self.trace)]
            return row[position % len(row)]
        alpha = self.alpha[min(position, len(self.alpha) - 1)]
        return _uniform(self._noise("agrees", question, position, version, 8)) < alpha

    def confidence(self, question: int, position: int, version: int) -> float:
        """The mean log-probability of a drafted step; those that agree and those that do not have
        different means.
        """
        drawn = NormalDist().inv_cdf(
            0.5 + 0.999999 * (_uniform(self._noise("sure", question, position, version, 8)) - 0.5)
        )
        apart = math.sqrt(2) * NormalDist().inv_cdf(self.auc)
        drawn += apart / 2 if self.agrees(question, position, version) else -apart / 2
        return min(0.0, 0.1 * drawn - 0.8)

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
    """A place in an answer: after ``offset`` tokens of a version of a step (0: before it, for any
    version).
    """

    question: int
    position: int = 0
    version: int = TARGET
    offset: int = 0


@dataclass(frozen=True)
class Written:
    """The tokens that a role wrote, and why it stopped."""

    ids: tuple[int, ...]
    finish: Finish


class Writer:
    """Writes the texts of all roles."""

    def __init__(self, model: Model) -> None:
        self.model, self.words = model, pocket_words()
        # later prompts contain it
        self._step = lru_cache(maxsize=STEPS)(partial(model.step, self.words))

    def prepare(self, questions: Sequence[int]) -> None:
        """Caches the steps of these questions, so that a measurement of the controller does not
        include that work.
        """
        for question in questions:
            for position in range(self.model.steps):
                for version in (TARGET, 1):
                    self._step(question, position, version)

    def place(self, prompt: Sequence[int]) -> Place:
        """The place at the end of a prompt. Text after the last step of an answer is another turn,
        of a new answer.
        """
        found = self._place(prompt)
        question, position, version, offset = found
        if offset and offset >= len(self._step(question, position, version)):
            return Place(self.words.number(prompt))
        return found

    def _place(self, prompt: Sequence[int]) -> Place:
        words, size = self.words, len(prompt)
        near, offset = tuple(prompt[-2 * self.model.longest :])[::-1], 0  # reversed
        while words.start in near[offset:]:
            offset = near.index(words.start, offset) + 1
            if head := words.read(prompt[size - offset : size - offset + HEAD]):
                after = near[: max(0, offset - HEAD)]
                if words.delimiter in after:  # the next step may be cut within its head
                    return Place(
                        head.question, head.position + 1, TARGET, after.index(words.delimiter)
                    )
                return Place(head.question, head.position, head.version, offset)
        return Place(words.number(prompt))

    def write(self, place: Place, version: int, most: int, one_step: bool) -> Written:
        """Continues an answer from a place.

        Args:
            version: the version of steps that the role writes.
            most: maximum number of tokens.
            one_step: whether to stop at the end of a step.
        """
        ids: tuple[int, ...] = ()
        question, position, now, offset = place
        while True:
            now = now if offset else version
            rest = self._step(question, position, now)[offset:]
            room = most - len(ids)
            ids += rest[:room]
            if len(rest) > room:
                return Written(ids, "length")
            position, offset, last = position + 1, 0, rest[-1]
            if last == self.words.eos:
                return Written(ids, "end")
            if one_step:
                return Written(ids, "delimiter")

    def confidence(self, ids: Sequence[int]) -> float:
        """The draft's confidence in a step that it wrote."""
        head = self.words.read(ids[:HEAD])
        return self.model.confidence(head.question, head.position, head.version) if head else 0.0

    def judge(self, prompt: Sequence[int]) -> str:
        """The label for the last two steps in a judge's prompt, which ends with the label's opening
        bracket.
        """
        # both steps are at the end of most prompts
        for reach in (
            2 * self.model.longest + TURN,
            len(prompt),
        ):
            heads = self.words.find(self.words.tokenizer.decode(prompt[-reach:]))[-2:]
            if len(heads) == 2:
                break
        if len(heads) == 2:
            alike = heads[0][:2] == heads[1][:2] and heads[0].meaning == heads[1].meaning
        else:  # steps of other models: those of a check of the judge
            texts = _STEPS.findall(self.words.tokenizer.decode(prompt))[-2:]
            alike = len({text.removesuffix(".") for text in texts}) == 1
        return "aligned" if alike else "unaligned"


@dataclass(frozen=True)
class Simulation:
    """Three simulated runtimes.

    Attributes:
        step_seconds: time of a target step of mean length without concurrent requests; the same for
            each token.
        c1: time of a draft's token over that of a target's token.
        judge_seconds: time of a verdict.
        slowdown: share by which each further concurrent request slows the others, on every runtime.
        slots: requests that each runtime serves at a time; None for no limit.
        prefill: time to score a drafted step over that of writing it.
    """

    model: Model = field(default_factory=Model)
    step_seconds: float = 0.2
    c1: float = 0.1
    judge_seconds: float = 0.04
    slowdown: float = 0.0
    slots: int | None = None
    prefill: float = 0.05

    def work(self, role: str, tokens: int, scored: int = 0) -> float:
        """Seconds to write ``tokens`` and to score ``scored`` tokens of the prompt, without
        concurrent requests.
        """
        if role == "judge":
            return self.judge_seconds
        seconds = self.step_seconds * (tokens + self.prefill * scored) / self.model.tokens
        return seconds * self.c1 if role == "draft" else seconds

    def slower(self, count: int) -> float:
        """The factor by which ``count`` concurrent requests take longer than one alone."""
        return 1 + self.slowdown * max(0, count - 1)

    @property
    def steady(self) -> bool:
        """Whether the durations of requests are independent of each other."""
        return not self.slowdown and self.slots is None
