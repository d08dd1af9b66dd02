"""A streamed text with its tokens, although it is streamed in other pieces than they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.frontend.stream_text import Chunk
from lr_sglang.steps.detokenize import Ids, added
from lr_sglang.steps.token_text import TokenText


class WholeTokens:
    """Gives a streamed text up to the end of a token, with the ids that were generated: encoding a text anew may take
    more of them. What is left goes with what follows.

    Args:
        known: of the ids.
    """

    def __init__(self, known: Tokenizer) -> None:
        self._known, self._text, self._ids, self._tail = known, "", Ids(), Ids()

    def add(self, chunks: Iterable[Chunk], ids: Sequence[int]) -> TokenText:
        """What can be given of the text and the tokens so far.

        Args:
            chunks: text, which may be less, or more, than that of ``ids``.
        """
        self._text += "".join(chunk.text for chunk in chunks)
        self._ids += tuple(ids)
        every = found = added(self._tail, self._ids, self._known.decode)
        size = len(self._ids)
        while size and (found.held or not self._text.startswith(found.text)):
            size -= 1
            found = added(self._tail, self._ids[:size], self._known.decode)
        if not size and not every.text.startswith(self._text):  # its tokens would read otherwise
            text, self._text, self._ids, self._tail = self._text, "", (), every.tail
            return TokenText.wrap(text)
        own, self._ids, self._tail = self._ids[:size], self._ids[size:], found.tail
        self._text = self._text[len(found.text) :]
        return TokenText.of(found.text, own, self._known.vocabulary)

    def rest(self, chunks: Iterable[Chunk]) -> TokenText:
        """All that is left; without tokens where a stop string cut the last one."""
        self._text += "".join(chunk.text for chunk in chunks)
        if self._text == added(self._tail, self._ids, self._known.decode, last=True).text:
            return TokenText.of(self._text, self._ids, self._known.vocabulary)
        return self.add((), ()) + TokenText.wrap(self._text)
