"""The interface of what sends requests to a runtime, which can also forward them to any route; and
server-sent events, by which replies are streamed: where a stream is divided, what is in an event,
and how one is written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from lr_sglang.sglang_api.plugin_protocol import Delivery
from lr_sglang.steps.branch import Request

INFO_SECONDS = 10.0  # timeout of requests that compute nothing
LINE_SECONDS = 2.0  # timeout of a delivery of lines, which are of no use later
FLUSH_SECONDS = 5.0  # that a server whose cache is to be emptied may take until it is idle
DATA_FIELD = b"data: "
EVENT_END = b"\n\n"
DONE = DATA_FIELD + b"[DONE]" + EVENT_END


@dataclass(frozen=True)
class Post:
    """A request to any route.

    Attributes:
        rid: the request's id; the payload has it too, if it has a field for it.
        batch: number of requests in the payload; SGLang gives them ids that end with _0, _1 and so
            on.
    """

    path: str
    payload: Mapping[str, Any]
    rid: str
    batch: int = 0


@dataclass(frozen=True)
class Head:
    """Status and content type of a reply."""

    status: int
    content_type: str


class Transport(Protocol):
    """How a backend reaches its runtime: ``Client`` over HTTP, or a double in a test."""

    async def generate(
        self, payload: dict[str, Any], request: Request, timeout: float
    ) -> dict[str, Any]:
        """Posts one /generate and returns its reply. ``request.on_tokens`` gets the ids of a
        payload with ``stream`` as they come; a runtime that cannot stream calls it never.
        """

    async def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        """Reads a JSON document of the runtime."""

    async def post(
        self, path: str, body: dict[str, Any], timeout: float = INFO_SECONDS
    ) -> dict[str, Any]:
        """Posts JSON to a route that computes nothing, such as ``/tokenize``, and reads
        its JSON.
        """

    def forward(
        self, post: Post, request: Request, timeout: float
    ) -> AsyncGenerator[Head | bytes, None]:
        """Posts to any route and streams its reply: the head, then the bytes of the body."""

    async def deliver(
        self, deliveries: Sequence[Delivery], timeout: float = LINE_SECONDS
    ) -> Sequence[tuple[str, str]]:
        """Delivers lines to the runtime's token layer `fed`; returns the ids of the requests whose
        line was refused, each with the reason.

        Raises:
            LookaheadError: they could not be delivered, which costs speed only.
        """

    async def close(self) -> None:
        """Closes the connections."""


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
