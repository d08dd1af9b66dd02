"""The middleware of every request: its id, its checks (key, size) before the body is read,
and its log line.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.monitoring import Metrics, RequestLine, log, request_line, where
from lr_sglang.serve.protocol import CHAT, COMPLETIONS
from lr_sglang.serve.replies import Disconnected
from lr_sglang.serve.settings import Keys, Service

TOO_LARGE = 413
DISCARD_SECONDS = 5.0
CLIENT_GONE = 499  # nginx's status, for a client that has hung up
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
# Logged by name; any other method could be arbitrary text.
HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
# Monitors ask for these every few seconds: their successes are logged at the level debug only.
PROBES = ("/health", "/ready", "/metrics")
ROUTES = (CHAT.path, COMPLETIONS.path, "/v1/models", *PROBES)


class Guard:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp, service: Service, keys: Keys, metrics: Metrics) -> None:
        self.app = app
        self.service = service
        self.keys = keys
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # HEAD is as GET; the server leaves the body out
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        # "/v1/models/" is "/v1/models"
        path = scope["path"].rstrip("/") or "/"
        scope = {**scope, "method": method, "path": path}
        given = Headers(scope=scope).get("x-request-id", "")
        line = RequestLine(given if _ID.fullmatch(given) else uuid.uuid4().hex)
        scope.setdefault("state", {})["line"] = line
        began = time.monotonic()
        status = 0
        size = 0
        # such a client waits before it sends the body
        unread = "expect" not in Headers(scope=scope)

        async def take() -> Message:
            """Receives the next part of the body, and checks its size so far."""
            nonlocal size, unread
            message = await receive()
            unread = message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > self.service.max_body_bytes:
                raise refusal("request_too_large", limit=self.service.max_body_bytes)
            return message

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == TOO_LARGE and unread:
                    await _discard(receive)
                MutableHeaders(scope=message)["x-request-id"] = line.id
            elif line.stream and line.first_seconds is None and message.get("body"):
                line.first_seconds = round(time.monotonic() - began, 4)
            await send(message)

        try:
            if (refused := self._refusal(scope)) is None:
                await self.app(scope, take, tell)
            else:
                await refuse(refused, scope)(scope, receive, tell)
        except Disconnected:
            self.metrics.disconnects.inc()
            line.error = "disconnected"
            status = CLIENT_GONE
        except Exception as error:  # noqa: BLE001 - the client gets every error in the documented form
            if not status:
                await refuse(refusal_of(error), scope)(scope, receive, tell)
            line.error = type(error).__name__
            line.where = where(error)
        finally:
            self._note(scope, line, status, time.monotonic() - began)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        path = scope["path"]
        locked = path.startswith("/v1/") or (path == "/metrics" and not self.service.open_metrics)
        # the latter is Anthropic's
        given = headers.get("authorization") or f"Bearer {headers.get('x-api-key', '')}"
        if locked and not self.keys.open_to(given):
            return refusal("invalid_api_key")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.service.max_body_bytes:
            return refusal("request_too_large", limit=self.service.max_body_bytes)
        return None

    def _note(self, scope: Scope, line: RequestLine, status: int, seconds: float) -> None:
        route = _route(scope)
        self.metrics.requests.labels(route, str(status), line.mode or "").inc()
        if line.error is not None and status != CLIENT_GONE:
            self.metrics.refused.labels(line.error).inc()
        level = logging.DEBUG if route in PROBES and status < 400 else logging.INFO
        method = scope["method"] if scope["method"] in HTTP_METHODS else "other"
        log(
            "request",
            level,
            method=method,
            route=route,
            status=status,
            seconds=round(seconds, 4),
            **line.fields(),
        )


async def _discard(receive: Receive) -> None:
    """Reads the rest of a body, for some seconds: a connection that is closed before is reset, and
    the client may lose the response.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while (await receive()).get("more_body"):
                pass


def _route(scope: Scope) -> str:
    """The route for log and metrics, also of a request that was refused before routing; "other" if
    it is not ours.
    """
    if found := getattr(scope.get("route"), "path", ""):
        return str(found)
    return str(scope["path"]) if scope["path"] in ROUTES else "other"


def refuse(refused: Refusal, scope: Scope) -> JSONResponse:
    """The response for an error; adds the error to the request's log line."""
    refused.note(request_line(scope))
    return JSONResponse(refused.body(scope["path"]), refused.status, refused.headers())
