"""All runtimes of a deployment: launched or attached, ready together, stopped together."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lr_sglang import hub
from lr_sglang.algorithm import policy
from lr_sglang.config import ROLES, Deployment, Runtime
from lr_sglang.errors import Cancelled, ConfigError, LaunchError
from lr_sglang.runtimes.attach import Attached, attach
from lr_sglang.runtimes.launching import (
    flags,
)
from lr_sglang.runtimes.launching.server import HOST, ProgressEvent, Reservation, Server, StartStage
from lr_sglang.runtimes.placement import memory, models

Progress = Callable[[ProgressEvent], None]

# Concurrent answers that a server with a token layer has slots for by default.
ANSWERS = 16
FLEET_POLL = 0.5  # seconds between two checks of the servers


@dataclass
class Fleet(AbstractContextManager["Fleet"]):
    """Runtimes that are ready. Use it in ``with``: on the way out every server that we started is
    stopped.

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
    _told: set[str] = field(default_factory=set)

    def server(self, role: str) -> Server | None:
        """The process that plays a role, its own or a shared one; None where the role is
        attached.
        """
        return self.servers.get(self.deployment.shared.get(role, role))

    def at_urls(self) -> dict[str, Runtime]:
        """Its runtimes as they are reached now, for another deployment."""
        found = {}
        for role, one in self.deployment.runtimes.items():
            known: dict[str, Any] = {"timeout": one.timeout, "context_length": one.context_length}
            at_url = one if one.url else Runtime(url=self.urls[role], **known)
            found[role] = at_url.replace(tokenizer=self.tokenizers[role] or at_url.tokenizer)
        return found

    def check(self, tell: Callable[[LaunchError], None]) -> None:
        """Looks for servers that we started and that have ended.

        Args:
            tell: called once for each; answers go on without draft and judge.

        Raises:
            LaunchError: the target has ended; without it, nothing can be answered.
        """
        for role, server in self.servers.items():
            if server.alive() or role in self._told:
                continue
            if role == self.deployment.shared.get("target", "target"):
                raise server.died()
            self._told.add(role)
            tell(server.died())

    def stop(self) -> None:
        """Stops every server that we started; idempotent."""
        for server in self.servers.values():
            server.ask_to_stop()
        for server in self.servers.values():
            server.stop()
        atexit.unregister(self.stop)

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _add(self, role: str, attached: Attached) -> None:
        sharing = [other for other, owner in self.deployment.shared.items() if owner == role]
        for name in (role, *sharing):
            self.urls[name] = attached.url
            self.tokenizers[name] = attached.tokenizer
            self.keys |= {name: attached.api_key} if attached.api_key else {}


def launch(
    deployment: Deployment, logs: Path, progress: Progress | None = None, timeout: float = 600.0
) -> Fleet:
    """Brings up all runtimes of a deployment.

    Everything that can be checked without starting a server is checked first. If one runtime fails,
    or this is interrupted, the others are stopped before the exception leaves.

    Args:
        logs: directory for ``target.log`` and so on; made if need be.
        progress: called when a runtime reaches a stage, in one thread or another, one at a time.
        timeout: seconds until all must be ready, without those of a download.

    Raises:
        ConfigError: an invalid model, flag, GPU or tokenizer.
        SetupError: a model has to be downloaded, and the hub does not answer.
        LaunchError: a port is in use; a server died while starting (``detail``: the tail of its
            log) or is late.
        RuntimeDown: nothing answers at a runtime's ``url``. Also RuntimeTimeout, RuntimeRefused,
            BadReply.
    """
    fleet = Fleet(deployment)
    began = time.monotonic()
    one_at_a_time = threading.Lock()

    def report(role: str, stage: StartStage) -> None:
        with one_at_a_time:
            if progress is not None:
                progress(ProgressEvent(role, stage, time.monotonic() - began))

    atexit.register(fleet.stop)
    with ExitStack() as ports:
        try:
            for role, runtime in deployment.runtimes.items():
                for model in (runtime.model, runtime.tokenizer, runtime.token_layer.draft_model):
                    if model and models.is_on_hub(model):
                        hub.check_model(model, role)
            for role, runtime in deployment.runtimes.items():
                if not runtime.url:
                    reservation = Reservation(runtime.port, role)
                    ports.callback(reservation.release)
                    _prepare(fleet, role, runtime, logs, reservation.port)
            for role, runtime in deployment.runtimes.items():
                if runtime.url:
                    fleet._add(role, attach(role, runtime))
                    report(role, "attached")
            _start(fleet, report, timeout)
        except BaseException:
            fleet.stop()
            raise
    return fleet


# Of a printed command whose runtime gives none: the same at every call. SGLang's own is the first.
PRINTED_PORTS: Mapping[str, int] = dict(zip(ROLES, range(30000, 30003), strict=True))


