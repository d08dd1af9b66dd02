"""Text that knows its token ids.

What one branch generated must reach the next one as token ids, never decoded and tokenised again: a seam that
tokenises differently would miss the radix cache and change what the model sees. SGLang's interpreter keeps a
state's text in a plain ``str`` and builds it with ``+=``, ``str()`` and slices, so a ``str`` that carries its ids
through exactly these three operations is all that token-exact programs need.
"""

from __future__ import annotations

from typing import NamedTuple, SupportsIndex


class Piece(NamedTuple):
    """A run of text; ``ids`` is None when it was never tokenised, else they are ids of ``vocabulary``."""

    text: str
    ids: tuple[int, ...] | None
    vocabulary: str


class TokenText(str):
    """A ``str`` made of pieces that remember their token ids.

    ``str()`` gives the same object back (SGLang's ``fork`` and fill call it), ``+`` joins pieces, and a slice keeps
    the pieces that it holds whole. Everything else is ``str``.
    """

    __slots__ = ("pieces",)
    pieces: tuple[Piece, ...]

    def __new__(cls, pieces: tuple[Piece, ...] = ()) -> TokenText:
        self = super().__new__(cls, "".join(p.text for p in pieces))
        self.pieces = pieces
        return self

    @classmethod
    def of(cls, text: str, ids: tuple[int, ...], vocabulary: str) -> TokenText:
        """One piece: ``ids`` are what the model wrote or read, ``text`` is their decoding."""
        return cls((Piece(text, ids, vocabulary),))

    @classmethod
    def wrap(cls, text: str) -> TokenText:
        """``text`` itself if it knows its ids, else one piece that does not."""
        if isinstance(text, TokenText):
            return text
        return cls((Piece(text, None, ""),) if text else ())

    def __str__(self) -> TokenText:
        return self

    def __add__(self, other: str) -> TokenText:
        return TokenText(self.pieces + TokenText.wrap(other).pieces)

    def __radd__(self, other: str) -> TokenText:
        return TokenText(TokenText.wrap(other).pieces + self.pieces)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice) or key.step not in (None, 1):
            return super().__getitem__(key)
        start, stop, _ = key.indices(len(self))
        kept, at = [], 0
        for piece in self.pieces:
            end = at + len(piece.text)
            if start <= at and end <= stop:
                kept.append(piece)
            elif (cut := super().__getitem__(slice(max(at, start), max(start, min(end, stop))))) and at < stop:
                kept.append(Piece(cut, None, ""))
            at = end
        return TokenText(tuple(kept))

    def __getnewargs__(self) -> tuple[tuple[Piece, ...]]:  # type: ignore[override]
        return (self.pieces,)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of all pieces that have them, in order."""
        return tuple(i for piece in self.pieces for i in piece.ids or ())
