"""The parts of /openapi.json that FastAPI does not derive from the routes."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lr_sglang.serve.target_routes import ANSWERED, PATHS, TargetRoute

_REASONS = {
    400: "The request is not valid, asks for what is not supported or not allowed, or is too long.",
    401: "There is no key, or a wrong one.",
    403: "There are no keys, and the host name is not this machine's.",
    404: "There is no such model.",
    408: "The body does not come to its end.",
    413: "The body is too large.",
    415: "The target does not take such a body.",
    429: "Too many requests are waiting; Retry-After says when to come again.",
    500: "A fault of the endpoint.",
    502: "The target model failed.",
    503: "The target model is down, or the endpoint is shutting down.",
    504: "It took too long.",
}
_REF = "#/components/schemas/{model}"


class ErrorFields(BaseModel):
    """The fields of OpenAI's errors."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The body of an error response."""

    error: ErrorFields


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": why, "model": ErrorReply} for status, why in _REASONS.items()
}


def responses_of(route: TargetRoute) -> dict[int | str, dict[str, Any]]:
    """The responses of a route that answers."""
    if route.reads is None:
        content: dict[str, Any] = {"application/json": {}, "text/event-stream": {}}
        return {200: {"description": "SGLang's reply.", "content": content}, **ERRORS}
    event = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
    answer = {"type": "object", "required": ["id", "object", "choices", "usage"]}
    content = {"application/json": {"schema": answer}, "text/event-stream": {"schema": event}}
    about = "The answer; with stream, chunks of it as server-sent events."
    return {200: {"description": about, "content": content}, **ERRORS}


def body_of(route: TargetRoute) -> dict[str, Any]:
    """The request body of such a route."""
    schema = (
        {"type": "object"}
        if route.reads is None
        else {"$ref": _REF.format(model=route.reads.__name__)}
    )
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def described(app: FastAPI, keyed: bool) -> bytes:
    """Makes the schema, sets ``app.openapi`` to return it, and returns it as JSON.

    Args:
        app: with all its routes.
        keyed: whether requests need a key.
    """
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    reads = [(route.reads, "validation") for route in ANSWERED if route.reads is not None]
    schema["components"]["schemas"] |= models_json_schema(reads, ref_template=_REF)[1]["$defs"]  # type: ignore[arg-type]
    for operation in (one for path in schema["paths"].values() for one in path.values()):
        operation["responses"].pop("422", None)  # FastAPI's
    if keyed:
        schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path in (name for name in schema["paths"] if name.startswith("/v1/") or name in PATHS):
            for operation in schema["paths"][path].values():
                operation["security"] = [{"key": []}]
    app.openapi = lambda: schema  # type: ignore[method-assign]
    return json.dumps(schema, ensure_ascii=False).encode()
