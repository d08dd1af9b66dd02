"""Adds the generated token ids to a streamed text whose chunks do not end where tokens end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lr_sglang.delivery.stream_text import Chunk
from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.steps.token_text import Ids, TokenText, added


class WholeTokens:
    """Returns a streamed text up to the end of a token, and holds the rest. Encoding it again could
    give other ids.

    Args:
        known: the tokenizer of the ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._known = tokenizer
        self._text = ""
        self._ids = Ids()
        self._tail = Ids()

    def add(self, chunks: Iterable[Chunk], ids: Sequence[int]) -> TokenText:
        """Adds text and ids, and takes out those that end together.

        Args:
            chunks: new text, which may be shorter or longer than the text of ``ids``.
        """
        self._text += "".join(chunk.text for chunk in chunks)
        self._ids += tuple(ids)
        every = found = added(self._tail, self._ids, self._known.decode)
        size = len(self._ids)
        while size and (found.held or not self._text.startswith(found.text)):
            size -= 1
            found = added(self._tail, self._ids[:size], self._known.decode)
        if not size and not every.text.startswith(self._text):
            # the text is not the decoding of the ids
            text = self._text
            self._text = ""
            self._ids = ()
            self._tail = every.tail
            return TokenText.wrap(text)
        own = self._ids[:size]
        self._ids = self._ids[size:]
        self._tail = found.tail
        self._text = self._text[len(found.text) :]
        return TokenText.of(found.text, own, self._known.vocabulary)

    def rest(self, chunks: Iterable[Chunk]) -> TokenText:
        """Adds the last text and takes out the rest; a part without ids if a stop string cuts the
        last token.
        """
        self._text += "".join(chunk.text for chunk in chunks)
        if self._text == added(self._tail, self._ids, self._known.decode, last=True).text:
            return TokenText.of(self._text, self._ids, self._known.vocabulary)
        return self.add((), ()) + TokenText.wrap(self._text)
