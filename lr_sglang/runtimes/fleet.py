"""All runtimes of a deployment: launched or attached, ready together, stopped together."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import LookaheadError
from lr_sglang.runtimes import flags, models, options, platforms
from lr_sglang.runtimes.attach import Attached, attach
from lr_sglang.runtimes.ports import HOST, Reservation
from lr_sglang.runtimes.server import ProgressEvent, Server, Stage

Progress = Callable[[ProgressEvent], None]
STAGGER = 0.0  # seconds between two starts


@dataclass
class Fleet:
    """Runtimes that are ready. Use it in ``with``: on the way out every server that we started is stopped.

    Attributes:
        urls: where each role answers; roles that share a runtime have the same address.
        tokenizers: a path or hub name to load each role's tokenizer from.
        keys: the API key of each role that needs one.
        servers: the processes that we started; attached roles have none.
    """

    deployment: Deployment
    urls: dict[str, str] = field(default_factory=dict)
    tokenizers: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict, repr=False)
    servers: dict[str, Server] = field(default_factory=dict)

    def dead(self) -> list[str]:
        """Roles whose server, which we started, has ended."""
        gone = {role for role, server in self.servers.items() if not server.alive()}
        sharing = {role for role, other in self.deployment.shared.items() if other in gone}
        return sorted(gone | sharing)

    def server(self, role: str) -> Server | None:
        """The process that plays a role, its own or a shared one; None where the role is attached."""
        return self.servers.get(self.deployment.shared.get(role, role))

    def stop(self) -> None:
        """Stops every server that we started; idempotent."""
        for server in self.servers.values():
            server.ask_to_stop()
        for server in self.servers.values():
            server.stop()
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _add(self, role: str, attached: Attached) -> None:
        sharing = [other for other, owner in self.deployment.shared.items() if owner == role]
        for name in (role, *sharing):
            self.urls[name] = attached.url
            self.tokenizers[name] = attached.tokenizer
            if attached.api_key:
                self.keys[name] = attached.api_key


def launch(deployment: Deployment, logs: Path, progress: Progress | None = None, timeout: float = 600.0) -> Fleet:
    """Brings up all runtimes of a deployment.

    Everything that can be checked without starting a server is checked first. If one runtime fails, or this is
    interrupted, the others are stopped before the exception leaves.

    Args:
        logs: directory for ``target.log`` and so on; made if need be.
        progress: called, in the calling thread, when a runtime reaches a stage.
        timeout: seconds until all must be ready.

    Raises:
        ConfigError: a model, flag, GPU or tokenizer that cannot be.
        LaunchError: a port is in use; a server died while starting (``detail``: the tail of its log) or is late.
        RuntimeDown: nothing answers at a runtime's ``url``. Also RuntimeTimeout, RuntimeRefused, BadReply.
    """
    fleet = Fleet(deployment)
    starts = _Launch(fleet, progress or (lambda event: None), timeout)
    reserved: list[Reservation] = []
    atexit.register(fleet.stop)
    try:
        for role, runtime in deployment.runtimes.items():
            if not runtime.url:
                reserved.append(_prepare(fleet, role, runtime, logs))
        for role, runtime in deployment.runtimes.items():
            if runtime.url:
                fleet._add(role, attach(role, runtime))
                starts.report(role, "attached")
        starts.run()
    except BaseException:
        fleet.stop()
        raise
    finally:
        for reservation in reserved:
            reservation.release()
    return fleet


def _prepare(fleet: Fleet, role: str, runtime: Runtime, logs: Path) -> Reservation:
    where = f"[runtimes.{role}]"
    if runtime.extra:
        options.check(list(flags.extras(runtime, where)), where)
    model = models.locate(runtime.model, role)
    platform = platforms.platform(platforms.device(runtime, role), model)
    tokenizer = models.locate(runtime.tokenizer, role) if runtime.tokenizer else ""
    reservation = Reservation(runtime.port, role)
    try:
        command = flags.command(
            runtime.replace(tokenizer=tokenizer),
            reservation.port,
            platform,
            model=model,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            where=where,
        )
    except LookaheadError:
        reservation.release()
        raise
    url = f"http://{HOST}:{reservation.port}"
    fleet.servers[role] = Server(role, command.argv, url, logs / f"{role}.log", command.env)
    return reservation


class _Launch:
    """Starts the prepared servers, a thread for each, and gathers what becomes of them in the caller's thread."""

    def __init__(self, fleet: Fleet, progress: Progress, timeout: float) -> None:
        self.fleet, self.progress, self.timeout = fleet, progress, timeout
        self.began = time.monotonic()
        self.cancelled = threading.Event()
        self.news: queue.SimpleQueue[tuple[str, Stage | Attached | LookaheadError]] = queue.SimpleQueue()

    def report(self, role: str, stage: Stage) -> None:
        self.progress(ProgressEvent(role, stage, time.monotonic() - self.began))

    def run(self) -> None:
        ready = {role: threading.Event() for role in self.fleet.servers}
        for place, role in enumerate(ready):
            after = [ready[other] for other in list(ready)[:place] if self._same_gpu(role, other)]
            arguments = (role, place * STAGGER, after, ready[role])
            threading.Thread(target=self._bring_up, args=arguments, daemon=True).start()
        waiting = set(ready)
        try:
            while waiting:
                role, news = self.news.get()
                if isinstance(news, LookaheadError):
                    raise news
                if isinstance(news, Attached):
                    waiting.discard(role)
                    self.fleet._add(role, news)
                else:
                    self.report(role, news)
        finally:
            self.cancelled.set()

    def _same_gpu(self, one: str, other: str) -> bool:
        """Two servers that measure the free memory of one GPU while the other fills it would both get it wrong."""
        first, second = (self.fleet.deployment.runtimes[role] for role in (one, other))
        if any(platforms.device(runtime) == "cpu" for runtime in (first, second)):
            return False
        return bool(set(first.gpus or (0,)) & set(second.gpus or (0,)))

    def _bring_up(self, role: str, delay: float, after: list[threading.Event], ready: threading.Event) -> None:
        server = self.fleet.servers[role]
        try:
            for event in after:
                while not event.wait(0.2) and not self.cancelled.is_set():
                    pass
            self.cancelled.wait(delay)
            if self.cancelled.is_set():
                return
            self.news.put((role, "starting"))
            server.start()
            left = self.timeout - (time.monotonic() - self.began)
            info = server.wait_ready(left, stage=lambda stage: self.news.put((role, stage)), cancelled=self.cancelled)
            ready.set()
            self.news.put((role, Attached(server.url, info.tokenizer)))
        except LookaheadError as error:
            self.news.put((role, error))
