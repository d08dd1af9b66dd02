"""Reading JSON from strangers: nothing that is not JSON, and nothing too deep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

CLIENT_GONE = 499  # nginx's, for a response that nobody gets
BODY_SECONDS = 30.0  # in which more of a body must come, or nobody could say how long a connection is held


class StrictRequest(Request):
    """A request whose body is JSON to the letter."""

    async def body(self) -> bytes:
        """All of it.

        Raises:
            HTTPException: 499, the client has hung up; 408, it sends no more.
        """
        try:
            return await super().body()
        except ClientDisconnect:
            raise HTTPException(CLIENT_GONE) from None

    async def json(self) -> Any:
        """The body.

        Raises:
            json.JSONDecodeError: it is not JSON, or none that anybody would send.
        """
        body = await self.body()
        try:
            found = json.loads(body, parse_constant=_not_json)
            if b"\\ud" in body.lower():
                json.dumps(found, ensure_ascii=False).encode()  # half of a pair is no character
            return found
        except json.JSONDecodeError:
            raise
        except RecursionError:
            raise json.JSONDecodeError("it is nested too deeply", "", 0) from None
        except UnicodeError:
            raise json.JSONDecodeError("it is not UTF-8, or has half a surrogate pair", "", 0) from None
        except ValueError as error:  # a number of thousands of digits, NaN
            raise json.JSONDecodeError(str(error)[:100], "", 0) from None


class StrictRoute(APIRoute):
    """A route that reads so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, _in_time(request.receive)))

        return strictly


def _in_time(receive: Receive) -> Receive:
    """Until the body is there; then it says when the client hangs up, which may take as long as it likes."""
    reading = True

    async def timed() -> Message:
        nonlocal reading
        try:
            async with asyncio.timeout(BODY_SECONDS if reading else None):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"No more of the request's body came for {BODY_SECONDS:g} seconds") from None
        reading = reading and bool(message.get("more_body"))
        return message

    return timed


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
