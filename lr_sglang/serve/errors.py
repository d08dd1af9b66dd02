"""Errors as a route's clients know them: a status, and OpenAI's object of message, type, param and
code, or Anthropic's.
"""

from __future__ import annotations

import ast
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from lr_sglang.errors import (
    BadReply,
    Cancelled,
    ConfigError,
    LookaheadError,
    PromptTooLong,
    RuntimeBusy,
    RuntimeDown,
    RuntimeRefused,
    RuntimeTimeout,
)
from lr_sglang.serve.monitoring import RequestLine

M = TypeVar("M", bound=BaseModel)
INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
WRONG_KEY = "authentication_error"
TIMED_OUT = "timeout_error"
# By code: status, OpenAI's type, and message.
KNOWN: dict[str, tuple[int, str, str]] = {
    "invalid_api_key": (
        401,
        WRONG_KEY,
        "You need a valid API key: send it as 'Authorization: Bearer KEY'",
    ),
    "model_not_found": (
        404,
        INVALID_REQUEST,
        "The model {asked!r:.200} does not exist here; this endpoint serves {known!r}",
    ),
    "request_too_large": (413, INVALID_REQUEST, "The request's body is larger than {limit} bytes"),
    "queue_full": (429, "rate_limit_error", "Too many requests are waiting; try again later"),
    "internal_error": (500, SERVER_ERROR, "Internal error"),
    "target_failed": (502, SERVER_ERROR, "The target model failed to answer"),
    "overloaded": (503, SERVER_ERROR, "The target model takes no more requests now"),
    "shutting_down": (503, SERVER_ERROR, "The endpoint is shutting down"),
    "target_down": (503, SERVER_ERROR, "The target model is down"),
    "target_timeout": (504, TIMED_OUT, "The target model did not answer in time"),
    "timeout": (504, TIMED_OUT, "The request took longer than {seconds:g} seconds"),
}
TOO_LONG = "context_length_exceeded"
AGAIN = {
    "queue_full": 1,
    "overloaded": 1,
    "shutting_down": 5,
    "target_down": 5,
}  # seconds after which it may be tried again


# Anthropic's type of an error, by status.
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
MOST_TOLD = 2000  # characters of a message of the target's

# What a server's message may say of its own machine: a frame of a traceback with its line of code,
# and a path of two parts or more.
_FRAME = re.compile(r'\s*File "[^"\n]*", line \d+(?:, in \S+)?(?:\n {4}[^\n]*)?')
_TRACEBACK = re.compile(r"\s*Traceback \(most recent call last\):")
_PATH = re.compile(r"(?<![\w:/.~])~?(?:/[\w.@+~-]+){2,}/?(?::\d+)?")
# One field that pydantic refuses, as Python writes it.
_FIELD = re.compile(
    r"'loc': (?P<loc>[(\[](?:'[^']*'|\"[^\"]*\"|\d+|[,\s])*[)\]]), "
    r"'msg': (?P<msg>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
)


def told_by_server(message: str, sent: str = "") -> tuple[str, str | None]:
    """A server's message without what concerns its own machine, and the first field that it
    refuses, if it names any.

    Args:
        sent: by the client; a path in it stays.
    """
    message = message[: 10 * MOST_TOLD]
    fields = dict[str, None]()
    names = []
    for found in _FIELD.finditer(message):
        name = ".".join(str(part) for part in ast.literal_eval(found["loc"]) if part != "body")
        said = ast.literal_eval(found["msg"]).removeprefix("Value error, ")
        fields[f"{name}: {said}" if name else said] = None
        names.append(name)
    if fields:
        message = "; ".join(fields)
    message = _TRACEBACK.sub("", _FRAME.sub("", message))
    message = _PATH.sub(
        lambda path: path[0] if path[0] in sent or path[0].startswith("/v1/") else "(a path)",
        message,
    )
    param = names[0].partition(".")[0] if names else None
    return message.strip()[:MOST_TOLD], param or None


class Refusal(LookaheadError):
    """The error that a client gets, as the response or at the end of a stream.

    Args:
        status: of the HTTP response.
        kind: OpenAI's ``type``.
        param: the field of the request that is wrong.
        code: for programs to tell errors apart.
        field: stands for ``param`` in the log if ``param`` may hold text of the client.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.field = field or param

    @property
    def reason(self) -> str:
        """The error in one word, for logs and metrics."""
        return self.code or self.kind

    def note(self, line: RequestLine) -> None:
        """Adds it to the request's line in the log, which has no text of a user or a model."""
        line.error = self.reason
        line.param = self.field
        if self.status >= 500 and self.__cause__ is not None:
            status = getattr(self.__cause__, "status", 0)  # of a runtime that refused
            line.cause = type(self.__cause__).__name__ + (f" {status}" if status else "")

    def body(self, path: str = "") -> dict[str, Any]:
        """The error in the form of the API that a route belongs to: Anthropic's, or OpenAI's."""
        if path == "/v1/messages" or path.startswith("/v1/messages/"):
            kind = ANTHROPIC_TYPES.get(self.status, INVALID_REQUEST)
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        # a prompt is too long for whichever route it came by
        too_long = self.code == TOO_LONG and path == "/v1/completions"
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": "prompt" if too_long else self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        found = {"Retry-After": str(AGAIN[self.code])} if self.code in AGAIN else {}
        return found | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def refusal(
    code: str,
    *,
    param: str | None = None,
    **words: object,
) -> Refusal:
    """The refusal for a code of ``KNOWN``; ``words`` are inserted into its message."""
    status, kind, message = KNOWN[code]
    return Refusal(status, message.format(**words), kind=kind, param=param, code=code)


def refusal_of(error: BaseException) -> Refusal:
    """The error for a client, without details of this machine."""
    match error:
        case Refusal():
            return error
        case PromptTooLong():
            said, _ = told_by_server(error.message)
            return Refusal(400, said, param="messages", code=TOO_LONG)
        case ConfigError():
            return Refusal(400, error.message)
        case Cancelled():
            return refusal("shutting_down")
        case RuntimeBusy():
            return refusal("overloaded")
        case RuntimeDown():
            return refusal("target_down")
        case RuntimeTimeout():
            return refusal("target_timeout")
        case RuntimeRefused(role="target", status=400 | 413 | 422 as status):
            code = 413 if status == 413 else 400
            said, _ = told_by_server(error.message)
            return Refusal(code, f"The target model refuses the request: {said}")
        case RuntimeRefused() | BadReply():
            return refusal("target_failed")
        case _:
            return refusal("internal_error")


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
