"""What ``lr-sglang serve`` does: runtimes up (or attached to) and kept up, the endpoint over them, and both down."""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.api.configuration import Plan
from lr_sglang.cli import capacity
from lr_sglang.cli.display import Display
from lr_sglang.cli.processes import Ending, Endpoint
from lr_sglang.cli.session import Session
from lr_sglang.cli.settings import settle
from lr_sglang.errors import ConfigError, LaunchError, LookaheadError
from lr_sglang.modes import MODES
from lr_sglang.runtimes import launched
from lr_sglang.runtimes.launching.keeper import Event, Keeper, Patience
from lr_sglang.serve import keys, settings
from lr_sglang.serve.logs import log
from lr_sglang.serve.settings import Service
from lr_sglang.verifiers import verifier_registry

if TYPE_CHECKING:
    from lr_sglang.runtimes import Fleet

# Fields of ``Service`` whose options are called otherwise.
NAMES = {"stall": "stall_timeout", "timeout": "request_timeout", "model": "model_name"}


def serve(given: dict[str, Any], display: Display) -> None:
    """Serves until a signal ends it.

    Raises:
        LookaheadError: an option that cannot be, a port in use, or as ``runtimes.launch``; the target was given up.
    """
    plan = settle(given).checked()
    modes = list(plan.modes)
    if len(plan.server_sets(modes)) > 1:
        hint = "a token layer is set when a server starts: serve them at two ports"
        raise ConfigError(f"modes {', '.join(modes)} need different servers", hint=hint)
    service = service_of(plan, modes, given)
    allowed, warnings = keys.load(given["api_keys_file"])
    settings.check_public(service, len(allowed), given["allow_no_key"])
    service = dataclasses.replace(service, hosts_are_open=bool(allowed) or given["allow_no_key"])
    for warning in warnings:
        display.warn(warning)
    sized = _sized(plan, service)
    _check_files(sized, service, given["processes"])
    with listening(service.host, service.port) as sock:
        with display.starting() as progress:

            def ready(live: Session) -> None:
                progress.finish()
                if live.simulated:
                    display.warn("these runtimes are simulated: their texts mean nothing")
                capacity.report(plan, service.modes, live, service.concurrency, display)
                _tell(sock, service, display)

            endpoint = Endpoint(
                sized.needed(service.modes, service.concurrency),
                service,
                allowed,
                sock,
                given["logs"] or launched.state_home() / "logs" / "serve" / str(sock.getsockname()[1]),
                given["launch_timeout"],
                given["processes"],
                given["log_level"],
                plan.lean(*service.verifiers),
                progress,
                ready,
            )
            with endpoint.up() as (fleet, server, run):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or it could not listen beside old ones
                with _kept_up(fleet, given["restarts"], given["launch_timeout"], server):
                    run()
                display.note("stopped")


def service_of(plan: Plan, modes: list[str], given: Mapping[str, Any]) -> Service:
    """What the options allow.

    Raises:
        ConfigError: a verifier or a depth that cannot be.
    """
    options = {field.name: given.get(NAMES.get(field.name, field.name)) for field in dataclasses.fields(Service)}
    verifiers = dict.fromkeys((plan.lookahead.verifier, "exact", *given["allow_verifier"]))
    look = plan.lookahead
    for name, most in (("depth", given["max_depth"]), ("width", given["max_width"])):
        if most is not None and most < getattr(look, name):
            message = f"--max-{name} {most} is less than --{name}, {getattr(look, name)}"
            raise ConfigError(message, hint=f"give --{name} {most} as well")
    served = tuple(modes if given["mode"] else dict.fromkeys((*modes, *_possible(plan, modes))))
    if all(MODES[name].lossless for name in served):
        verifiers = {"exact": None}  # the judge is not started for them
    settled = {
        "check_judge": True,
        "model": given["model_name"] or plan.models["target"],
        "modes": served,
        "verifiers": tuple(name for name in verifiers if _judged_by(plan, name)),
        **{name: getattr(plan, name) for name in ("lookahead", "sampling", "limits", "judge_prompt", "program")},
    }
    return Service().replace(**options | settled)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound before anything slow begins, and keeps the address from others that would do the same.

    Raises:
        LaunchError: the address cannot be listened on.
    """
    sock = None
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections too: no step waits for an ACK
        sock.bind(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except (OSError, UnicodeError) as error:  # the latter of a name such as 0..0.0
        if sock is not None:
            sock.close()
        hint = "give another --port, or 0 for any that is free" if sock is not None else "give another --host"
        why = getattr(error, "strerror", None) or error
        raise LaunchError(f"cannot listen on {host}:{port}: {why}", hint=hint) from error
    with sock:
        yield sock


def _possible(plan: Plan, modes: list[str]) -> list[str]:
    """The modes that the servers of these can do as well."""
    layered = plan.layered(modes[0])
    able = [name for name, mode in MODES.items() if mode.token_layer in (None, layered)]
    return [name for name in able if not MODES[name].ahead or "draft" in plan.models]


def _judged_by(plan: Plan, name: str) -> bool:
    """Whether there is the runtime that a verifier needs; also checks its name."""
    return not verifier_registry.needs_judge(name) or "judge" in plan.models


def _sized(plan: Plan, service: Service) -> Plan:
    """With servers for what requests may ask for, and room for it."""
    judged = next((name for name in service.verifiers if verifier_registry.needs_judge(name)), None)
    look = plan.lookahead.replace(depth=service.deepest, width=service.widest, verifier=judged)
    return dataclasses.replace(plan, lookahead=look)


def _check_files(plan: Plan, service: Service, processes: int) -> None:
    """Each answer has its client's connection, and one for each request that it has in flight.

    Raises:
        ConfigError: these are more files than a process may open, however much it asks for.
    """
    from lr_sglang.serve.connections import files

    roles = dict.fromkeys(role for mode in service.modes for role in plan.roles(mode))
    answers, each = -(-service.concurrency // processes), 1 + plan.branches(roles, service.modes)
    if answers * each > (most := files()):
        message = f"--concurrency {service.concurrency} takes up to {answers * each} open files, and {most} are allowed"
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
    """Servers that we started are started again when they end.

    Raises:
        LookaheadError: the target was given up.
    """
    if fleet is None or not fleet.servers:
        yield
        return
    keeper, failed = Keeper(fleet, _changed, Patience(restarts=restarts), timeout), list[LookaheadError]()

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
