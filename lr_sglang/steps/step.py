"""What a reasoning step is (paper section 3.1): text up to and including a blank line, or a cut at
a token cap; how a model marks its thinking, where steps end too; and what is said of two versions
of one step.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from lr_sglang.steps.token_text import TokenText, added

DELIMITER = "\n\n"
# To find the next step of a long generation, this many tokens are decoded, then twice as many while
# it does not end.
WINDOW = 256
_CONTEXT = 16  # characters
# ``Verdict.by`` of steps whose two versions were not compared: the draft came too late, or failed;
# the step follows a cut one; the judge accepts too many pairs that differ.
NOT_COMPARED = ("late", "draft", "guard", "untrusted")


class StepStop(str):
    """A stop string that stays in the text: marks a ``gen`` as a step (see ``dsl.step``)."""


class Ending(StrEnum):
    """How a step ended."""

    DELIMITER = "delimiter"
    END = "end of sequence"
    CAP = "token cap"


class Vocabulary(Protocol):
    """The methods of a tokenizer that splitting into steps needs."""

    vocabulary: str
    thinking: Markers

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""

    def special(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The special ids among these, which ``decode`` leaves out."""


@dataclass(frozen=True)
class Step:
    """One version of a reasoning step. It *is* its token ids; ``text`` is what they add to the text
    before them.

    Attributes:
        text: what the user reads, without the end-of-sequence token. A character that the token cap
            splits is in the text of the step that completes it.
        ids: token ids, the end-of-sequence token included when the model wrote it.
        ending: how it ended.
        closes_thinking: whether the marker that ends the thinking ends inside it.
        vocabulary: fingerprint of the tokenizer that ``ids`` belong to.
        special: the special tokens among ``ids``, which ``text`` does not show, without the end of
            sequence.
        tail: the last tokens; the next step is decoded after them.
        seam: the end of the unfinished steps that it continues, which may contain the beginning of
            a marker.
    """

    text: str
    ids: tuple[int, ...]
    ending: Ending
    closes_thinking: bool = False
    vocabulary: str = ""
    special: tuple[int, ...] = ()
    tail: tuple[int, ...] = field(default=(), repr=False, compare=False)
    seam: str = field(default="", repr=False, compare=False)

    @property
    def complete(self) -> bool:
        """Whether it ended by itself, not at the token cap."""
        return self.ending is not Ending.CAP

    @property
    def final(self) -> bool:
        """Whether the answer ends with it."""
        return self.ending is Ending.END

    def tokens(self) -> TokenText:
        """The step as text with token ids, to append to a program's state."""
        return TokenText.of(self.text, self.ids, self.vocabulary)


def same_ending(a: Step, b: Step) -> bool:
    """Whether two versions have the same ending; if not, they are rejected without a judge."""
    return a.ending is b.ending and a.closes_thinking == b.closes_thinking


def same_special(a: Step, b: Step) -> bool:
    """Whether two versions have the same special tokens, which a comparison of texts cannot see."""
    if a.vocabulary != b.vocabulary:
        return not a.special and not b.special
    return a.special == b.special and not (a.final and b.final and a.ids[-1:] != b.ids[-1:])


def delimiter_end(before: str, text: str) -> int | None:
    """The index in ``text`` after the first delimiter; None if there is none.

    ``before`` is the unfinished step that ``text`` continues; it may contain the beginning of the
    delimiter.

    >>> delimiter_end("a cut step\\n", "\\nThe next")
    1
    """
    if before.endswith("\n") and not before.endswith(DELIMITER) and text.startswith("\n"):
        return 1
    found = text.find(DELIMITER)
    return None if found < 0 else found + len(DELIMITER)


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """The index and the text of the stop string that ends first, where a stream would stop too."""
    found = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1:] if found else None


def first_of(ends: Set[int], ids: Sequence[int]) -> int | None:
    """The index of the first id that ends a sequence; None if there is none."""
    return (
        None if ends.isdisjoint(ids) else next(at for at, token in enumerate(ids) if token in ends)
    )


