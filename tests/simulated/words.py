"""The words that simulated models write: each is one token, and the first few of a step say which
step it is.

A step reads ``So the cost has many each ... <blank line>``. Its first words encode the question,
the position, the version, the meaning and a checksum. So a simulated runtime needs no state: it
decodes its place from the prompt, and a simulated judge decodes from two steps whether they mean
the same.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from lr_sglang.engine.tokenizer import ModelTokenizer, load_tokenizer
from lr_sglang.pocket import weights
from lr_sglang.steps.step import DELIMITER

# The base of the digits; a digit is a word, and a number has two digits.
BASE = 200
NUMBERS = BASE * BASE
_START = "So"
# Number of first words: start, question (2), position (2), version, meaning, check.
HEAD = 8


class Head(NamedTuple):
    """The decoded first words of a step."""

    question: int
    position: int
    version: int
    meaning: int


@dataclass(frozen=True)
class Words:
    """A tokenizer's words.

    Attributes:
        known: ids of ``BASE`` words, each with a leading space.
        start, delimiter, eos: ids that begin a step, end a step, and end an answer.
    """

    tokenizer: ModelTokenizer
    known: tuple[int, ...]
    start: int
    delimiter: int
    eos: int

    @cached_property
    def value(self) -> dict[int, int]:
        return {token: digit for digit, token in enumerate(self.known)}

    @cached_property
    def spelled(self) -> dict[str, int]:
        """The digit of each word, by its text."""
        return {
            self.tokenizer.decode((token,)).strip(): digit for token, digit in self.value.items()
        }

    def head(self, head: Head) -> tuple[int, ...]:
        """The first words of a step."""
        digits = (
            *divmod(head.question, BASE),
            *divmod(head.position, BASE),
            head.version,
            head.meaning,
        )
        return (self.start, *(self.known[digit] for digit in (*digits, _check(digits))))

    def filler(self, noise: bytes) -> list[int]:
        return [self.known[byte % BASE] for byte in noise]

    def read(self, ids: Sequence[int]) -> Head | None:
        """The head at the beginning of ``ids``; None if there is none."""
        return self._read(tuple(ids[:HEAD])) if len(ids) >= HEAD and ids[0] == self.start else None

    @cached_property
    def _read(self) -> Callable[[tuple[int, ...]], Head | None]:
        value = self.value  # cached: all later prompts contain the head of a step
        return lru_cache(maxsize=4096)(lambda ids: _head([value.get(token) for token in ids[1:]]))

    def find(self, text: str) -> list[Head]:
        """The heads of all steps in a text, such as a judge's prompt."""
        found = (
            _head([self.spelled.get(word) for word in hit.split()[1:]])
            for hit in _HEADS.findall(text)
        )
        return [head for head in found if head is not None]

    def text(self, ids: Sequence[int]) -> str:
        """Decodes tokens one by one, because each is a whole word."""
        shown = self._shown
        for token in ids:
            if token not in shown:
                shown[token] = self.tokenizer.decode((token,))
        return "".join([shown[token] for token in ids])

    @cached_property
    def _shown(self) -> dict[int, str]:
        return {}

    def number(self, prompt: Sequence[int]) -> int:
        """The number of a question, derived from its prompt."""
        digest = hashlib.blake2b(array("i", prompt).tobytes(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % NUMBERS


_HEADS = re.compile(rf"\b{_START}(?: [A-Za-z]+){{{HEAD - 1}}}")


def _check(digits: Sequence[int]) -> int:
    return sum((place + 3) * digit for place, digit in enumerate(digits)) % BASE


def _head(digits: list[int | None]) -> Head | None:
    known = [digit for digit in digits if digit is not None]
    if len(known) != HEAD - 1 or _check(known[:-1]) != known[-1]:
        return None
    return Head(known[0] * BASE + known[1], known[2] * BASE + known[3], known[4], known[5])


@lru_cache(maxsize=1)
def pocket_words() -> Words:
    """The words of the pocket models' tokenizer, which is part of this package."""
    tokenizer = load_tokenizer(tokenizer_path())
    config = json.loads((weights("target") / "config.json").read_text("utf-8"))
    known = [token for token in range(config["vocab_size"]) if _is_word(tokenizer, token)]
    start, delimiter = tokenizer.encode(_START), tokenizer.encode(DELIMITER)
    assert len(known) >= BASE and len(start) == len(delimiter) == 1
    return Words(tokenizer, tuple(known[:BASE]), start[0], delimiter[0], config["eos_token_id"])


def tokenizer_path() -> str:
    """The folder of the tokenizer for clients of a simulated runtime."""
    return str(weights("target"))


def _is_word(tokenizer: ModelTokenizer, token: int) -> bool:
    text = tokenizer.decode((token,))
    plain = len(text) > 3 and text[0] == " " and text[1:].isalpha() and text.isascii()
    return plain and tokenizer.encode(text) == (token,)
