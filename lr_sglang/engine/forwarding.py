"""Requests to any route of a runtime, and their replies as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from lr_sglang.engine.request import Request

if TYPE_CHECKING:
    from lr_sglang.engine.client import Client

# The id of a request whose body has no field for it (SGLang's entrypoints/request_headers.py).
RID_HEADER = "X-Override-Rid"
# Seconds before each abort of a request whose connection was closed before its end: the server may not have read it
# yet, and it notices only after up to two seconds that the connection is closed.
ABORT_SECONDS = (0.0, 0.05, 0.25)


@dataclass(frozen=True)
class Post:
    """What is sent.

    Attributes:
        rid: the request's id, which the payload has as well if it has a field for it.
        batch: parts of the payload; SGLang gives each an id that ends with _0, _1 and so on.
    """

    path: str
    payload: Mapping[str, Any]
    rid: str
    batch: int = 0


@dataclass(frozen=True)
class Head:
    """What a reply begins with."""

    status: int
    content_type: str


async def forward(client: Client, post: Post, request: Request, timeout: float) -> AsyncGenerator[Head | bytes, None]:
    """Gives a reply as it comes: the head, with any status, then the bytes of the body. For one task alone.

    Closing it before the end closes the connection, and aborts the request.

    Args:
        timeout: seconds without a byte.

    Raises:
        Cancelled, RuntimeDown, RuntimeTimeout.
    """
    request.sending(client.abort)
    request.rid = post.rid
    complete, headers = False, {RID_HEADER: post.rid, "Accept-Encoding": "identity"}
    try:
        async with client.reply("POST", post.path, orjson.dumps(post.payload), timeout, headers) as reply:
            yield Head(reply.status, reply.headers.get("Content-Type", ""))
            async for piece in reply.content.iter_any():
                yield piece
        complete = True
    except asyncio.CancelledError:
        request.raise_if_closed(client.role)
        raise
    finally:
        if not complete:
            client.start(_abort(client, [post.rid, *(f"{post.rid}_{part}" for part in range(post.batch))]))
        request.end()


async def _abort(client: Client, rids: list[str]) -> None:
    for seconds in ABORT_SECONDS:
        await asyncio.sleep(seconds)
        for server in client.servers():
            for rid in rids:
                await server.post_abort(rid)
