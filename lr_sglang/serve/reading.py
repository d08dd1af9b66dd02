"""Reads the JSON body of a request, strictly and within a time limit, and says what is wrong with
it.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from lr_sglang.serve.errors import Refusal
from lr_sglang.serve.streaming import Disconnected

M = TypeVar("M", bound=BaseModel)


async def read_json(request: Request, seconds: float) -> dict[str, Any]:
    """The body of a request, a JSON object.

    Args:
        seconds: in which the whole body must come.

    Raises:
        Refusal: 408 if it comes too late; 400 if it is no JSON object, is nested too deeply, or has
            a lone surrogate.
        Disconnected: the client has hung up.
    """
    try:
        async with asyncio.timeout(seconds):
            body = await request.body()
    except TimeoutError:
        raise Refusal(
            408, f"The request's body did not come within {seconds:g} seconds", close=True
        ) from None
    except ClientDisconnect:
        raise Disconnected from None
    # Not a form's type, with which a page of another origin can send a request without a CORS
    # preflight.
    if (
        request.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        raise Refusal(
            400,
            "The body is not read as JSON: send it with the header 'Content-Type: "
            "application/json'",
        )
    gc.disable()  # it would scan the objects, half a million in 2 MB, again and again
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"The body is not valid JSON: {error.msg}") from None
    finally:
        gc.enable()
    if not isinstance(found, dict):
        raise Refusal(400, "The body: Input should be an object")
    return found


def checked(kind: type[M], value: Any) -> M:
    """A value as a model; raises a ``Refusal`` (400) that names the first wrong field, and nothing
    of what was sent.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        where = [part for part in map(str, found["loc"]) if part.isdecimal() or part.isidentifier()]
        said = "Input should be an object" if found["type"] == "model_type" else found["msg"]
        said = said.removeprefix("Value error, ")
        field = where[0] if where else None  # the rest of the path may be text of the client
        param = ".".join(where) or None
        raise Refusal(400, f"{param or 'The body'}: {said}", param=param, field=field) from None
