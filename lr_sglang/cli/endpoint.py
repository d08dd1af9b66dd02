"""``lr-sglang serve`` at work: starts runtimes (or attaches), keeps them up, serves the endpoint,
and stops both.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from lr_sglang.api.configuration import Plan
from lr_sglang.cli import session
from lr_sglang.cli.display import Display, Starting
from lr_sglang.cli.session import Session
from lr_sglang.cli.settings import Given, settle
from lr_sglang.config import Deployment
from lr_sglang.errors import ConfigError, LaunchError, LookaheadError
from lr_sglang.modes import MODES
from lr_sglang.runtimes import Fleet, launch, launched
from lr_sglang.runtimes.launching.keeper import Event, Keeper, Patience
from lr_sglang.serve import keys, settings
from lr_sglang.serve.logs import log, set_up
from lr_sglang.serve.settings import Service
from lr_sglang.verifiers import verifier_registry

# Fields of ``Service`` whose options have another name.
NAMES = {"stall": "stall_timeout", "timeout": "request_timeout", "model": "model_name"}


class Ending(Protocol):
    """A server or a supervisor that can be ended."""

    def end(self) -> None:
        """Ends it as a signal does; from any thread."""


Up = Iterator[
    tuple[Fleet | None, Ending, Callable[[], Any]]
]  # runtimes, the server, and the call that serves


@dataclass(frozen=True)
class Endpoint:
    """An endpoint before it starts; ``ready`` is called once it answers."""

    deployment: Deployment
    service: Service
    keys: keys.Keys
    sock: socket.socket
    logs: Path
    given: Given
    lean: bool
    progress: Starting
    ready: Callable[[Session], None]

    @contextmanager
    def alone(self) -> Up:
        """Serves in this process."""
        timeout = self.given["launch_timeout"]
        with session.session(
            self.deployment, self.logs, self.progress, timeout, lean=self.lean
        ) as live:
            from lr_sglang.serve.app import create_app
            from lr_sglang.serve.server import EndpointServer

            set_up(self.given["log_level"])
            app = create_app(live.roles, self.service, self.keys)
            server = EndpointServer(app, self.service, lambda: self.ready(live))
            yield live.fleet, server, lambda: server.run(sockets=[self.sock])

    @contextmanager
    def several(self) -> Up:
        """Serves in several processes, which this one starts and keeps up."""
        from lr_sglang.serve.processes.supervisor import Supervisor, warm_up
        from lr_sglang.serve.processes.work import Work

        level = self.given["log_level"]
        warm_up(self.lean)
        with (
            launch(
                self.deployment, self.logs, self.progress, self.given["launch_timeout"]
            ) as fleet,
            session.logs_told(fleet),
            tempfile.TemporaryDirectory(
                prefix="lr-sglang-serve-", ignore_cleanup_errors=True
            ) as folder,
        ):
            set_up(level)
            addresses = dataclasses.replace(fleet, servers={})
            processes = self.given["processes"]
            work = Work(
                self.service, self.keys, addresses, Path(folder), processes, level, self.lean
            )
            server = Supervisor(work, self.sock, lambda found: self.ready(Session(found, fleet)))
            yield fleet, server, server.run


def serve(given: Given, display: Display) -> None:
    """Serves until a signal ends it.

    Raises:
        LookaheadError: an invalid option, a port in use, or as ``runtimes.launch``; the target was
            given up.
    """
    plan = settle(given).checked()
    if len(plan.server_sets(plan.modes)) > 1:
        hint = "a token layer is set when a server starts: serve them at two ports"
        raise ConfigError(f"modes {', '.join(plan.modes)} need different servers", hint=hint)
    service = service_of(plan, given)
    allowed, warnings = keys.load(given["api_keys_file"])
    settings.check_public(service, len(allowed), given["allow_no_key"])
    service = dataclasses.replace(service, hosts_are_open=bool(allowed) or given["allow_no_key"])
    for warning in warnings:
        display.warn(warning)
    sized = _sized(plan, service)
    _check_files(sized, service, given["processes"])
    with listening(service.host, service.port) as sock, display.starting() as progress:

        def ready(live: Session) -> None:
            progress.finish()
            if live.simulated:
                display.warn("these runtimes are simulated: their texts mean nothing")
            session.tell_shortages(
                session.shortages(plan, service.modes, live, service.concurrency), display
            )
            _tell(sock, service, display)

        needed, lean = (
            sized.needed(service.modes, service.concurrency),
            plan.lean(*service.verifiers),
        )
        logs = given["logs"] or launched.state_home() / "logs" / "serve" / str(
            sock.getsockname()[1]
        )
        endpoint = Endpoint(
            needed.replace(sampling=plan.sampling),
            service,
            allowed,
            sock,
            logs,
            given,
            lean,
            progress,
            ready,
        )
        with (
            endpoint.several() if given["processes"] > 1 else endpoint.alone() as (
                fleet,
                server,
                run,
            )
        ):
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # else old connections would prevent listen()
            with _kept_up(fleet, given["restarts"], given["launch_timeout"], server):
                run()
            display.note("stopped")


def service_of(plan: Plan, given: Given) -> Service:
    """The endpoint's settings by the options.

    Raises:
        ConfigError: an invalid verifier or depth.
    """
    assigned: Given = (given.get("option") or {}).get("serve", {})
    given = {**given, **{NAMES.get(name, name): value for name, value in assigned.items()}}
    options = {
        field.name: given.get(NAMES.get(field.name, field.name))
        for field in dataclasses.fields(Service)
    }
    look, verifiers = (
        plan.lookahead,
        dict.fromkeys((plan.lookahead.verifier, "exact", *given["allow_verifier"])),
    )
    for name, most in (("depth", given["max_depth"]), ("width", given["max_width"])):
        if most is not None and most < getattr(look, name):
            message = f"--max-{name} {most} is less than --{name}, {getattr(look, name)}"
            raise ConfigError(message, hint=f"give --{name} {most} as well")
    layered = plan.layered(plan.modes[0])  # its servers can do these modes as well
    able = [name for name, mode in MODES.items() if mode.token_layer in (None, layered)]
    able = [name for name in able if not MODES[name].ahead or "draft" in plan.models]
    # auto is no slower than the target alone under load; it would replace a policy that was asked
    # for
    auto = ("auto",) if MODES[plan.modes[0]].ahead and given["policy"] is None else ()
    served = plan.modes if given["mode"] else tuple(dict.fromkeys((*auto, *plan.modes, *able)))
    if all(MODES[name].lossless for name in served):
        verifiers = {"exact": None}  # the judge is not started for them
    judged = "judge" in plan.models
    settled = {
        "check_judge": True,
        # attaching says what is wrong where a target names none
        "model": given["model_name"] or plan.models["target"] or None,
        "modes": served,
        "verifiers": tuple(
            name for name in verifiers if not verifier_registry.needs_judge(name) or judged
        ),
        **{
            name: getattr(plan, name)
            for name in ("lookahead", "sampling", "limits", "judge_prompt", "program")
        },
    }
    return Service().with_options(**options | settled)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to the address before the slow start of servers, so that no other process
    takes it meanwhile.

    Raises:
        LaunchError: the address cannot be listened on.
    """
    sock = None
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # its connections too: no step waits for an ACK
        sock.bind(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name such as 0..0.0
        if sock is not None:
            sock.close()
        is_port = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        hint = (
            "give another --port, or 0 for any that is free" if is_port else "give another --host"
        )
        why = getattr(error, "strerror", None) or error
        raise LaunchError(f"cannot listen on {host}:{port}: {why}", hint=hint) from error
    with sock:
        yield sock


def _sized(plan: Plan, service: Service) -> Plan:
    """A plan whose servers have room for the greatest depth and width, and for every verifier, of a
    request.
    """
    judged = next((name for name in service.verifiers if verifier_registry.needs_judge(name)), None)
    look = plan.lookahead.with_options(depth=service.deepest, width=service.widest, verifier=judged)
    return dataclasses.replace(plan, lookahead=look)


def _check_files(plan: Plan, service: Service, processes: int) -> None:
    """Checks the limit of open files: each answer has its client's connection, and one for each
    request in flight.
    """
    from lr_sglang.serve.connections import files

    roles = dict.fromkeys(role for mode in service.modes for role in plan.roles(mode))
    answers, each = -(-service.concurrency // processes), 1 + plan.branches(roles, service.modes)
    if answers * each > (most := files()):
        message = (
            f"--concurrency {service.concurrency} takes up to {answers * each} open "
            f"files, and {most} are allowed"
        )
        hint = "ulimit -Hn N allows more; or give a lower --concurrency, or more --processes"
        raise ConfigError(message, hint=hint)


def _tell(sock: socket.socket, service: Service, display: Display) -> None:
    host, port = service.host.strip("[]"), sock.getsockname()[1]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if display.as_json:
        click.echo(json.dumps({"url": url, "model": service.model}, ensure_ascii=False))
    else:
        click.echo(f"{url}/v1  model: {service.model}")
        display.note(f"a page to watch it: {url}/    end: Ctrl-C")


@contextmanager
def _kept_up(fleet: Fleet | None, restarts: int, timeout: float, server: Ending) -> Iterator[None]:
    """Servers that we started are started again when they end."""
    if fleet is None or not fleet.servers:
        yield
        return
    keeper, failed = (
        Keeper(fleet, _changed, Patience(restarts=restarts), timeout),
        list[LookaheadError](),
    )

    def watch() -> None:
        try:
            keeper.watch()
        except LookaheadError as error:
            failed.append(error)
            server.end()

    thread = threading.Thread(target=watch, name="lr-keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        keeper.ending.set()
        thread.join()
    if failed:
        raise failed[0]


def _changed(event: Event) -> None:
    about = {"role": event.role, "message": event.message, "again": event.delay, "hint": event.hint}
    log(f"server {event.what}", logging.WARNING, **about)
