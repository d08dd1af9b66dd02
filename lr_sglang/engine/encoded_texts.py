"""Caches of a tokenizer: its latest results, and the tokens of beginnings that texts share.

A tokenizer splits a text into words and tokenizes each word by itself; the end of a word depends
only on the next few characters. So two texts have the same tokens up to a few characters before
their first difference, and the common beginning of a judge's prompts, for example, is tokenized
once.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from lr_sglang.engine.prefix_reuse import common_prefix

T = TypeVar("T")
EACH = 64  # minimum weight of an entry of a ``Memo``
HEAD = 256  # texts are looked up by this number of first characters
# characters before a difference that are tokenized again, beside the length of the longest added
# token
MARGIN = 64
KEPT = 32  # number of texts


class Memo(Generic[T]):
    """Caches the results of a function up to a total weight. Thread-safe; it calls the function
    without its lock.

    Args:
        function: of hashable arguments.
        weight: returns the weight of a result, from the result and its arguments.
        most: maximum total weight; the latest result is always kept.
    """

    def __init__(self, function: Callable[..., T], weight: Callable[..., int], most: int) -> None:
        self._function, self._weigh, self._most = function, weight, most
        self._kept: OrderedDict[tuple[Hashable, ...], tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.weight = 0

    def __call__(self, *given: Any) -> T:
        with self._lock:
            if found := self._kept.get(given):
                self._kept.move_to_end(given)
                return found[0]
        result = self._function(*given)
        weight = EACH + self._weigh(result, *given)
        with self._lock:
            if given not in self._kept:
                self._kept[given] = result, weight
                self.weight += weight
            while self.weight > self._most and len(self._kept) > 1:
                self.weight -= self._kept.popitem(last=False)[1][1]
        return result


class _Known:
    """A tokenized text: its tokens, and the indices at which its words begin, in characters and in
    tokens.

    Attributes:
        right: whether the tokens of another text, derived from this one, were correct; None before
            the first such text.
    """

    def __init__(self, text: str, encoding: Any) -> None:
        self.text = text
        self.ids: list[int] = encoding.ids
        words, places = encoding.word_ids, [begin for begin, _ in encoding.offsets]
        starts = [n for n in range(1, len(words)) if words[n] != words[n - 1]]
        # not before two blanks: the end of the word before them may depend on the text after all
        # blanks
        starts = [n for n in starts if not text[places[n] : places[n] + 2].isspace()]
        self.characters, self.tokens = [places[n] for n in starts], starts
        self.right: bool | None = None


class PrefixEncoder:
    """Encodes texts, and reuses the tokens of a beginning shared with an earlier text. Thread-safe.

    Args:
        tokenizer: a ``tokenizers.Tokenizer`` that does not put a space in front of a text.
        longest: characters of its longest added token.
    """

    def __init__(self, tokenizer: Any, longest: int) -> None:
        self._tokenizer, self._margin = tokenizer, MARGIN + longest
        self._known: dict[str, _Known] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens at its ends."""
        head = text[:HEAD]
        known = self._known.get(head)
        if known is None:
            return self._ids(text) if len(text) <= 2 * HEAD else self._first(text, head)
        same = common_prefix(known.text, text) - self._margin
        at = bisect_right(known.characters, same) - 1
        if at < 0 or known.right is False:
            return self._ids(text)
        ids = known.ids[: known.tokens[at]] + self._ids(text[known.characters[at] :])
        if known.right is None:  # the assumption above may be wrong for some tokenizers
            whole = self._ids(text)
            known.right, ids = ids == whole, whole
        return ids

    def _first(self, text: str, head: str) -> list[int]:
        known = self._known[head] = _Known(
            text, self._tokenizer.encode(text, add_special_tokens=False)
        )
        while len(self._known) > KEPT:
            self._known.pop(next(iter(self._known)), None)
        return known.ids

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[
            0
        ].ids  # without offsets
        return ids
