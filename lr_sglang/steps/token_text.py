"""Text that carries its token ids, and the text of token ids that arrive in parts.

The text of one branch must reach the next one as the same token ids: if it is tokenised again, the
ids may differ and miss the radix cache. SGLang's interpreter keeps a state's text in a ``str`` and
builds it with ``+=``, ``str()`` and slices, so ``TokenText``, a ``str``, carries ids through these
three operations.

Decoding each part of some tokens by itself has two errors: a character whose bytes are in two parts
is lost, and decoders such as SentencePiece's remove the space before the first token. ``added``
decodes a part after the tokens before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple, SupportsIndex

HALF = "\ufffd"  # the decoding of an incomplete character
CHARACTER_BYTES = 4  # bytes of one character; each may be a token
CONTEXT = 32  # number of tokens that are searched for one with a text
Decode = Callable[[Sequence[int]], str]
Ids = tuple[int, ...]


class Piece(NamedTuple):
    """A part of a text; ``ids`` are token ids of ``vocabulary``, None if it was not tokenised."""

    text: str
    ids: tuple[int, ...] | None
    vocabulary: str


class TokenText(str):
    """A ``str`` made of pieces that have token ids.

    ``str()`` returns the same object (SGLang's ``fork`` and fill call it), ``+`` joins pieces, and
    a slice keeps the ids of pieces that it contains whole. Other methods are those of ``str``.
    """

    __slots__ = ("_tail", "pieces")
    pieces: tuple[Piece, ...]
    # start, vocabulary and ids of the last call of ids_from
    _tail: tuple[int, str, tuple[int, ...]] | None

    def __new__(cls, pieces: tuple[Piece, ...] = (), text: str | None = None) -> TokenText:
        self = super().__new__(cls, "".join(p.text for p in pieces) if text is None else text)
        self.pieces = pieces
        self._tail = None
        return self

    @classmethod
    def of(cls, text: str, ids: tuple[int, ...], vocabulary: str) -> TokenText:
        """One piece: ``ids`` are tokens that a model wrote or read, ``text`` is their decoding."""
        return cls((Piece(text, ids, vocabulary),), text)

    @classmethod
    def wrap(cls, text: str) -> TokenText:
        """``text`` itself if it is a ``TokenText``, else one piece without ids."""
        if isinstance(text, TokenText):
            return text
        return cls((Piece(text, None, ""),) if text else (), text)

    def __str__(self) -> TokenText:
        return self

    def __add__(self, other: str) -> TokenText:
        more = other.pieces if isinstance(other, TokenText) else TokenText.wrap(other).pieces
        whole = TokenText(self.pieces + more, super().__add__(other))
        if self._tail is not None:
            start, vocabulary, ids = self._tail
            added = _ids(more, vocabulary)
            whole._tail = None if added is None else (start, vocabulary, ids + added)
        return whole

    def __radd__(self, other: str) -> TokenText:
        return TokenText(TokenText.wrap(other).pieces + self.pieces)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice) or key.step not in (None, 1):
            return super().__getitem__(key)
        start, stop, _ = key.indices(len(self))
        kept = []
        at = first = 0
        if stop == len(self):  # the end of a long text is found from there
            at = stop
            first = len(self.pieces)
            while first and at >= start:
                first -= 1
                at -= len(self.pieces[first].text)
        for piece in self.pieces[first:]:
            if at > stop:
                break
            end = at + len(piece.text)
            if start <= at and end <= stop:
                kept.append(piece)
            elif cut := super().__getitem__(slice(max(at, start), max(start, min(end, stop)))):
                kept.append(Piece(cut, None, ""))
            at = end
        return TokenText(tuple(kept))

    def ids_from(self, start: int, vocabulary: str) -> tuple[int, ...] | None:
        """The ids of ``self[start:]``; None if a part of it has no ids of this vocabulary, or it
        starts inside a piece.

        The result is cached, and ``+`` extends it, so that a step does not iterate over all pieces
        of a long answer.
        """
        if self._tail is None or self._tail[:2] != (start, vocabulary):
            at = number = 0
            while at < start and number < len(self.pieces):
                at += len(self.pieces[number].text)
                number += 1
            ids = _ids(self.pieces[number:], vocabulary) if at == start else None
            if ids is None:
                return None
            self._tail = start, vocabulary, ids
        return self._tail[2]

    def __getnewargs__(self) -> tuple[tuple[Piece, ...]]:  # type: ignore[override]
        return (self.pieces,)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of all pieces that have them, in order."""
        if len(self.pieces) == 1:  # the usual case
            return self.pieces[0].ids or ()
        return tuple(chain.from_iterable(piece.ids or () for piece in self.pieces))


def _ids(pieces: tuple[Piece, ...], vocabulary: str) -> tuple[int, ...] | None:
    if len(pieces) == 1 and pieces[0].vocabulary == vocabulary:
        return pieces[0].ids
    ids: list[int] = []
    for piece in pieces:
        if piece.ids is None or piece.vocabulary != vocabulary:
            return None
        ids += piece.ids
    return tuple(ids)


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
