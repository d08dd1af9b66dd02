"""HTTP to one SGLang runtime: pooled connections, timeouts, one safe retry, and aborts of cancelled
requests.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson

from lr_sglang.engine.transport import (
    INFO_SECONDS,
    LINE_SECONDS,
    EventParser,
    Head,
    Post,
    object_in,
)
from lr_sglang.errors import (
    BadReply,
    Cancelled,
    LookaheadError,
    PromptTooLong,
    RuntimeBusy,
    RuntimeDown,
    RuntimeRefused,
    RuntimeTimeout,
)
from lr_sglang.sglang_api.plugin_protocol import MAX_MESSAGE_LINES, ROUTE, Delivery
from lr_sglang.steps.branch import Request

CONNECT_SECONDS = 5.0
# SGLang's router (policy ``manual``) sends requests with the same value of this header to one
# worker.
ROUTING_KEY = "X-SMG-Routing-Key"
# SGLang's router sets this header on errors of its own, not of a worker.
ROUTER_ERROR = "X-SMG-Error-Code"
# Sets the id of a request whose body has no field for it (SGLang's entrypoints/request_headers.py).
RID_HEADER = "X-Override-Rid"

# Seconds before each abort of one request. The server ignores an abort that overtakes its request,
# so it is repeated until the request has ended; the last interval is repeated for ever, and each
# time the connection is closed as well.
ABORT_AGAIN_SECONDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
# The same for a forwarded request. Its connection is closed too, but SGLang may take two seconds to
# notice.
ABORT_FORWARDED_SECONDS = (0.0, 0.05, 0.25)
# Shorter than the 5 s after which SGLang's server closes an idle connection.
KEEP_ALIVE_SECONDS = 4.0
# Of one message with lines: with ids of up to 10 digits, and ids of 256 characters for as many
# requests as it may have, it stays below MAX_MESSAGE_BYTES.
MESSAGE_TOKENS = 64_000
# Routes whose replies are plain text, not JSON.
_IN_WORDS = ("/abort_request", "/flush_cache")


class Client:
    """Connections to one base URL, on one event loop.

    Args:
        url: base URL of the server.
        role: named in errors.
        api_key: sent as a bearer token.
        alone: returns whether no other server can abort a request of this one. If so, and this
            server refuses the abort, the connection of the cancelled request is closed.

    Attributes:
        abort_failed: whether the server refused the last abort.
    """

    def __init__(
        self, url: str, role: str, api_key: str = "", alone: Callable[[], bool] = lambda: True
    ) -> None:
        self.url = url.rstrip("/")
        self.role = role
        self.abort_failed = False
        self._alone = alone
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: Any = None
        self._loop: Any = None  # the loop of the session
        self._aborts: set[asyncio.Task[None]] = set()

    async def generate(
        self, payload: dict[str, Any], request: Request, timeout: float
    ) -> dict[str, Any]:
        """Posts one /generate and returns its reply, also if it was aborted.

        Raises:
            Cancelled, RuntimeDown, RuntimeTimeout, RuntimeRefused, PromptTooLong, BadReply.
        """
        key = request.key
        try:
            for last in (False, True):
                body = {**payload, "rid": request.sending(self.abort)}
                more = {ROUTING_KEY: key} if key else {}
                try:
                    stream = request if request.on_tokens is not None else None
                    return await self._exchange("POST", "/generate", body, timeout, more, stream)
                except (RuntimeDown, RuntimeTimeout, WorkerLost) as error:
                    if request.cancelled:
                        raise Cancelled(
                            "cancelled while the runtime did not answer", role=self.role
                        ) from error
                    # A request that failed before the first byte is retried once: a kept-alive
                    # connection may be stale.
                    # A router sends the same key to the lost worker again.
                    if last or not isinstance(error, _BeforeFirstByte | WorkerLost):
                        raise
                    key += "-again" if key and isinstance(error, WorkerLost) else ""
        except asyncio.CancelledError:
            request.raise_if_closed(self.role)
            # the task was cancelled, and its connection closed: one abort is enough
            for server in self.servers():
                self.start(server.post_abort(request.rid))
            raise
        finally:
            request.end()
        raise AssertionError("unreachable")

    async def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        """Reads a JSON document of the runtime.

        Raises:
            RuntimeDown, RuntimeTimeout, RuntimeRefused, BadReply.
        """
        return await self._exchange("GET", path, None, timeout)

    async def infos(self, path: str, timeout: float = INFO_SECONDS) -> list[dict[str, Any]]:
        """A document of each server behind the URL; raises as ``get``."""
        return [await self.get(path, timeout)]

    async def post(
        self, path: str, body: dict[str, Any], timeout: float = INFO_SECONDS
    ) -> dict[str, Any]:
        """Posts JSON, and reads the JSON of the reply; raises as ``get``."""
        return await self._exchange("POST", path, body, timeout)

    async def deliver(
        self, deliveries: Sequence[Delivery], timeout: float = LINE_SECONDS
    ) -> Sequence[tuple[str, str]]:
        """Delivers lines; returns the ids of the requests whose line was refused, each with the
        reason. Raises as ``get``; ``RuntimeRefused`` where the server has no layer `fed`.
        """
        refused: list[tuple[str, str]] = []
        for message in _messages(deliveries):
            body = {"lines": [(rid, place, list(ids)) for rid, place, ids in message]}
            reply = await self._exchange("POST", ROUTE, body, timeout)
            try:
                refused += [(str(rid), str(why)) for rid, why in reply["refused"]]
            except (KeyError, TypeError, ValueError) as error:
                raise BadReply(
                    f"{self.url}{ROUTE} answered {reply!r:.200}", role=self.role
                ) from error
        return refused

    async def forward(
        self, post: Post, request: Request, timeout: float
    ) -> AsyncGenerator[Head | bytes, None]:
        """Streams a reply: the head, with any status, then the bytes of the body. To be used in one
        task.

        Closing the generator before its end closes the connection and aborts the request.

        Args:
            timeout: maximum seconds between two bytes.

        Raises:
            Cancelled, RuntimeDown, RuntimeTimeout.
        """
        request.sending(self.abort)
        request.rid = post.rid
        complete = False
        headers = {RID_HEADER: post.rid, "Accept-Encoding": "identity"}
        try:
            async with self._reply(
                "POST", post.path, orjson.dumps(post.payload), timeout, headers
            ) as reply:
                yield Head(reply.status, reply.headers.get("Content-Type", ""))
                async for piece in reply.content.iter_any():
                    yield piece
            complete = True
        except asyncio.CancelledError:
            request.raise_if_closed(self.role)
            raise
        finally:
            if not complete:
                self.start(
                    self._abort_all(
                        [post.rid, *(f"{post.rid}_{part}" for part in range(post.batch))]
                    )
                )
            request.end()

    def abort(self, request: Request) -> None:
        """Sends aborts of a request to the server until the request has ended."""
        self.start(self._abort(request))

    async def disconnect(self) -> None:
        """Closes the connections; the next request opens new ones on its own loop."""
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    async def close(self) -> None:
        """Waits for the aborts in progress, then closes the connections. Idempotent."""
        while self._aborts:
            await asyncio.wait(self._aborts)
        await self.disconnect()

    def start(self, work: Any) -> None:
        """Starts a task that ``close`` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, request: Request) -> None:
        number = 0
        last = len(ABORT_AGAIN_SECONDS) - 1
        while True:
            await asyncio.sleep(ABORT_AGAIN_SECONDS[min(number, last)])
            if request.done:
                return
            await self.post_abort(request.rid)
            if number >= last or (self.abort_failed and self._alone()):
                request.unheard = True
                request.close_connection()
            number += 1

    async def _abort_all(self, rids: Sequence[str]) -> None:
        for seconds in ABORT_FORWARDED_SECONDS:
            await asyncio.sleep(seconds)
            for server in self.servers():
                for rid in rids:
                    await server.post_abort(rid)

    def servers(self) -> Sequence[Client]:
        """The servers that a request may run on."""
        return [self]

    async def post_abort(self, rid: str) -> None:
        """Sends one abort."""
        try:
            await self._exchange("POST", "/abort_request", {"rid": rid}, CONNECT_SECONDS)
            self.abort_failed = False
        except LookaheadError:
            self.abort_failed = True

    async def _exchange(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        timeout: float,
        more: Mapping[str, str] | None = None,
        stream: Request | None = None,
    ) -> dict[str, Any]:
        data = None if body is None else orjson.dumps(body)
        async with self._reply(method, path, data, timeout, more) as reply:
            if stream is not None and reply.content_type == "text/event-stream":
                try:
                    text = await _read_stream(reply.content.iter_any(), stream)
                except (KeyError, TypeError, ValueError) as error:
                    why = f"{self.url}{path}: an event of the stream is malformed: {error!r:.200}"
                    raise BadReply(why, role=self.role) from error
            else:
                text = await reply.read()
        if reply.status != 200:
            code = reply.headers.get(ROUTER_ERROR, "")
            raise status_error(reply.status, text.decode(errors="replace"), path, self.role, code)
        if path.partition("?")[0] in _IN_WORDS or not text.strip():
            return {}
        try:
            found = orjson.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            why = f"{self.url}{path} did not answer with a JSON object"
            raise BadReply(why, role=self.role)
        if stream is not None and "error" in found:  # of a stream, whose status is 200
            code = found["error"].get("code") if isinstance(found["error"], dict) else None
            status = code if isinstance(code, int) else 400
            raise status_error(status, text.decode(errors="replace"), path, self.role)
        return found

    @asynccontextmanager
    async def _reply(
        self,
        method: str,
        path: str,
        data: bytes | None,
        timeout: float,
        more: Mapping[str, str] | None,
    ) -> AsyncIterator[Any]:
        """Sends a request; turns all failures, also while the caller reads the reply, into named
        errors.
        """
        import aiohttp

        here = asyncio.get_running_loop()
        # the last request was made on another loop
        if self._session is not None and self._loop is not here:
            if self._loop.is_running():
                asyncio.run_coroutine_threadsafe(self._session.close(), self._loop)
            self._session = None
        if self._session is None:
            self._loop = here
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=timeout)
        begun = False
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=data,
                headers=more,
                timeout=limits,
                allow_redirects=False,
            ) as reply:
                begun = True
                yield reply
        except aiohttp.SocketTimeoutError as error:
            raise RuntimeTimeout(
                f"no answer from {self.url}{path} in {timeout:g} s",
                role=self.role,
                hint="raise 'timeout' in the deployment file, or look at the server's load",
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            broke = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
            refused = isinstance(error, aiohttp.ClientConnectorError)
            kind = _BeforeFirstByte if broke and not refused and not begun else RuntimeDown
            why = _reason(error)
            hint = "check that the server is running"
            raise kind(f"{self.url} does not answer ({why})", role=self.role, hint=hint) from error
        except ValueError as error:  # InvalidURL too
            hint = "give http://HOST:PORT"
            why = f"{self.url} is no address of a server"
            raise RuntimeDown(why, role=self.role, hint=hint) from error


def _reason(error: Exception) -> str:
    """What the system says of a connection that failed, else what the client says."""
    import aiohttp

    if isinstance(error, aiohttp.ClientSSLError):
        return f"no TLS connection: {getattr(error, 'certificate_error', error.__cause__)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        inner = error.os_error
        # of several addresses of a host there are several errors in one
        numbers = [inner.errno or 0, *map(int, re.findall(r"\[Errno (\d+)\]", str(inner)))]
        known = (os.strerror(number) for number in numbers if number > 0)
        return next(known, inner.strerror or str(inner))
    if isinstance(error, aiohttp.ClientResponseError):
        return "what it answers is not HTTP"
    return str(error) or type(error).__name__


def _messages(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
    """Deliveries in messages that a server takes."""
    begin = tokens = 0
    for number, (_, _, ids) in enumerate(deliveries):
        tokens += len(ids)
        if number > begin and (tokens > MESSAGE_TOKENS or number - begin >= MAX_MESSAGE_LINES):
            yield deliveries[begin:number]
            begin = number
            tokens = len(ids)
    if begin < len(deliveries):
        yield deliveries[begin:]


class _BeforeFirstByte(RuntimeDown):
    """The connection broke before a byte of the reply was read."""


async def _read_stream(pieces: AsyncIterator[bytes], request: Request) -> bytes:
    """Reads a streamed generation; returns its last event, with all tokens: the whole reply.

    Where each event has all tokens so far, only the last of those that arrive together is read.
    """
    import aiohttp

    parser = EventParser()
    last = b""
    ids: list[int] = []
    texts: list[str] = []
    ended = False
    async for piece in pieces:
        found = [data for event in parser.feed(piece) if (data := object_in(event))]
        new = False
        for last in found if request.increments else found[-1:]:
            part = orjson.loads(last)
            if "output_ids" not in part:  # an error
                return last
            if request.increments:
                ids += part["output_ids"]
                texts.append(part["text"])
            else:
                ids = part["output_ids"]
            ended = part["meta_info"]["finish_reason"] is not None
            if ended and request.increments:
                return orjson.dumps({**part, "output_ids": ids, "text": "".join(texts)})
            new = bool(part["output_ids"]) and not ended
        if new and request.on_tokens is not None:
            request.on_tokens(ids)
    if not ended:
        raise aiohttp.ClientPayloadError("the stream broke off before its last event")
    return last


def says_too_long(message: str) -> bool:
    """Whether a server's message says that its model's context does not hold the request."""
    return "context length" in message or "longer than the model" in message


class WorkerLost(RuntimeBusy):
    """The router's worker for the request does not answer; another worker may."""


def status_error(status: int, text: str, path: str, role: str, code: str = "") -> RuntimeRefused:
    """The named error for an error status, which it has as ``status``."""
    made = _named(status, text, path, role, code)
    made.status = status
    return made


def _named(status: int, text: str, path: str, role: str, code: str) -> RuntimeRefused:
    with suppress(ValueError, AttributeError):  # if it is not JSON, the text is the message
        parsed = orjson.loads(text)
        text = (parsed.get("error") or {}).get("message") or parsed.get("message") or text
    text = str(text).strip()[:500]
    if status == 500 and code.startswith(("call_upstream", "read_response")):
        hint = "check that the router's workers are running"
        return WorkerLost(f"{path}: the router has lost a worker: {text}", role=role, hint=hint)
    if status in (401, 403):
        why = text or "it wants an API key, or another one"
        hint = "set api_key_env in the deployment file"
        return RuntimeRefused(f"{path}: {status} {why}", role=role, hint=hint)
    if status in (429, 502, 503, 504):
        return RuntimeBusy(
            f"{path}: {status} {text}", role=role, hint="ask for less at a time: --concurrency"
        )
    if says_too_long(text):
        return PromptTooLong(text, role=role, hint="shorten the prompt, or lower --max-tokens")
    return RuntimeRefused(f"{path}: {status} {text}", role=role)
