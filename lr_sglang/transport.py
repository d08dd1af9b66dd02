"""HTTP to one SGLang runtime: pooled connections, timeouts, safe retries, and cancelling that reaches the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson
import urllib3

from lr_sglang.aborter import Aborter
from lr_sglang.call import Call, changing_hands
from lr_sglang.errors import (
    BadReply,
    Cancelled,
    PromptTooLong,
    RuntimeBusy,
    RuntimeDown,
    RuntimeRefused,
    RuntimeTimeout,
)

CONNECT_SECONDS = 5.0
INFO_SECONDS = 10.0  # for a document of the runtime
# By this header SGLang's router keeps requests on one worker (its policy ``manual``); a server alone ignores it.
ROUTING_KEY = "X-SMG-Routing-Key"
# With this one it says that an error is its own, not a worker's.
ROUTER_ERROR = "X-SMG-Error-Code"


class Transport(Protocol):
    """What a backend needs of a runtime; ``HttpTransport`` is the real one, simulated runtimes are others."""

    def generate(self, payload: dict[str, Any], call: Call, timeout: float) -> dict[str, Any]:
        """Posts one /generate and returns its reply."""

    def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        """Reads a JSON document of the runtime."""

    def close(self) -> None:
        """Lets go of connections and threads."""


NO_HEADERS: Mapping[str, str] = {}
_current = threading.local()


class _Connection(urllib3.connection.HTTPConnection):
    """Tells the call that this thread serves which connection it is on, so that it can hang up."""

    call: Call | None = None

    def request(self, *args: Any, **kwargs: Any) -> None:
        with changing_hands:
            self.call = getattr(_current, "call", None)
            if self.call is not None:
                self.call._connection = self
        super().request(*args, **kwargs)


class _SecureConnection(_Connection, urllib3.connection.HTTPSConnection):
    """The same over TLS."""


class HttpTransport:
    """Connections to one base URL. Thread-safe.

    Args:
        url: base URL of the server.
        role: named in errors.
        api_key: sent as a bearer token.
        alone: whether no other server could take an abort in place of this one (see ``Aborter``).
    """

    def __init__(self, url: str, role: str, api_key: str = "", alone: Callable[[], bool] = lambda: True) -> None:
        self.url, self.role = url.rstrip("/"), role
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._pools = urllib3.PoolManager(maxsize=512, block=False, retries=False)
        self._pools.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        self._aborter = Aborter(self._post_abort, alone)

    @property
    def deaf(self) -> bool:
        """It took no abort when it was last told one."""
        return self._aborter.deaf

    def abort(self, call: Call) -> None:
        """Starts cancelling a call on the server. Never blocks."""
        self._aborter.add(call)

    def generate(self, payload: dict[str, Any], call: Call, timeout: float) -> dict[str, Any]:
        """Posts one /generate.

        Raises:
            Cancelled, RuntimeDown, RuntimeTimeout, RuntimeRefused, PromptTooLong, BadReply.
        """
        return self._generate(payload, call, timeout, call.key)

    def _generate(self, payload: dict[str, Any], call: Call, timeout: float, key: str) -> dict[str, Any]:
        for last in (False, True):
            body = {**payload, "rid": call.sending(self.abort)}
            _current.call = call
            try:
                return self._exchange("POST", "/generate", body, timeout, {ROUTING_KEY: key} if key else {})
            except (RuntimeDown, RuntimeTimeout) as error:
                if call.cancelled:
                    raise Cancelled("cancelled while the runtime did not answer", role=self.role) from error
                # Only what broke before the first byte is sent again, once: a kept-alive connection may be stale.
                if last or not isinstance(error, _BeforeFirstByte):
                    raise
            finally:
                _current.call = None
        raise AssertionError("unreachable")

    def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        return self._exchange("GET", path, None, timeout)

    def close(self) -> None:
        self._aborter.close()
        self._pools.clear()

    def _post_abort(self, call: Call) -> None:
        self._exchange("POST", "/abort_request", {"rid": call.rid}, CONNECT_SECONDS)

    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None, timeout: float, more: Mapping[str, str] = NO_HEADERS
    ) -> dict[str, Any]:
        limits = urllib3.Timeout(connect=CONNECT_SECONDS, read=timeout)
        data = None if body is None else orjson.dumps(body)
        try:
            reply = self._pools.request(
                method, self.url + path, body=data, timeout=limits, headers={**self._headers, **more}
            )
        except urllib3.exceptions.ReadTimeoutError as error:
            raise RuntimeTimeout(
                f"no answer from {self.url}{path} in {timeout:g} s",
                role=self.role,
                hint="raise 'timeout' in the deployment file, or look at the server's load",
            ) from error
        except urllib3.exceptions.HTTPError as error:
            aborted = error.args[:1] == ("Connection aborted.",) and isinstance(error.args[-1], ConnectionError)
            kind = _BeforeFirstByte if aborted else RuntimeDown
            raise kind(
                f"{self.url} does not answer ({_plain(error)})", role=self.role, hint="is the server still running?"
            ) from error
        if reply.status != 200:
            code = reply.headers.get(ROUTER_ERROR, "")
            refusal = _refusal(reply.status, reply.data.decode(errors="replace"), path, self.role, code)
            refusal.status = reply.status
            raise refusal
        try:
            return orjson.loads(reply.data) if reply.data.strip() else {}
        except ValueError as error:
            if path in ("/abort_request", "/flush_cache"):
                return {}  # they answer in words
            raise BadReply(f"{self.url}{path} did not answer with JSON", role=self.role) from error


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class _BeforeFirstByte(RuntimeDown):
    """The connection broke with nothing of the answer read."""


class WorkerLost(RuntimeBusy):
    """The worker that a router sent the request to does not answer: another one may."""


def _refusal(status: int, text: str, path: str, role: str, code: str = "") -> RuntimeRefused:
    """The named error for an error status."""
    try:
        parsed = orjson.loads(text)
        text = (parsed.get("error") or {}).get("message") or parsed.get("message") or text
    except (ValueError, AttributeError):
        pass  # not JSON: the text itself is the message
    text = str(text).strip()[:500]
    if status == 500 and code.startswith(("call_upstream", "read_response")):
        hint = "are the router's workers still running?"
        return WorkerLost(f"{path}: the router has lost a worker: {text}", role=role, hint=hint)
    if status in (401, 403):
        return RuntimeRefused(f"{path}: {status} {text}", role=role, hint="set api_key_env in the deployment file")
    if status in (429, 502, 503, 504):
        return RuntimeBusy(f"{path}: {status} {text}", role=role, hint="ask for less at a time: --concurrency")
    if "context length" in text or "longer than the model" in text:
        return PromptTooLong(text, role=role, hint="shorten the prompt, or lower --max-tokens")
    return RuntimeRefused(f"{path}: {status} {text}", role=role)


def _plain(error: Exception) -> str:
    """urllib3's reason without the object addresses."""
    return str(error).rsplit(": ", 1)[-1] or type(error).__name__
