"""The lines that a server keeps: what the draft wrote ahead of requests that run here.

Pure data, the same on every rank of tensor parallelism: all get the same messages in the same
order, and nothing here depends on a clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from lr_sglang.sglang_api.plugin_protocol import MAX_LINES, MAX_TOKENS, common_prefix

# Gives the request's own tokens from one place up to another.
Written = Callable[[int, int], list[int]]
TRIM = 256  # tokens that the request has written, after which they are dropped from its line


class KeptLine:
    """What is known of one request's line.

    Attributes:
        place: number of the request's own tokens before ``ids``.
        ids: the line from ``place`` on.
        agreed: the request has written what the line says up to this place.
        latest: the place of the last delivery.
        offered: up to this place, tokens were there in time or were counted as late.
    """

    __slots__ = ("agreed", "ids", "latest", "offered", "place")

    def __init__(self, place: int, ids: Sequence[int]) -> None:
        self._begin(place, ids)

    def _begin(self, place: int, ids: Sequence[int]) -> None:
        self.ids = array("i", ids)
        self.place = self.agreed = self.latest = self.offered = place

    @property
    def end(self) -> int:
        """The place after the last token."""
        return self.place + len(self.ids)

    def put(self, place: int, ids: Sequence[int]) -> None:
        """From ``place`` on the line is ``ids``; what is before it stays, unless there is a gap."""
        if not self.place <= place <= self.end:
            self._begin(place, ids)
            return
        kept = place - self.place
        news = array("i", ids)
        same = place + common_prefix(self.ids[kept:], news)
        self.agreed = min(self.agreed, same)
        self.offered = min(self.offered, same)
        self.ids = self.ids[:kept] + news
        self.latest = place
        self._drop(len(self.ids) - MAX_TOKENS)

    def following(self, count: int, written: Written, most: int) -> array[int]:
        """The tokens that follow the first ``count`` of the request, at most ``most``; none where
        the request has written something else.
        """
        if count < self.agreed:  # it was taken back
            self.agreed = self.place
        if not self._agrees(min(count, self.end), written):
            # The last delivery may come from who has seen already where they part.
            self._drop(self.latest - self.place)
            if not self._agrees(min(count, self.end), written):
                del self.ids[self.agreed - self.place :]
                return array("i")
        if not self.place <= count < self.end:
            return array("i")
        if count - self.place >= TRIM:
            self._drop(count - self.place)
        found = self.ids[count - self.place : count - self.place + most + 1]
        self.offered = max(self.offered, count + len(found))
        return found[:most]

    def _agrees(self, known: int, written: Written) -> bool:
        """Whether the request wrote what the line says up to the place ``known``; sets how far."""
        if known <= self.agreed:
            return True
        mine = self.ids[self.agreed - self.place : known - self.place].tolist()
        theirs = written(self.agreed, known)
        same = common_prefix(mine, theirs)
        self.agreed += same
        return same == len(mine)

    def late(self, count: int) -> int:
        """How many tokens came after the request had written that far; each is counted once, and
        the request's first token never: no verification gives it.
        """
        passed = min(count, self.end)
        late = max(0, passed - max(1, self.offered))
        self.offered = max(self.offered, passed)
        return late

    def _drop(self, tokens: int) -> None:
        """Drops the first tokens."""
        if tokens > 0:
            del self.ids[:tokens]
            self.place += tokens
            self.agreed = max(self.agreed, self.place)
            self.latest = max(self.latest, self.place)
            self.offered = max(self.offered, self.place)


class KeptLines:
    """Lines by request id, in the order in which they were delivered last; at most ``most``."""

    def __init__(self, most: int = MAX_LINES) -> None:
        self._most = most
        self._lines: dict[str, KeptLine] = {}
        self.pushed_out = 0

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, rid: str) -> KeptLine | None:
        """The line of a request; None if there is none."""
        return self._lines.get(rid)

    def put(self, rid: str, place: int, ids: Sequence[int]) -> None:
        """Delivers to one line, which may be new."""
        line = self._lines.pop(rid, None)
        if line is None:
            line = KeptLine(place, ids)
        else:
            line.put(place, ids)
        self._lines[rid] = line
        while len(self._lines) > self._most:
            del self._lines[next(iter(self._lines))]
            self.pushed_out += 1

    def erase(self, rid: str) -> None:
        """Forgets a line."""
        self._lines.pop(rid, None)

    def clear(self) -> None:
        """Forgets all lines."""
        self._lines.clear()
