"""The endpoint's process: uvicorn with an orderly end."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from lr_sglang import plugin_files
from lr_sglang.errors import LaunchError, LookaheadError
from lr_sglang.runtimes import Fleet
from lr_sglang.serve.monitoring import log
from lr_sglang.serve.settings import Service

# To send what is still buffered when every answer has ended.
LAST_SECONDS = 3
# An idle connection is closed by the client first; OpenAI's does so after 5 s. If we closed it just
# when the next request is on its way, such as after Retry-After, that request would be lost.
IDLE_SECONDS = 75
# of uvicorn; between two checks of the runtimes' servers
TICK_SECONDS = 0.1
CHECK_TICKS = 5


def _tell(error: LaunchError) -> None:
    about = {"role": error.role, "message": error.message, "hint": error.hint}
    log("server ended", logging.WARNING, **about)


class Ended(KeyboardInterrupt):
    """Raised at the third signal: ends the process even while a program or a verifier blocks the
    event loop.
    """


class EndpointServer(uvicorn.Server):
    """Ends in order: no request is admitted any more, answers end (or are stopped when time is up),
    then connections.

    Until then it still listens, so that a client gets 503 and can go elsewhere.

    Args:
        app: from ``create_app``.
        ready: called when it listens.
        fleet: the runtimes' servers; their ends are logged, and without the target's it ends.

    Attributes:
        failed: the end of the target's server.
    """

    def __init__(
        self,
        app: FastAPI,
        service: Service,
        ready: Callable[[], None] = lambda: None,
        fleet: Fleet | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the client's address is not used
                http="h11",
                ws="none",
                limit_concurrency=service.max_connections,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=LAST_SECONDS,
                h11_max_incomplete_event_size=2**16,
            )
        )
        self._engine = app.state.engine
        self._service = service
        self._ready = ready
        self._signals = 0
        self._until = 0.0
        self._fleet = fleet
        self._ticked = float("inf")
        self.failed: Exception | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until it is ended. ``sys.exit`` in a program's task ends that task and not the
        server.
        """
        with asyncio.Runner(loop_factory=self.config.get_loop_factory()) as runner:
            loop = runner.get_loop()
            served = loop.create_task(self.serve(sockets))
            while not served.done():
                try:
                    loop.run_until_complete(served)
                except (SystemExit, KeyboardInterrupt) as error:
                    if not self.started or served.done() or plugin_files.is_stop(error):
                        raise

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        try:
            self._ready()
        except (LookaheadError, OSError) as error:  # nobody can be told where it listens
            self.failed = error
            self.end()

    def end(self) -> None:
        """Ends it as a signal does; from any thread."""
        self._signals += 1

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.end()
        if self._signals > 2:
            raise Ended

    async def on_tick(self, counter: int) -> bool:
        before = self._ticked
        self._ticked = time.monotonic()
        self._engine.late.append(max(0.0, self._ticked - before - TICK_SECONDS))
        if self._fleet and self.failed is None and counter % CHECK_TICKS == 0:
            try:
                self._fleet.check(_tell)
            except LaunchError as error:
                _tell(error)
                self.failed = error
                self.end()
        if self._signals:
            self._drain()
        return await super().on_tick(counter)

    def _drain(self) -> None:
        now = time.monotonic()
        if not self._until:
            self._until = now + self._service.drain
            self._engine.admission.close()
            log("draining", seconds=self._service.drain)
        is_late = self._signals > 1 or now > self._until
        if is_late:
            self._engine.stop()
        self.should_exit = is_late or self._engine.idle