def make_step(
    ids: Sequence[int],
    finish: str,
    before: Step | None,
    tokenizer: Vocabulary,
    ends: Set[int],
    last: bool = False,
) -> Step:
    """Makes a step from the tokens that a runtime generated.

    Tokens after the one that completes the delimiter are dropped: a server may generate more, with
    speculative decoding or when the previous step contains the beginning of the delimiter.

    Args:
        ids: all generated token ids.
        finish: the server's finish type, ``stop`` or ``length``.
        before: the step before it; None at the beginning of an answer.
        tokenizer: the tokenizer that the ids belong to.
        ends: ids that end a sequence.
        last: whether the answer ends with it, so that its text shows an incomplete last character.
    """
    kept = tuple(ids)
    ending = Ending.CAP if finish == "length" else Ending.DELIMITER
    if (at := first_of(ends, kept)) is not None:
        kept = kept[: at + 1]
        ending = Ending.END
    head = _head(before, tokenizer)
    read = added(
        head,
        kept[:-1] if ending is Ending.END else kept,
        tokenizer.decode,
        last or ending is Ending.END,
    )
    marker = tokenizer.thinking.closes
    seam = (
        (before.seam + before.text)[1 - len(marker) :]
        if before is not None and not before.complete
        else ""
    )
    end = delimiter_end(seam, read.text)
    if end is not None and (end < len(read.text) or ending is not Ending.DELIMITER):
        kept = _shortest(kept, end, head, tokenizer)
        ending = Ending.DELIMITER
        read = added(head, kept, tokenizer.decode)
    special = tokenizer.special(kept[:-1] if ending is Ending.END else kept)
    closes = marker in seam + read.text
    return Step(read.text, kept, ending, closes, tokenizer.vocabulary, special, read.tail, seam)


def _head(before: Step | None, tokenizer: Vocabulary) -> tuple[int, ...]:
    """The tokens before a step that are its context in decoding."""
    if before is None:
        return ()
    return (
        before.tail
        if before.vocabulary == tokenizer.vocabulary
        else tokenizer.encode(before.text[-_CONTEXT:])
    )


def _shortest(
    ids: tuple[int, ...], end: int, head: tuple[int, ...], tokenizer: Vocabulary
) -> tuple[int, ...]:
    """The fewest leading ids whose text reaches ``end``."""
    low = 1
    high = len(ids)
    middle = high - 1  # in most cases no token is dropped
    while low < high:
        reached = len(added(head, ids[:middle], tokenizer.decode).text) >= end
        low, high = (low, middle) if reached else (middle + 1, high)
        middle = (low + high) // 2
    return ids[:low]


def up_to_marker(step: Step, before: Step | None, tokenizer: Vocabulary) -> Step:
    """A step that closes the thinking, without its tokens after the marker.

    Args:
        before: the step before it.
        tokenizer: the tokenizer that its ids belong to.
    """
    marker = tokenizer.thinking.closes
    head = _head(before, tokenizer)
    end = (step.seam + step.text).find(marker) + len(marker) - len(step.seam)
    ids = _shortest(step.ids, max(1, end), head, tokenizer)
    read = added(head, ids, tokenizer.decode)
    special = tokenizer.special(ids)
    return replace(
        step, text=read.text, ids=ids, ending=Ending.DELIMITER, special=special, tail=read.tail
    )


def completed(step: Step, tokenizer: Vocabulary) -> Step:
    """The step as the last of an answer: its text shows an incomplete last character as U+FFFD."""
    return replace(step, text=step.text + added(step.tail, (), tokenizer.decode, last=True).text)


def split_ids(
    ids: Sequence[int],
    finish: str,
    tokenizer: Vocabulary,
    ends: Set[int],
    before: Step | None = None,
    last: bool = True,
) -> list[Step]:
    """Splits the tokens of a generation into steps; arguments as for ``make_step``."""
    steps: list[Step] = []
    at = 0
    window = WINDOW
    while at < len(ids):
        rest = ids[at : at + window]
        whole = at + window >= len(ids)
        ended = finish if whole else "length"
        step = make_step(
            rest, ended, steps[-1] if steps else before, tokenizer, ends, last and whole
        )
        if not step.complete and not whole:
            window *= 2
            continue
        steps.append(step)
        at += len(step.ids)
        window = WINDOW
    return steps


