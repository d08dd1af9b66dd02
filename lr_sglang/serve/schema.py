"""What /openapi.json says beside what the routes say themselves."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from lr_sglang.serve.target_routes import PATHS

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


class ErrorFields(BaseModel):
    """OpenAI's."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """What is sent in place of an answer."""

    error: ErrorFields


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": why, "model": ErrorReply} for status, why in _REASONS.items()
}
_SUCCESS = {
    "description": "The answer; with stream, chunks of it as server-sent events.",
    "content": {
        "application/json": {"schema": {"type": "object", "required": ["id", "object", "choices", "usage"]}},
        # of each event
        "text/event-stream": {
            "schema": {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
        },
    },
}
ANSWERS: dict[int | str, dict[str, Any]] = {200: _SUCCESS, **ERRORS}
# of the routes that the target answers
REPLIES: dict[int | str, dict[str, Any]] = {
    200: {"description": "SGLang's reply.", "content": {"application/json": {}, "text/event-stream": {}}},
    **ERRORS,
}


def described(app: FastAPI, keyed: bool) -> bytes:
    """The schema as JSON, without the error 422, which does not happen here.

    Args:
        app: with all its routes.
        keyed: whether requests need a key.
    """
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    if keyed:
        schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path in (name for name in schema["paths"] if name.startswith("/v1/") or name in PATHS):
            for operation in schema["paths"][path].values():
                operation["security"] = [{"key": []}]
    return json.dumps(schema, ensure_ascii=False).encode()
