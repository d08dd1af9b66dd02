"""The answers that use a runtime at this moment, and what each of them may have in flight there."""

from __future__ import annotations

import threading

from lr_sglang.config import Lookahead
from lr_sglang.policy.room import limit


class Sharing:
    """Counts the answers of this process that one runtime serves; any thread may call it.

    A share is a part of what the runtime runs at a time, divided by the answers that are being made now, not by those
    that could be: an answer alone has all of it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead = self._plain = 0

    def begin(self, ahead: bool) -> None:
        """One more answer; ``ahead`` is False for plain decoding, which has one request in flight."""
        self._count(ahead, 1)

    def end(self, ahead: bool) -> None:
        """One of them has ended, and the runtime is rid of it."""
        self._count(ahead, -1)

    def share(self, runs: int | None, holds: int | None, look: Lookahead) -> int | None:
        """Requests that each answer which looks ahead may have in flight now, at least 1; None is no limit.

        Args:
            runs, holds: see ``policy.limit``.
        """
        most = limit(runs, holds, look)
        return None if most is None else max(1, (most - self._plain) // max(1, self._ahead))

    def _count(self, ahead: bool, more: int) -> None:
        with self._lock:
            if ahead:
                self._ahead += more
            else:
                self._plain += more
