"""Turns an answer's tokens into chunks for a client: whole characters, up to a stop string,
reasoning separated; and adds the token ids to such a text again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.steps.step import TAGS, Markers, first_stop
from lr_sglang.steps.token_text import Ids, TokenText, added


class Chunk(NamedTuple):
    """A piece of text for the client."""

    kind: Literal["content", "reasoning"]
    text: str


class Stops:
    """Cuts a streamed text before its first stop string, which may be spread over several pieces.

    Args:
        strings: stop strings, none of them empty.
        keep: whether the stop string that was found is returned, too.
        thinks: whether the text begins within a thought, up to whose end nothing is searched; None
            if a marker at its beginning says so. False searches all of it.

    Attributes:
        hit: the stop string that was found, else empty; no text follows it.
        shown: number of characters returned so far.
    """

    def __init__(
        self,
        strings: Sequence[str] = (),
        keep: bool = False,
        thinks: bool | None = False,
        markers: Markers = TAGS,
    ) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self._keep = keep
        self._markers = markers
        self._thinks = thinks
        self.hit = ""
        self.shown = 0

    def add(self, text: str) -> str:
        """Returns the text that cannot be part of a stop string, and holds the rest."""
        if self.hit:
            return ""
        text = self._held + text
        begin = self._thought(text)
        if self._thinks is not False:
            self._held = text[begin:]
            self.shown += begin
            return text[:begin]
        found, self.hit = first_stop(text[begin:], self._strings) or (None, "")
        end = len(text) - beginning(text[begin:], self._strings)
        end = end if found is None else begin + found
        self._held = "" if self.hit else text[end:]
        self.shown += end
        return text[:end] + (self.hit if self._keep else "")

    def _thought(self, text: str) -> int:
        """The number of characters that are known to be of the thought, its end included; finds out
        whether it goes on.
        """
        opens = self._markers.opens
        closes = self._markers.closes
        begun = text.lstrip()[: len(opens)]
        if self._thinks is None and (begun == opens or not opens.startswith(begun)):
            self._thinks = begun == opens
        if not self._thinks:
            return 0
        thought, marker, _ = text.partition(closes)
        self._thinks = not marker
        return len(thought) + len(marker) - (0 if marker else beginning(thought, (closes,)))

    def rest(self) -> str:
        """Takes out the held text; call it at the end."""
        held = self._held
        self._held = ""
        self.shown += len(held)
        return held


class Reasoning:
    """Separates a model's reasoning from its answer at the markers of its thinking.

    The marker that opens it is the end of the prompt with some templates, with others the model
    writes it. Without it all text is content.

    Args:
        inside: whether the prompt ends with that marker.
        split: False makes all text content.
        whole: whether the reasoning comes in one piece, when it has ended.

    Attributes:
        length: number of characters of the reasoning with its markers, when it has ended.
    """

    def __init__(
        self,
        inside: bool = False,
        split: bool = True,
        whole: bool = False,
        markers: Markers = TAGS,
    ) -> None:
        self.markers = markers
        self._opens = markers.opens
        self._closes = markers.closes
        self._inside = inside
        self._held = ""
        self._whole = whole
        self._read = self.length = 0
        self._where: Literal["start", "opened", "reasoning", "gap", "content"] = (
            "start" if split else "content"
        )

    def add(self, text: str) -> Iterator[Chunk]:
        """Returns the text whose kind is known, and holds the rest."""
        self._held += text
        self._read += len(text)
        if self._where == "start":
            self._begin()
        if self._where == "opened" and (begun := self._held.lstrip("\n")):
            self._where = "reasoning"
            self._held = begun
        if self._where == "reasoning":
            thought, marker, after = self._held.partition(self._closes)
            keep = 0 if marker else beginning(thought, (self._closes,))
            keep = len(thought) if self._whole and not marker else keep
            if shown := thought[: len(thought) - keep]:
                yield Chunk("reasoning", shown)
            self._held = after if marker else thought[len(thought) - keep :]
            if marker:
                self._where = "gap"
                self.length = self._read - len(after)
        if self._where == "gap":
            self._held = self._held.lstrip("\n")
            self._where = "content" if self._held else "gap"
        if self._where == "content" and self._held:
            shown = self._held
            self._held = ""
            yield Chunk("content", shown)

    def rest(self) -> Iterator[Chunk]:
        """Takes out the held text; call it at the end."""
        held = self._held
        self._held = ""
        if held and self._where not in ("opened", "gap"):
            inside = self._where == "reasoning" or (self._where == "start" and self._inside)
            yield Chunk("reasoning" if inside else "content", held)

    @property
    def going_on(self) -> bool:
        """Whether all text so far is reasoning."""
        return self._inside if self._where == "start" else self._where in ("opened", "reasoning")

    def _begin(self) -> None:
        """Removes the marker from the beginning, or decides that it is not there."""
        text = self._held.lstrip()
        if text.startswith(self._opens):
            self._held = text[len(self._opens) :]
            self._where = "opened"
        elif not self._opens.startswith(text):
            self._where = "reasoning" if self._inside else "content"


class StreamText:
    """Turns the tokens of an answer's steps into chunks for its client. Not thread-safe.

    Args:
        decode: decodes ids to text.
        keep_stop: whether the stop string is part of the text.
        thinks: as ``Stops``.

    Attributes:
        stopped: the stop string that ended the text, else empty.
        tokens: number of tokens so far, including the stop string; ``reasoning_tokens`` of them are
            reasoning.
        held: number of last tokens whose character is incomplete, so that it is held.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        reasoning: Reasoning | None = None,
        keep_stop: bool = False,
        thinks: bool | None = False,
    ) -> None:
        self._reasoning = reasoning or Reasoning(split=False)
        markers = self._reasoning.markers
        self._decode = decode
        self._stops = Stops(stops, keep_stop, thinks, markers)
        self._tail: Ids = ()
        self._runs: list[tuple[int, Ids, Ids]] = []  # steps: start in the text, tail before it, ids
        self._length = 0
        self._split = False
        self.tokens = self.reasoning_tokens = self.held = 0

    @property
    def stopped(self) -> str:
        return self._stops.hit

    def add(self, ids: Sequence[int], silent: int = 0) -> list[Chunk]:
        """Adds a step; returns the text that can be sent.

        Args:
            silent: number of tokens after ``ids`` that have no text, such as an end of sequence.
        """
        return [] if self.stopped else self._shown(tuple(ids), silent)

    def rest(self) -> list[Chunk]:
        """Takes out the held text; call it at the end."""
        pieces = self._shown((), last=True) if self.held and not self.stopped else []
        if not self.stopped:
            pieces += self._reasoning.add(self._stops.rest())
        return self._count_reasoning([*pieces, *self._reasoning.rest()])

    def _shown(self, ids: Ids, silent: int = 0, last: bool = False) -> list[Chunk]:
        """Takes a step's tokens; returns what can be shown, and counts ``tokens`` and ``held``."""
        self._runs.append((self._length, self._tail, ids))
        text, self._tail, held = added(self._tail, ids, self._decode, last)
        whole = self.held + len(ids) - held
        self.held = held
        self._length += len(text)
        pieces = list(self._reasoning.add(self._stops.add(text)))
        cut = self._stops.shown + len(self.stopped)
        self.tokens = self._tokens_until(cut) if self.stopped else self.tokens + whole + silent
        return self._count_reasoning(pieces)

    def _count_reasoning(self, pieces: list[Chunk]) -> list[Chunk]:
        """Brings ``reasoning_tokens`` up to date with these pieces, and returns them."""
        if self._reasoning.going_on:
            self.reasoning_tokens = self.tokens
        elif self._reasoning.length and not self._split:
            self._split = True
            self.reasoning_tokens = self._tokens_until(self._reasoning.length)
        return pieces

    def _tokens_until(self, end: int) -> int:
        """The number of tokens of the first ``end`` characters."""
        tokens = before = 0
        for at, head, ids in self._runs:
            if at >= end:
                break

            def until(size: int, at: int = at, head: Ids = head, ids: Ids = ids) -> int:
                """Where the text of the first tokens of the step ends."""
                return at + len(added(head, ids[:size], self._decode).text)

            tokens = before + bisect_left(range(len(ids)), end, key=until)
            before += len(ids)
        return tokens


def beginning(text: str, strings: Sequence[str]) -> int:
    """How many of the last characters of ``text`` could be the beginning of one of the strings."""
    longest = 0
    for string in strings:
        for size in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:size]):
                longest = size
                break
    return longest


class WholeTokens:
    """Returns a streamed text up to the end of a token, and holds the rest. Encoding it again could
    give other ids.

    Args:
        tokenizer: of the ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
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
        every = found = added(self._tail, self._ids, self._tokenizer.decode)
        size = len(self._ids)
        while size and (found.held or not self._text.startswith(found.text)):
            size -= 1
            found = added(self._tail, self._ids[:size], self._tokenizer.decode)
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
        return TokenText.of(found.text, own, self._tokenizer.vocabulary)

    def rest(self, chunks: Iterable[Chunk]) -> TokenText:
        """Adds the last text and takes out the rest; a part without ids if a stop string cuts the
        last token.
        """
        self._text += "".join(chunk.text for chunk in chunks)
        if self._text == added(self._tail, self._ids, self._tokenizer.decode, last=True).text:
            return TokenText.of(self._text, self._ids, self._tokenizer.vocabulary)
        return self.add((), ()) + TokenText.wrap(self._text)
