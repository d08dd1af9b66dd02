"""What a reasoning step is (paper section 3.1): text up to and including a blank line, or a cut at a token cap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lr_sglang.tokens import TokenText

DELIMITER = "\n\n"
THINK_END = "</think>"
# A long generation is decoded for its next step in pieces of this many tokens at first, doubled while there is no end.
WINDOW = 256


class Ending(StrEnum):
    """How a step ended."""

    DELIMITER = "delimiter"
    END = "end of sequence"
    CAP = "token cap"


@dataclass(frozen=True)
class Step:
    """One version of a reasoning step. It *is* its token ids; ``text`` is their decoding.

    Attributes:
        text: what the user reads, without the end-of-sequence token.
        ids: token ids, the end-of-sequence token included when the model wrote it.
        ending: how it ended.
        closes_thinking: whether ``</think>`` stands inside.
        vocabulary: fingerprint of the tokenizer that ``ids`` belong to.
    """

    text: str
    ids: tuple[int, ...]
    ending: Ending
    closes_thinking: bool = False
    vocabulary: str = ""

    @property
    def complete(self) -> bool:
        """Ended by itself, not at the token cap."""
        return self.ending is not Ending.CAP

    @property
    def final(self) -> bool:
        """Nothing comes after it."""
        return self.ending is Ending.END

    def tokens(self) -> TokenText:
        """For appending to a program's state."""
        return TokenText.of(self.text, self.ids, self.vocabulary)


def same_ending(a: Step, b: Step) -> bool:
    """Whether two versions end alike; if they do not, no judge can make them equal."""
    return a.ending is b.ending and a.closes_thinking == b.closes_thinking


def delimiter_end(before: str, text: str) -> int | None:
    """Where the first step in ``text`` ends, as an index into it, or None if it does not end there.

    ``before`` is the text of an unfinished step that ``text`` goes on with. A delimiter may straddle the seam:
    the server looks for it in new text only, so a step cut after the first newline would be missed.

    >>> delimiter_end("a cut step\\n", "\\nThe next")
    1
    """
    if before.endswith("\n") and not before.endswith(DELIMITER) and text.startswith("\n"):
        return 1
    found = text.find(DELIMITER)
    return None if found < 0 else found + len(DELIMITER)


def make_step(
    ids: Sequence[int],
    finish: str,
    before: str,
    decode: Callable[[Sequence[int]], str],
    eos: frozenset[int],
    vocabulary: str = "",
) -> Step:
    """Makes a step of what a runtime generated.

    Tokens after the first one that completes the delimiter are dropped: with speculative decoding, or when the
    delimiter straddles a seam, a server may write past it.

    Args:
        ids: all generated token ids.
        finish: the server's finish type, ``stop`` or ``length``.
        before: the text of the unfinished step before it ("" after a complete one).
        decode: ids to text.
        eos: ids that end a sequence.
        vocabulary: fingerprint of the tokenizer.
    """
    kept = tuple(ids)
    for at, token in enumerate(kept):
        if token in eos:
            kept, ending = kept[: at + 1], Ending.END
            break
    else:
        ending = Ending.CAP if finish == "length" else Ending.DELIMITER
    text = decode(kept[:-1] if ending is Ending.END else kept)
    end = delimiter_end(before, text)
    if end is not None and (end < len(text) or ending is not Ending.DELIMITER):
        kept, ending = _shortest(kept, end, decode), Ending.DELIMITER
        text = decode(kept)
    return Step(text, kept, ending, THINK_END in text, vocabulary)


def _shortest(ids: tuple[int, ...], end: int, decode: Callable[[Sequence[int]], str]) -> tuple[int, ...]:
    """The fewest leading ids whose text reaches ``end``."""
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(decode(ids[:middle])) >= end else (middle + 1, high)
    return ids[:low]


def split_ids(
    ids: Sequence[int],
    finish: str,
    decode: Callable[[Sequence[int]], str],
    eos: frozenset[int],
    vocabulary: str = "",
) -> list[Step]:
    """Cuts the tokens of a whole generation into steps; arguments as for ``make_step``."""
    steps: list[Step] = []
    at, window = 0, WINDOW
    while at < len(ids):
        rest = ids[at : at + window]
        whole = at + window >= len(ids)
        step = make_step(rest, finish if whole else "length", "", decode, eos, vocabulary)
        if not step.complete and not whole:
            window *= 2
            continue
        steps.append(step)
        at, window = at + len(step.ids), WINDOW
    return steps


def split(text: str) -> list[str]:
    """Cuts a whole answer into steps; joined again they are the text.

    >>> split("One.\\n\\nTwo.")
    ['One.\\n\\n', 'Two.']
    """
    steps = []
    while text:
        end = delimiter_end("", text)
        steps.append(text[:end])
        text = text[len(steps[-1]) :]
    return steps
