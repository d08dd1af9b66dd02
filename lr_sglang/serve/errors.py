"""Errors as OpenAI's clients know them: a status, and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from typing import Any

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

INVALID, SERVER = "invalid_request_error", "server_error"
DOWN_AGAIN = 5  # seconds after which one may ask again when the target is down


class Refusal(LookaheadError):
    """A request that is not answered, or not to its end.

    Args:
        status: of the HTTP response.
        kind: OpenAI's ``type``.
        param: the field of the request that is wrong.
        code: for programs to tell errors apart.
        again: seconds after which it may be tried again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        again: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code, self.again = status, kind, param, code, again

    @property
    def reason(self) -> str:
        """In one word, for logs and metrics."""
        return self.code or self.kind

    def log_fields(self) -> dict[str, str]:
        """What the log says of it: nothing that a user or a model wrote."""
        about = {"error": self.reason} | ({"param": self.param} if self.param else {})
        if self.status >= 500 and self.__cause__ is not None:
            status = getattr(self.__cause__, "status", 0)  # of a runtime that refused
            about["cause"] = type(self.__cause__).__name__ + (f" {status}" if status else "")
        return about

    def body(self) -> dict[str, Any]:
        """What the client is sent."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """What goes beside it."""
        found = {} if self.again is None else {"Retry-After": str(self.again)}
        return found | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def unauthorized() -> Refusal:
    """No key, or a wrong one; which of them is not said."""
    message = "You need a valid API key: send it as 'Authorization: Bearer KEY'"
    return Refusal(401, message, kind="authentication_error", code="invalid_api_key")


def strange_host() -> Refusal:
    """A name that is not this machine's."""
    message = "This endpoint has no key, and answers only to the address that it listens on"
    return Refusal(403, message, kind="authentication_error", code="unknown_host")


def unknown_model(asked: str, known: str) -> Refusal:
    """The endpoint serves another model."""
    message = f"The model {asked[:200]!r} does not exist here; this endpoint serves {known!r}"
    return Refusal(404, message, param="model", code="model_not_found")


def too_large(limit: int) -> Refusal:
    """The body is longer than the operator allows."""
    return Refusal(413, f"The request's body is larger than {limit} bytes", code="request_too_large")


def too_long(tokens: int, most: int, param: str, least: str = "") -> Refusal:
    """The prompt has more tokens than are allowed."""
    message = f"The prompt has {least}{tokens} tokens; at most {most} are allowed"
    return Refusal(400, message, param=param, code="context_length_exceeded")


def full(again: int) -> Refusal:
    """The queue is full."""
    message = "Too many requests are waiting; try again later"
    return Refusal(429, message, kind="rate_limit_error", code="queue_full", again=again)


def two_lengths() -> Refusal:
    """A proxy in front may go by the other one, and take what follows for another client's request."""
    return Refusal(400, "A request has Content-Length or Transfer-Encoding, not both")


def crowded() -> Refusal:
    """All connections are taken by requests that are being answered, or their bodies are too much to hold."""
    return Refusal(503, "Too many requests come at once", kind=SERVER, code="overloaded", again=1)


def stopping() -> Refusal:
    """The endpoint is shutting down."""
    return Refusal(503, "The endpoint is shutting down", kind=SERVER, code="shutting_down", again=DOWN_AGAIN)


def target_down() -> Refusal:
    """Nothing can be answered without the target."""
    return Refusal(503, "The target model is down", kind=SERVER, code="target_down", again=DOWN_AGAIN)


def out_of_time(seconds: float) -> Refusal:
    """The request took longer than the operator allows."""
    return Refusal(504, f"The request took longer than {seconds:g} seconds", kind="timeout_error", code="timeout")


def refusal_of(error: BaseException) -> Refusal:
    """The error that a client sees. What it says of the machine inside is kept from it."""
    match error:
        case Refusal():
            return error
        case PromptTooLong():
            return Refusal(400, error.message, param="messages", code="context_length_exceeded")
        case ConfigError():
            return Refusal(400, error.message)
        case Cancelled():
            return stopping()
        case RuntimeBusy():
            return Refusal(503, "The target model takes no more requests now", kind=SERVER, code="overloaded", again=1)
        case RuntimeDown():
            return target_down()
        case RuntimeTimeout():
            return Refusal(504, "The target model did not answer in time", kind="timeout_error", code="target_timeout")
        case RuntimeRefused() | BadReply():
            return Refusal(502, "The target model failed to answer", kind=SERVER, code="target_failed")
        case _:
            return Refusal(500, "Internal error", kind=SERVER, code="internal_error")
