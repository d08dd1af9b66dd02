"""Text that carries its token ids.

The text of one branch must reach the next one as the same token ids: if it is tokenised again, the
ids may differ and miss the radix cache. SGLang's interpreter keeps a state's text in a ``str`` and
builds it with ``+=``, ``str()`` and slices, so this ``str`` carries ids through these three
operations.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple, SupportsIndex


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