@dataclass(frozen=True)
class Verdict:
    """Whether two versions of a step agree, who decided it, and why.

    Attributes:
        score: the number that the verifier measured, if any (a cosine, a rating, a
            log-probability).
        earlier: the verdicts of a cascade's stages before the one that decided.
    """

    accepted: bool
    by: str
    reason: str = ""
    score: float | None = None
    seconds: float = 0.0
    failed: bool = False
    earlier: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:  # numbers of numpy or torch cannot be written to a record
        if self.accepted is None or not hasattr(self.accepted, "__bool__"):
            raise TypeError(f"a verdict is true or false, not {self.accepted!r}")
        score = self.score if isinstance(self.score, float | int | None) else float(self.score)
        self.__dict__.update(
            accepted=bool(self.accepted), score=score, by=str(self.by), reason=str(self.reason)
        )


class Pair(NamedTuple):
    """Two versions of one step after the same prefix (s_j and d_j of the paper)."""

    target: Step
    draft: Step
    prefix_complete: bool = True


def without_a_judge(pair: Pair, words: bool = True) -> Verdict | None:
    """The rejection that needs no verifier: a cut prefix, different endings or special tokens; else
    None.

    Args:
        words: False for models of random weights, whose special tokens are ignored.
    """
    if not pair.prefix_complete:
        return Verdict(False, "guard", "the prefix ends in the middle of a step")
    if not same_ending(pair.target, pair.draft):
        return Verdict(False, "ending", "the versions end differently")
    if words and not same_special(pair.target, pair.draft):
        return Verdict(False, "special", "the versions have different special tokens")
    return None


@dataclass(frozen=True)
class Markers:
    """The texts around a model's thinking.

    Attributes:
        parser: SGLang's name of a reasoning parser with these markers.
        opens: begins the thinking, in the prompt or in the answer.
        closes: ends it; what follows is the answer.
        always: whether ``closes`` also stands before a call of a tool.
    """

    parser: str
    opens: str
    closes: str
    always: bool = True

    def ended(self, prompt: str, written: str) -> bool:
        """Whether the thinking of an open turn has ended. A thought without words is none: so
        templates switch the thinking off.

        Args:
            prompt: what is before the turn's own text, from the end of the last turn.
            written: the turn's own text.
        """
        opened = self.opens + prompt.rpartition(self.opens)[2] if self.opens in prompt else ""
        thought, marker, said = (opened + written).rpartition(self.closes)
        words = thought.rpartition(self.opens)[2].strip()
        return bool(marker and words) and self.opens not in said


TAGS = Markers("deepseek-r1", "<think>", "</think>")
MARKER_FAMILIES = (
    # harmony: messages of several channels, of which ``final`` is the answer
    Markers(
        "gpt-oss",
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        always=False,
    ),
    Markers("kimi", "◁think▷", "◁/think▷"),
    Markers("kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    Markers("minimax-m3", "<mm:think>", "</mm:think>"),
    Markers("mistral", "[THINK]", "[/THINK]"),
    Markers("apertus2509", "<|inner_prefix|>", "<|inner_suffix|>"),
    Markers("k2_horizon", "<ifm|think>", "</ifm|think>"),
    Markers("cohere_command4", "<|START_THINKING|>", "<|END_THINKING|>"),
    TAGS,
)


def markers_of(known: str) -> Markers:
    """The markers of a model, by the text of its chat template and of its added tokens; ``<think>``
    if there is none of the others.
    """
    return next((one for one in MARKER_FAMILIES if one.opens in known), TAGS)


def text_after_thinking(text: str) -> str:
    """The text after the thinking, whose markers may be any; empty if the thinking never ends."""
    for one in MARKER_FAMILIES:
        text = text.rpartition(one.closes)[2]
        if one.opens in text:
            return ""
    return text
