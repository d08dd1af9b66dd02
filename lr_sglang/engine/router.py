"""SGLang's router in front of many workers: generations go to the router, aborts, lines
and ``/server_info`` to its workers.

The router forwards generations and lists its workers (``GET /workers``); all other requests go to
the workers directly. If these cannot be reached, the connection of a cancelled request is closed
(SGLang notices within two seconds), and slots and KV cache are unknown.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lr_sglang.engine.client import Client
from lr_sglang.engine.transport import INFO_SECONDS, LINE_SECONDS
from lr_sglang.errors import BadReply, LookaheadError, RuntimeDown, RuntimeRefused
from lr_sglang.sglang_api.plugin_protocol import Delivery
from lr_sglang.steps.branch import Request

REFRESH_SECONDS = 2.0  # age at which the list of workers is read again when a request is sent


def read_workers(reply: Any) -> list[str] | None:
    """The workers in a reply to ``GET /workers``; None if no router sent the reply.

    A rank of a data-parallel worker (``http://host:port@3``) counts as its server. Workers with
    gRPC are left out.
    """
    listed = reply.get("workers") if isinstance(reply, Mapping) else None
    if not isinstance(listed, list):
        return None
    urls = [str(one.get("url", "")) for one in listed if isinstance(one, Mapping)]
    found = dict.fromkeys(re.sub(r"@\d+$", "", url).rstrip("/") for url in urls)
    return [url for url in found if url.startswith(("http://", "https://"))]


class RouterClient(Client):
    """Connections to a router and to its workers, on one event loop. Arguments as for ``Client``;
    the workers have the router's key.
    """

    def __init__(self, url: str, role: str, api_key: str = "") -> None:
        super().__init__(url, role, api_key)
        self._key = api_key
        self._workers: dict[str, Client] = {}
        self._read = float("-inf")

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers when the list was last read."""
        return list(self._workers)

    async def infos(self, path: str, timeout: float = INFO_SECONDS) -> list[dict[str, Any]]:
        """A document of each worker that answers."""
        found: list[dict[str, Any]] = []
        for worker in self._workers.values():
            with suppress(LookaheadError):
                found.append(await worker.get(path, timeout))
        return found

    async def generate(
        self, payload: dict[str, Any], request: Request, timeout: float
    ) -> dict[str, Any]:
        self._refresh_soon()
        return await super().generate(payload, request, timeout)

    def abort(self, request: Request) -> None:
        """Starts aborting a request on every worker, because the router does not tell which worker
        runs it. Without workers the router is asked; it refuses, so that the connection is closed.
        """
        self._refresh_soon()
        if not self._workers:
            super().abort(request)
        for worker in self._workers.values():
            worker.abort(request)

    async def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        """Reads a document of the first worker that answers, else raises its error;
        ``/flush_cache`` goes to all, and one that refuses it is an error.
        """
        return await self._of_a_worker(path, lambda worker: worker.get(path, timeout))

    async def post(
        self, path: str, body: dict[str, Any], timeout: float = INFO_SECONDS
    ) -> dict[str, Any]:
        """Posts to the first worker that answers, as ``get``."""
        return await self._of_a_worker(path, lambda worker: worker.post(path, body, timeout))

    async def deliver(
        self, deliveries: Sequence[Delivery], timeout: float = LINE_SECONDS
    ) -> Sequence[tuple[str, str]]:
        """Delivers to every worker, because the router does not tell which one runs a request;
        the others drop the lines. A line is refused if a worker refuses it.

        Raises:
            LookaheadError: no worker took them; the error of the last one.
        """
        self._refresh_soon()
        workers = list(self._workers.values())
        if not workers:
            raise RuntimeDown(f"the router {self.url} has no workers", role=self.role)
        replies = await asyncio.gather(
            *(worker.deliver(deliveries, timeout) for worker in workers), return_exceptions=True
        )
        refused: dict[str, str] = {}
        for reply in replies:
            if not isinstance(reply, BaseException):
                refused.update(reply)
            elif not isinstance(reply, LookaheadError):
                raise reply
        failures = [reply for reply in replies if isinstance(reply, LookaheadError)]
        if len(failures) == len(workers):
            raise failures[-1]
        return list(refused.items())

    async def _of_a_worker(
        self, path: str, ask: Callable[[Client], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        found: dict[str, Any] | None = None
        of_all = path.startswith("/flush_cache")
        failure: LookaheadError = RuntimeDown(
            f"the router {self.url} has no workers", role=self.role
        )
        for worker in list(self._workers.values()):
            try:
                found = await ask(worker)
            except LookaheadError as error:
                failure = error
            if found is not None and not of_all:
                break
        if found is None or (of_all and isinstance(failure, RuntimeRefused)):
            raise failure
        return found

    async def disconnect(self) -> None:
        for worker in self._workers.values():
            await worker.disconnect()
        await super().disconnect()

    async def close(self) -> None:
        await super().close()  # first, because a list that is being read may bring workers
        for worker in self._workers.values():
            await worker.close()

    async def refresh(self, timeout: float = INFO_SECONDS) -> None:
        """Reads the list of workers.

        Raises:
            LookaheadError: the router does not answer, or the server is no router (``BadReply``).
        """
        listed = read_workers(await super().get("/workers", timeout))
        if listed is None:
            raise BadReply(
                f"{self.url}/workers does not answer as SGLang's router does", role=self.role
            )
        self._read = time.monotonic()
        for url in [url for url in self._workers if url not in listed]:
            self.start(self._workers.pop(url).close())
        for url in listed:
            if url not in self._workers:
                self._workers[url] = Client(
                    url,
                    self.role,
                    self._key,
                    lambda: all(worker.abort_failed for worker in self._workers.values()),
                )

    def servers(self) -> Sequence[Client]:
        self._refresh_soon()
        return list(self._workers.values()) or [self]

    def _refresh_soon(self) -> None:
        """Starts reading the list in the background if it is older than ``REFRESH_SECONDS``."""
        if time.monotonic() - self._read >= REFRESH_SECONDS:
            self._read = time.monotonic()
            self.start(self._refresh_quietly())

    async def _refresh_quietly(self) -> None:
        with suppress(LookaheadError):  # the known workers are kept
            await self.refresh()


async def reach(url: str, role: str, api_key: str = "", timeout: float = INFO_SECONDS) -> Client:
    """A client of the server at a URL; of SGLang's router and its workers, if that is there.

    Raises:
        LookaheadError: nothing answers there, or the router has no workers.
    """
    routed = RouterClient(url, role, api_key)
    try:
        await routed.refresh(timeout)
    except (RuntimeRefused, BadReply):
        return Client(url, role, api_key)
    finally:  # requests may be made on another loop
        await routed.disconnect()
    if not routed.workers:
        hint = "start some, or wait until the router has found them"
        raise RuntimeDown(
            f"{url} is a router with no workers that speak HTTP", role=role, hint=hint
        )
    return routed
