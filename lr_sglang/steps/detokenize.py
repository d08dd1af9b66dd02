"""Decodes tokens that arrive in parts into the same text as all of them at once.

Decoding each part by itself has two errors: a character whose bytes are in two parts is lost, and
decoders such as SentencePiece's remove the space before the first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lr_sglang.steps.token_text import TokenText

HALF = "\ufffd"  # the decoding of an incomplete character
CHARACTER_BYTES = 4  # bytes of one character; each may be a token
CONTEXT = 32  # number of tokens that are searched for one with a text

Decode = Callable[[Sequence[int]], str]
Ids = tuple[int, ...]


class Added(NamedTuple):
    """The text that tokens add to an earlier text.

    Attributes:
        text: whole characters only.
        tail: the last tokens; the next ones are decoded after them.
        held: number of tokens at the end of ``tail`` whose character is incomplete and not in
            ``text``.
    """

    text: str
    tail: Ids
    held: int


def added(head: Ids, ids: Sequence[int], decode: Decode, last: bool = False) -> Added:
    """The text of ``ids`` after ``head``, the ``tail`` of the tokens before them.

    Args:
        last: whether no tokens follow, so that ``text`` shows an incomplete last character as
            U+FFFD.
    """
    run = (*head, *ids)
    shown, _ = _whole(head, decode)
    text, size = _whole(run, decode)
    if last and size < len(run):
        # decoded apart: some decoders drop a character before an incomplete one
        text += decode(run[size:])
        size = len(run)
    return Added(text[len(shown) :], run[_context(run, size, text, decode) :], len(run) - size)


def joined(text: TokenText, vocabulary: str, decode: Decode) -> str:
    """Decodes the tokens of a program's text together; its pieces were decoded one by one.

    Args:
        vocabulary: of ``decode``; a piece of another vocabulary, or without tokens, keeps its text.
    """
    said = ""
    tail: Ids = ()
    for piece in text.pieces:
        if piece.ids is not None and piece.vocabulary == vocabulary:
            read = added(tail, piece.ids, decode)
            said += read.text
            tail = read.tail
        else:
            said += added(tail, (), decode, last=True).text + piece.text
            tail = ()
    return said + added(tail, (), decode, last=True).text


def _whole(run: Ids, decode: Decode) -> tuple[str, int]:
    """The text of the longest prefix of ``run`` that ends with a whole character, and its number of
    tokens.
    """
    text = decode(run)
    if not text.endswith(HALF):
        return text, len(run)
    parts = [text]  # index: number of last tokens that are left out
    while parts[-1].endswith(HALF) and len(parts) < min(CHARACTER_BYTES, len(run) + 1):
        parts.append(decode(run[: len(run) - len(parts)]))
    if parts[-1].endswith(HALF):  # bytes that no further token can complete
        late = next((late for late, text in enumerate(parts) if text == parts[0][:-1]), 0)
    else:
        late = len(parts) - 1
    return parts[late], len(run) - late


def _context(run: Ids, size: int, text: str, decode: Decode) -> int:
    """Start of the shortest run before ``size`` that decodes to whole characters; else, of one that
    has any text.
    """
    for late in range(1, min(size, CONTEXT)):
        found = decode(run[size - late : size])
        if found and HALF not in found and text.endswith(found):
            return size - late
    late = CONTEXT
    while late < size and not decode(run[size - late : size]):
        late *= 2
    return max(0, size - late)
