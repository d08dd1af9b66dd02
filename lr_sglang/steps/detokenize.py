"""Decodes tokens that arrive in parts to the text that they have as a whole.

Two things go wrong where each part is decoded by itself: a character whose bytes are in two parts is lost in both, and
decoders such as SentencePiece's cut the space before the first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lr_sglang.steps.token_text import TokenText

HALF = "\ufffd"  # the decoding of an incomplete character
MAX_BYTES = 4  # of one character, each of which may be a token
CONTEXT = 32  # tokens that are searched for one that has a text

Decode = Callable[[Sequence[int]], str]
Ids = tuple[int, ...]


class Added(NamedTuple):
    """What tokens add to a text.

    Attributes:
        text: of whole characters.
        tail: the last tokens, the context in which the next ones are decoded.
        held: how many of them are the beginning of a character that is not in ``text``.
    """

    text: str
    tail: Ids
    held: int


def added(head: Ids, ids: Sequence[int], decode: Decode, last: bool = False) -> Added:
    """The text of ``ids`` after ``head``, which is the ``tail`` of what came before.

    Args:
        last: nothing comes after them, so that half a character is shown as what it is.
    """
    run = (*head, *ids)
    shown, _ = _whole(head, decode)
    text, size = _whole(run, decode)
    if last and size < len(run):  # not decoded as a whole: some decoders drop a character before an incomplete one
        text, size = text + decode(run[size:]), len(run)
    return Added(text[len(shown) :], run[_context(run, size, text, decode) :], len(run) - size)


def joined(text: TokenText, vocabulary: str, decode: Decode) -> str:
    """What a program made of generations, each of which was decoded by itself, as the text of all their tokens.

    Args:
        vocabulary: that ``decode`` reads; a piece of another one, or without tokens, is as it is.
    """
    said, tail = "", Ids()
    for piece in text.pieces:
        if piece.ids is not None and piece.vocabulary == vocabulary:
            read = added(tail, piece.ids, decode)
            said, tail = said + read.text, read.tail
        else:
            said, tail = said + added(tail, (), decode, last=True).text + piece.text, ()
    return said + added(tail, (), decode, last=True).text


def _whole(run: Ids, decode: Decode) -> tuple[str, int]:
    """The text of the leading tokens that end with a whole character, and how many they are."""
    text = decode(run)
    if not text.endswith(HALF):
        return text, len(run)
    parts = [text]  # by how many of the last tokens are left out
    while parts[-1].endswith(HALF) and len(parts) < min(MAX_BYTES, len(run) + 1):
        parts.append(decode(run[: len(run) - len(parts)]))
    if parts[-1].endswith(HALF):  # something before them is no character at all, and stays so
        late = next((late for late, text in enumerate(parts) if text == parts[0][:-1]), 0)
    else:
        late = len(parts) - 1
    return parts[late], len(run) - late


def _context(run: Ids, size: int, text: str, decode: Decode) -> int:
    """Where the fewest tokens before ``size`` begin that have a text of whole characters; or some that have a text."""
    for late in range(1, min(size, CONTEXT)):
        found = decode(run[size - late : size])
        if found and HALF not in found and text.endswith(found):
            return size - late
    late = CONTEXT
    while late < size and not decode(run[size - late : size]):
        late *= 2
    return max(0, size - late)
