"""Reading the JSON of requests strictly, and saying what is wrong with it in the words of who wrote the request."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

CLIENT_GONE = 499  # nginx's, for a client that has hung up
# By pydantic's kinds of error; what stands in braces is the error's context.
_WORDS = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such key",
    "string_type": "must be text",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must not be empty",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
# Fields that may be of two types; an error of neither type says both.
_EITHER = {
    "content": 'must be text, or a list of parts such as {"type": "text", "text": "..."}',
    "stop": "must be text, or a list of texts",
    "prompt": "must be text, or a list of one text",
}


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
            strict = StrictRequest(request.scope, _in_time(request.receive, seconds))
            try:
                return await handle(strict)
            except RequestValidationError as error:
                return await self.invalid(strict, error)

        return strictly

    async def invalid(self, request: Request, error: RequestValidationError) -> Response:
        """Answers a request whose body is not what the route takes.

        Raises:
            RequestValidationError: as it is.
        """
        raise error


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


def message_of(errors: Sequence[Any]) -> tuple[str, str | None]:
    """What is wrong with a body, and with which of its fields; nothing of what was sent."""
    found: dict[str, Any] = errors[0]
    if found["type"] == "json_invalid":
        return f"The body is not valid JSON: {found['ctx']['error']}", None
    # Where a field may be of several types, the errors of all come; the one of its own type says more than the others.
    same = [error for error in errors if _where(error)[:1] == _where(found)[:1]]
    found = next((error for error in same if not error["type"].endswith("_type")), found)
    where = _where(found)
    if not where and isinstance(found.get("input"), bytes):
        return "The body is not read as JSON: send it with the header 'Content-Type: application/json'", None
    message = _said(found, where)
    if not where:
        name, _, rest = message.partition(": ")
        known = bool(rest) and name.replace("_", "").isalpha()
        return message if known else f"The body {message}", name if known else None
    return f"{'.'.join(where)}: {message}", ".".join(where)


def _said(error: dict[str, Any], where: list[str]) -> str:
    kind = error["type"]
    if where and kind.endswith("_type") and where[-1] in _EITHER:
        return _EITHER[where[-1]]
    if kind in _WORDS:
        return _WORDS[kind].format(**error.get("ctx", {}))
    return str(error["msg"]).removeprefix("Value error, ")


def _where(error: Any) -> list[str]:
    """The path of the field. Of one that may be of two types pydantic's also has the type, as ``stop.str``."""
    parts = [str(part) for part in error["loc"] if part != "body"]
    parts = [part for part in parts if part.isdecimal() or part.isidentifier()]
    return [part for before, part in zip(["", *parts], parts, strict=False) if part != "str" or before not in _EITHER]
