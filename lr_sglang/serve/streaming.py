"""Answers over HTTP: server-sent events, and the end of the work at once when a client
disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lr_sglang.serve.errors import Refusal

T = TypeVar("T")
END = b"data: [DONE]\n\n"


class Disconnected(Exception):
    """The client has hung up."""


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``; if the client hangs up first, that is cancelled, and ``Disconnected``
    raised.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Disconnected
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)  # both end before this returns


class EventStream(Response):
    """A stream of events. It begins when the first event is there: before that, an error still has
    its own status.

    Args:
        events: as they are sent; an error that they raise is sent as the last.
        headers: of the response, beside its own.
        about: what the log says of the request; an error is added.
        named: whether clients expect named events, as Anthropic's do, and OpenAI's on
            /v1/responses.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        about: dict[str, Any],
        named: bool,
    ) -> None:
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers}
        )
        del self.headers["content-length"]
        self._events, self._about, self._named = events, about, named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async def out(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    await out(event)
        except Refusal as error:
            self._about.update(error.log_fields())
            body = error.body()
            await out(
                b"event: error\n" + event_of({"type": "error", **body})
                if self._named
                else event_of(body) + END
            )
        await out(b"", more=False)


def event_of(value: Mapping[str, Any]) -> bytes:
    """An event of a stream."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def events_of(
    objects: AsyncGenerator[Mapping[str, Any], None],
) -> AsyncGenerator[bytes, None]:
    """Objects as the events of a stream, with OpenAI's mark at the end."""
    async with aclosing(objects):
        async for value in objects:
            yield event_of(value)
    yield END


async def together(
    streams: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """Merges streams: yields each value when it comes, with the number of its stream.

    An error of one stream is raised. It closes all streams, as ``aclose`` does.
    """
    if len(streams) == 1:  # as almost always: no task and no queue between
        async with aclosing(streams[0]) as only:
            async for value in only:
                yield 0, value
        return
    ready: asyncio.Queue[tuple[int, T] | asyncio.Task[None]] = asyncio.Queue()

    async def read(number: int, stream: AsyncGenerator[T, None]) -> None:
        async with aclosing(stream):
            async for value in stream:
                ready.put_nowait((number, value))

    tasks = {asyncio.create_task(read(number, stream)) for number, stream in enumerate(streams)}
    for task in tasks:
        task.add_done_callback(ready.put_nowait)
    try:
        while tasks:
            found = await ready.get()
            if isinstance(found, asyncio.Task):
                tasks.discard(found)
                found.result()
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def begun(receive: Receive, events: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Waits for the first event, then returns all of them; raises ``Disconnected`` or ``Refusal``
    if there is none.
    """
    first = await unless_gone(receive, anext(events))

    async def all_of_them() -> AsyncGenerator[T, None]:
        async with aclosing(events):
            yield first
            async for event in events:
                yield event

    return all_of_them()
