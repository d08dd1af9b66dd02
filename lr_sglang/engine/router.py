"""SGLang's router in front of many workers: generations go to the router, aborts and
``/server_info`` to its workers.

The router forwards generations and lists its workers (``GET /workers``); all other requests go to
the workers directly. If these cannot be reached, the connection of a cancelled request is closed
(SGLang notices within two seconds), and slots and KV cache are unknown.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lr_sglang.engine.client import Client
from lr_sglang.engine.refusal import WorkerLost
from lr_sglang.engine.request import Request
from lr_sglang.engine.transport import INFO_SECONDS
from lr_sglang.errors import BadReply, Cancelled, ConfigError, LookaheadError, RuntimeDown

# The age at which the list of workers is read again before a request is sent, or aborted.
REFRESH_SECONDS, REFRESH_SECONDS_FOR_ABORT = 10.0, 1.0
# Attempts to send a generation while its worker is lost. In each, the router tries the worker five
# times; it skips a worker after ten failures in a row.
TRIES = 3


def read_workers(reply: Any) -> dict[str, bool] | None:
    """The workers in a reply to ``GET /workers``, and whether each is healthy; None if no router
    sent the reply.

    A rank of a data-parallel worker (``http://host:port@3``) counts as its server. Workers with
    gRPC are left out.
    """
    listed = reply.get("workers") if isinstance(reply, Mapping) else None
    if not isinstance(listed, list):
        return None
    workers: dict[str, bool] = {}
    for one in listed:
        url = (
            re.sub(r"@\d+$", "", str(one.get("url", ""))).rstrip("/")
            if isinstance(one, Mapping)
            else ""
        )
        if url.startswith(("http://", "https://")):
            workers[url] = workers.get(url, False) or bool(one.get("is_healthy", True))
    return workers


def mixed(models: Iterable[str], url: str, role: str | None) -> ConfigError | None:
    """The error if the workers run different models; None if not. The folders of a model may
    differ.
    """
    names = sorted({Path(model).name for model in models})
    if len(names) < 2:
        return None
    hint = "give each model a router of its own"
    return ConfigError(
        f"the workers behind {url} run different models: {', '.join(names)}", role=role, hint=hint
    )


class RouterClient(Client):
    """Connections to a router and to its workers, on one event loop.

    Args:
        url: base URL of the router.
        role: named in errors.
        api_key: of the router, sent as a bearer token.
        worker_api_key: of the workers; if empty, ``api_key``.

    Attributes:
        changed: called when the set of healthy workers has changed.
    """

    def __init__(self, url: str, role: str, api_key: str = "", worker_api_key: str = "") -> None:
        super().__init__(url, role, api_key)
        self.changed: Callable[[], None] = lambda: None
        self._worker_key = worker_api_key or api_key
        self._workers: dict[str, Client] = {}
        self._infos: dict[str, Mapping[str, Any]] = {}
        self._dropped: list[Request] = []  # aborted requests that have not ended
        self._read, self._reading, self._closed = float("-inf"), False, False
        self._wrong: ConfigError | None = None
        self._refreshing = asyncio.Lock()

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers when the list was last read."""
        return list(self._workers)

    def infos(self) -> list[Mapping[str, Any]]:
        """The ``/server_info`` of each healthy worker that answers."""
        return list(self._infos.values())

    async def generate(
        self, payload: dict[str, Any], request: Request, timeout: float, key: str | None = None
    ) -> dict[str, Any]:
        """Posts one /generate to the router, again if the router loses the worker that it chose.

        Raises:
            ConfigError: the workers run different models.
            Cancelled, RuntimeDown, RuntimeTimeout, RuntimeRefused, PromptTooLong, BadReply.
        """
        self._refresh_soon(REFRESH_SECONDS)
        deadline = time.monotonic() + timeout
        for left in reversed(range(TRIES)):
            if self._wrong is not None:
                raise self._wrong
            try:
                return await super().generate(
                    payload, request, max(0.05, deadline - time.monotonic()), key
                )
            except WorkerLost as error:
                if request.cancelled:
                    raise Cancelled(
                        "cancelled while its worker was lost", role=self.role
                    ) from error
                if not left or time.monotonic() > deadline:
                    raise
                # Until it notices the loss, the router sends requests with the same key to the lost
                # worker.
                key = f"{request.key}-{left}" if request.key else ""
        raise AssertionError("unreachable")

    def abort(self, request: Request) -> None:
        """Starts aborting a request on every worker, because the router does not tell which worker
        runs it.
        """
        self._refresh_soon(REFRESH_SECONDS_FOR_ABORT)
        self._dropped = [one for one in self._dropped if not one.ended] + [request]
        for worker in self._workers.values():
            worker.abort(request)
        if not self._workers:
            super().abort(request)  # the router refuses the abort, so the connection is closed

    async def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        """Reads a document of the first worker that answers, else raises its error;
        ``/flush_cache`` goes to all.
        """
        if path == "/health":  # the router must answer, too, and may reach workers that we cannot
            listed = read_workers(await super().get("/workers", timeout)) or {}
            if not self._infos and any(listed.values()):
                return {}
        return await self._of_a_worker(path, lambda worker: worker.get(path, timeout))

    async def post(
        self, path: str, body: dict[str, Any], timeout: float = INFO_SECONDS
    ) -> dict[str, Any]:
        """Posts to the first worker that answers, as ``get``."""
        return await self._of_a_worker(path, lambda worker: worker.post(path, body, timeout))

    async def _of_a_worker(
        self, path: str, ask: Callable[[Client], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        found: dict[str, Any] | None = None
        failure: LookaheadError = RuntimeDown(
            f"the router {self.url} has no workers", role=self.role
        )
        for worker in list(self._workers.values()):
            try:
                found = await ask(worker)
            except LookaheadError as error:
                failure = error
            if found is not None and path != "/flush_cache":
                break
        if found is None:
            raise failure
        return found

    async def disconnect(self) -> None:
        for worker in self._workers.values():
            await worker.disconnect()
        await super().disconnect()

    async def close(self) -> None:
        workers, self._workers, self._closed = self._workers, {}, True
        for worker in workers.values():
            await worker.close()
        await super().close()

    async def refresh(self) -> None:
        """Reads the list of workers, and the ``/server_info`` of new ones.

        Raises:
            LookaheadError: the router does not answer, or the server is no router (``BadReply``).
        """
        async with self._refreshing:
            listed = read_workers(await super().get("/workers", INFO_SECONDS))
            if listed is None:
                raise BadReply(
                    f"{self.url}/workers does not answer as SGLang's router does", role=self.role
                )
            self._read = time.monotonic()
            if self._closed:  # while the request was in flight
                return
            gone = [self._workers.pop(url) for url in list(self._workers) if url not in listed]
            for url in (url for url in listed if url not in self._workers):
                self._workers[url] = worker = Client(
                    url, self.role, self._worker_key, self._none_takes_aborts
                )
                for request in self._dropped:  # the new worker may run them
                    if not request.ended:
                        worker.abort(request)
            for worker in gone:
                self.start(worker.close())
            infos: dict[str, Mapping[str, Any]] = {}
            for url in (url for url in listed if listed[url]):
                if info := self._infos.get(url) or await self._ask(url):
                    infos[url] = info
            models = [str(info["model_path"]) for info in infos.values() if "model_path" in info]
            self._wrong = mixed(models, self.url, self.role)
            other, self._infos = infos.keys() != self._infos.keys(), infos
        if other:
            self.changed()

    async def _ask(self, url: str) -> Mapping[str, Any]:
        try:
            return await self._workers[url].get("/server_info", INFO_SECONDS)
        except (
            LookaheadError,
            KeyError,
        ):  # starting, gone, or this client closed: retried at the next refresh
            return {}

    def servers(self) -> Sequence[Client]:
        self._refresh_soon(REFRESH_SECONDS_FOR_ABORT)
        return list(self._workers.values()) or [self]

    def _none_takes_aborts(self) -> bool:
        return all(worker.abort_failed for worker in self._workers.values())

    def _refresh_soon(self, age: float) -> None:
        """Starts reading the list in the background if it is older than ``age`` seconds."""
        if not self._reading and time.monotonic() - self._read >= age:
            self._reading = True
            self.start(self._refresh_quietly())

    async def _refresh_quietly(self) -> None:
        try:
            with suppress(LookaheadError):  # the known workers are kept
                await self.refresh()
        finally:
            self._read, self._reading = time.monotonic(), False
