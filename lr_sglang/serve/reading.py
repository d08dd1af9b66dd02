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


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
