"""Lines: what a draft writes ahead of requests that run on a target's server, delivered to its
token layer ``fed`` (docs/token-layer.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lr_sglang.errors import LookaheadError
from lr_sglang.sglang_api.lines import Delivery

REST_SECONDS = 1.0  # after a message that failed


class LineSender:
    """Delivers lines to one server: what is new in a turn of the event loop is one message, and a
    message waits for the answer to the one before it, so that none overtakes another.

    A message that fails is not sent again: a line costs speed only, and its owner sees that its
    tokens were not taken.

    Args:
        deliver: sends one message.

    Attributes:
        failed: number of messages that failed.
    """

    def __init__(self, deliver: Callable[[list[Delivery]], Awaitable[Any]]) -> None:
        self._deliver = deliver
        self._waiting: dict[str, tuple[int, list[int]]] = {}
        self._task: asyncio.Task[None] | None = None
        self.failed = 0

    def put(self, rid: str, place: int, ids: list[int]) -> None:
        """From ``place`` on, the line of a request is ``ids``; call it on the loop."""
        first, before = self._waiting.get(rid, (place, []))
        if first <= place <= first + len(before):
            ids = before[: place - first] + ids
            place = first
        self._waiting[rid] = place, ids
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    def drop(self, rid: str) -> None:
        """Forgets what was not sent yet of a request that has ended."""
        self._waiting.pop(rid, None)

    async def _send(self) -> None:
        try:
            await asyncio.sleep(0)  # the others of this turn
            while self._waiting:
                deliveries = [Delivery(rid, *part) for rid, part in self._waiting.items()]
                self._waiting = {}
                try:
                    await self._deliver(deliveries)
                except LookaheadError:
                    self.failed += 1
                    await asyncio.sleep(REST_SECONDS)
        finally:
            self._task = None
