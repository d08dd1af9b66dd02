"""The middleware of every request: its id, its checks (key, host, size) before the body is read,
and its log line.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lr_sglang.serve.errors import Refusal, refusal, refusal_of, response_of
from lr_sglang.serve.keys import Keys
from lr_sglang.serve.logs import log, where
from lr_sglang.serve.metrics import Metrics
from lr_sglang.serve.settings import Service
from lr_sglang.serve.streaming import Disconnected
from lr_sglang.serve.target_routes import PATHS

CLIENT_GONE = 499  # nginx's status, for a client that has hung up
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
# Of a body that is too large, as much is read and dropped: many clients read no response before
# they have sent all.
PATIENCE_BYTES = 2**26
DROP_SECONDS = 10.0
# Logged by name; any other method could be arbitrary text.
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
# A Host header, whole: an address, an IPv6 address in brackets or a name, and a port.
_HOST = re.compile(
    r"(?:\[([\da-f:.]+(?:%\w+)?)\]|([\w.-]*))(?::\d{0,5})?", re.ASCII | re.IGNORECASE
)
_ADDRESS = re.compile(r"\d+(\.\d+){3}", re.ASCII)
# Monitors ask for these every few seconds: their successes are logged at the level debug only.
PROBES = ("/health", "/ready", "/metrics")
ROUTES = (*PATHS, "/v1/models", *PROBES)


class Guard:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp, service: Service, keys: Keys, metrics: Metrics) -> None:
        self.app, self.service, self.keys, self.metrics = app, service, keys, metrics
        # Bytes of bodies in memory: room for those that are answered or wait, and for as many that
        # still arrive.
        self.held = 0
        self.most_held = 2 * (service.concurrency + service.queue) * service.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        about: dict[str, Any] = {"id": given if _ID.fullmatch(given) else uuid.uuid4().hex}
        scope.setdefault("state", {})["about"] = about
        began, status, size = time.monotonic(), 0, 0

        async def take() -> Message:
            """Receives the next part of the body; checks the size of this body and of all bodies in
            memory.
            """
            nonlocal size
            message = await receive()
            part = len(message.get("body", b""))
            size += part
            self.held += part
            full = self.held > self.most_held
            if full or size > self.service.max_body_bytes:
                close = bool(message.get("more_body")) and not await _drop(receive, size)
                limit = self.service.max_body_bytes
                raise refusal(
                    "overloaded" if full else "request_too_large", limit=limit, close=close
                )
            return message

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = about["id"]
            await send(message)

        try:
            if (refused := self._refusal(scope)) is None:
                await self.app(scope, take, tell)
            else:
                refused.close = refused.status == 400 or not await _drop(receive)
                await refuse(refused, scope)(scope, receive, tell)
        except Disconnected:
            self.metrics.disconnects.inc()
            about["error"], status = "disconnected", CLIENT_GONE
        except Exception as error:  # noqa: BLE001 - the client gets every error in the documented form
            if not status:
                await refuse(refusal_of(error), scope)(scope, receive, tell)
            about["error"], about["where"] = type(error).__name__, where(error)
        finally:
            self.held -= size
            self._note(scope, about, status, time.monotonic() - began)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers, path = Headers(scope=scope), scope["path"]
        if "content-length" in headers and "transfer-encoding" in headers:
            # Request smuggling: a proxy may go by the other header, and take the rest for another
            # client's request.
            return Refusal(400, "A request has Content-Length or Transfer-Encoding, not both")
        locked = (
            path.startswith("/v1/")
            or path in PATHS
            or (path == "/metrics" and not self.service.open_metrics)
        )
        given = (
            headers.get("authorization") or f"Bearer {headers.get('x-api-key', '')}"
        )  # the latter is Anthropic's
        if locked and not self.keys.open_to(given):
            return refusal("invalid_api_key")
        if not self.service.hosts_are_open and not _is_ours(
            headers.get("host", ""), self.service.host
        ):
            return refusal("unknown_host")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.service.max_body_bytes:
            return refusal("request_too_large", limit=self.service.max_body_bytes)
        return None

    def _note(self, scope: Scope, about: dict[str, Any], status: int, seconds: float) -> None:
        route = _route(scope)
        self.metrics.requests.labels(route, str(status), about.get("mode", "")).inc()
        if "error" in about and status != CLIENT_GONE:
            self.metrics.refused.labels(about["error"]).inc()
        level = logging.DEBUG if route in PROBES and status < 400 else logging.INFO
        method = scope["method"] if scope["method"] in METHODS else "other"
        log(
            "request",
            level,
            method=method,
            route=route,
            status=status,
            seconds=round(seconds, 4),
            **about,
        )


def _route(scope: Scope) -> str:
    """The route for log and metrics, also of a request that was refused before routing; "other" if
    it is not ours.
    """
    if found := getattr(scope.get("route"), "path", ""):
        return str(found)
    return str(scope["path"]) if scope["path"] in ROUTES else "other"


def _is_ours(host: str, own: str) -> bool:
    """Whether the Host header cannot be a foreign domain that points to this machine (DNS
    rebinding).
    """
    match = _HOST.fullmatch(host)
    if match is None or match[1]:  # an IPv6 address in brackets
        return match is not None
    name = match[2].lower()
    return (
        "." not in name
        or name.endswith(".localhost")
        or name == own.lower()
        or _ADDRESS.fullmatch(name) is not None
    )


def refuse(refused: Refusal, scope: Scope) -> JSONResponse:
    """The response for an error; adds the error to the request's log line."""
    scope["state"]["about"] |= refused.log_fields()
    return response_of(refused)


async def _drop(receive: Receive, size: int = 0) -> bool:
    """Reads the rest of a body and drops it; returns whether its end was reached."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DROP_SECONDS):
            while size < PATIENCE_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return True
    return False
