"""Reading JSON from strangers: nothing that is not JSON, and nothing too deep."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

CLIENT_GONE = 499  # nginx's, for a response that nobody gets


class StrictRequest(Request):
    """A request whose body is JSON to the letter."""

    async def body(self) -> bytes:
        """All of it.

        Raises:
            HTTPException: 499, the client has hung up; 408, it takes too long.
        """
        try:
            return await super().body()
        except ClientDisconnect:
            raise HTTPException(CLIENT_GONE) from None

    async def json(self) -> Any:
        """The body.

        Raises:
            json.JSONDecodeError: it is not JSON, nested too deeply, or has half a surrogate pair.
        """
        body = await self.body()
        gc.disable()  # else it looks again and again through the half million objects that 2 MB can be
        try:
            return orjson.loads(body)
        finally:
            gc.enable()


class StrictRoute(APIRoute):
    """A route that reads so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            seconds = request.app.state.engine.service.body_timeout
            return await handle(StrictRequest(request.scope, _in_time(request.receive, seconds)))

        return strictly


def _in_time(receive: Receive, seconds: float) -> Receive:
    """The whole body; then it says when the client hangs up, which may take as long as it likes."""
    until: float | None = asyncio.get_running_loop().time() + seconds

    async def timed() -> Message:
        nonlocal until
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            said = f"The request's body did not come within {seconds:g} seconds"
            raise HTTPException(408, said, {"Connection": "close"}) from None
        if not message.get("more_body"):
            until = None
        return message

    return timed