def prepared(
    deployment: Deployment, logs: Path, environ: Mapping[str, str] = os.environ
) -> dict[str, Server]:
    """The servers that ``launch`` would start, with their commands; nothing is started, and no port
    is taken: those that are not given are always the same.

    A runtime that asks for a GPU gets the command for one, also on a machine without.

    Args:
        environ: of the servers' machine.

    Raises:
        LookaheadError: as ``launch`` before it starts a server.
    """
    fleet = Fleet(deployment)
    given = {one.port for one in deployment.runtimes.values()}
    for role, runtime in deployment.runtimes.items():
        if not runtime.url:
            asked: flags.Device | None = (
                "cuda" if runtime.gpus or runtime.device == "cuda" else None
            )
            port = PRINTED_PORTS[role]
            while port in given:
                port += len(ROLES)
            _prepare(fleet, role, runtime, logs, runtime.port or port, asked, environ)
    return fleet.servers


def starts_after(deployment: Deployment) -> dict[str, list[str]]:
    """By role, the roles before it that name a GPU of its own: it starts when they are ready, since
    its memory fraction is of what is free then.
    """
    found: dict[str, list[str]] = {}
    for role, runtime in deployment.runtimes.items():
        found[role] = [
            other for other in found if set(deployment.runtimes[other].gpus) & set(runtime.gpus)
        ]
    return found


def same_gpu(deployment: Deployment, one: str, other: str) -> bool:
    """Whether two runtimes share a GPU: they start one after the other, since each measures its
    free memory.
    """
    pair = [deployment.runtimes[role] for role in (one, other)]
    if any(flags.device(runtime) == "cpu" for runtime in pair):
        return False
    # those that it names, or as many as it takes, from 0
    first, second = (it.gpus or range(it.tensor_parallel * it.data_parallel) for it in pair)
    return not set(first).isdisjoint(second)


def _prepare(
    fleet: Fleet,
    role: str,
    runtime: Runtime,
    logs: Path,
    port: int,
    device: flags.Device | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Adds a server to the fleet without starting it."""
    where = f"[runtimes.{role}]"
    layer = runtime.token_layer
    if runtime.api_key_env:
        raise ConfigError(f"{where}: 'api_key_env' is for a runtime that is given by its 'url'")
    flags.check_installed(layer)
    kind = device or flags.device(runtime, role)
    locate = partial(models.locate, role=role, in_memory=flags.computes_bodies(runtime, kind))
    model = locate(runtime.model)
    memory.check_parallel(runtime, where)
    if layer.draft_model:
        layer = layer.replace(draft_model=locate(layer.draft_model))
    found = runtime.replace(
        tokenizer=models.locate(runtime.tokenizer, role) if runtime.tokenizer else "",
        token_layer=layer,
        max_running_requests=runtime.max_running_requests or _slots(fleet.deployment, role),
    )
    command = flags.command(
        found,
        port,
        flags.server_platform(kind, model),
        model=model,
        environ=environ,
        where=where,
        target=role == "target",
    )
    url = f"http://{HOST}:{port}"
    log = logs / f"{role}.log"
    drawn = fleet.deployment.sampling.drawn()
    fleet.servers[role] = Server(
        role, command.argv, url, log, command.env, flags.meeting(found), model, drawn
    )


def _slots(deployment: Deployment, role: str) -> int | None:
    """The slots of a runtime with a token layer: SGLang's default of 48 would let branches wait in
    its own queue.
    """
    if not deployment.runtimes[role].token_layer.on:
        return None
    roles = [name for name in ROLES if deployment.shared.get(name, name) == role]
    return sum(policy.running_requests(deployment.lookahead, name, ANSWERS) for name in roles)


def _start(fleet: Fleet, report: Callable[[str, StartStage], None], timeout: float) -> None:
    """Starts the prepared servers, each in a thread. Returns when all are ready; raises the error
    of the first one that fails.
    """
    began = time.monotonic()
    given_up = threading.Event()

    def bring_up(role: str, after: list[Future[Attached]]) -> Attached:
        while not given_up.is_set() and wait(after, 0.2).not_done:
            pass
        if given_up.is_set():
            raise Cancelled("the launch was given up", role=role)
        report(role, "starting")
        server = fleet.servers[role]
        server.start()
        fetched = sum(one.fetched for one in fleet.servers.values())
        left = max(0.0, timeout + fetched - (time.monotonic() - began))
        info = server.wait_ready(left, stage=partial(report, role), cancelled=given_up)
        return Attached(server.url, info.tokenizer)

    pool = ThreadPoolExecutor(max(1, len(fleet.servers)), thread_name_prefix="lr-launch")
    started: dict[Future[Attached], str] = {}
    try:
        for role in fleet.servers:
            after = [
                one for one, other in started.items() if same_gpu(fleet.deployment, role, other)
            ]
            started[pool.submit(bring_up, role, after)] = role
        for done in as_completed(started):
            fleet._add(started[done], done.result())
    finally:
        given_up.set()
        pool.shutdown(wait=False)
