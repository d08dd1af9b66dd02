"""Server-sent events, each of which has one line of data: where a stream is divided, what is in an
event, and how one is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

DATA_FIELD = b"data: "
EVENT_END = b"\n\n"
DONE = DATA_FIELD + b"[DONE]" + EVENT_END


class EventParser:
    """Divides a stream, whose pieces may end anywhere, into its events.

    Attributes:
        rest: what came after the last whole event.
    """

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that end in the next piece."""
        *events, self.rest = (self.rest + piece).split(EVENT_END)
        return [event + EVENT_END for event in events]


def object_in(event: bytes) -> bytes:
    """The JSON object that a whole event has as its data; empty if it has none."""
    whole = event.startswith(DATA_FIELD + b"{") and event.endswith(EVENT_END)
    return event[len(DATA_FIELD) : -len(EVENT_END)] if whole else b""


def event_of(value: Mapping[str, Any]) -> bytes:
    """An event of a stream."""
    return DATA_FIELD + orjson.dumps(value) + EVENT_END
