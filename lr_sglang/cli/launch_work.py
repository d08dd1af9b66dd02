"""What ``lr-sglang launch`` does: place a deployment, print it or bring it up, remember it, and keep it up."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from lr_sglang.api.configuration import Plan
from lr_sglang.cli.display import Display
from lr_sglang.config import Deployment
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import built_in, deployments, launch, launched
from lr_sglang.runtimes.launching import compile_caches, fleet, platforms, probe
from lr_sglang.runtimes.launching.keeper import Event, Keeper, Patience
from lr_sglang.runtimes.placement import assign, gpus


@dataclass(frozen=True)
class Upkeep:
    """What is to be kept up. ``sampling`` is what the deployment's file gives of it, for runs that attach."""

    deployment: Deployment
    modes: list[str]
    layered: bool
    sampling: dict[str, Any]
    logs: Path
    restarts: int
    timeout: float


def order(plan: Plan, modes: list[str], sampling: dict[str, Any], given: Mapping[str, Any]) -> Upkeep:
    """The runtimes that the modes use, each with its place.

    Raises:
        ConfigError: modes that need different servers, or roles that do not fit on the GPUs.
    """
    if len(plan.server_sets(modes)) > 1:
        raise ConfigError(
            f"modes {', '.join(modes)} need different servers: a token layer is set when a server starts",
            hint="launch two deployments, with another --name for one of them",
        )
    found = plan.needed(modes, given["concurrency"]).replace(
        name=given["name"], lookahead=plan.lookahead, limits=plan.limits, judge_prompt=plan.judge_prompt
    )
    # A runtime at a URL has no place, one that names GPUs has it; not to ask for the GPUs then saves a second.
    asking = {role: one for role, one in found.runtimes.items() if not one.url and not one.gpus}
    on_gpu = {
        role: (given["print"] and one.device == "cuda") or platforms.device(one, role) == "cuda"
        for role, one in asking.items()
    }
    machine = gpus.visible() if any(on_gpu.values()) else []
    if machine:
        found = assign.placed(found, [gpu.free for gpu in machine], on_gpu)
    logs = given["logs"] or launched.state_home() / "logs" / launched.path_of(found.name).stem
    return Upkeep(found, modes, plan.layered(modes[0]), sampling, logs, given["restarts"], given["launch_timeout"])


def show_list(display: Display) -> None:
    """Deployments that are built in, and those that are up."""
    ours = {name: deployments.summary(name) for name in built_in()}
    running = launched.up()
    if display.as_json:
        up = {one.name: {"pid": one.pid, "started": one.started, "roles": one.roles} for one in running}
        click.echo(json.dumps({"built_in": ours, "up": up}, ensure_ascii=False))
        return
    for name, about in ours.items():
        click.echo(f"{name:18} {about}")
    for one in running:
        roles = ", ".join(f"{role} {it['url']}" for role, it in one.roles.items())
        click.echo(f"up: {one.name} (process {one.pid}, since {one.started}): {roles}")


def show_commands(order: Upkeep, display: Display) -> None:
    """The exact commands; without a given port, each time with another free one."""
    servers = fleet.prepared(order.deployment, order.logs)
    # An empty TMPDIR asks our guardian for a folder that goes with the server; to a shell it would mean nothing.
    envs = {role: {k: v for k, v in one.env.items() if (k, v) != ("TMPDIR", "")} for role, one in servers.items()}
    if display.as_json:
        found = {role: {"env": envs[role], "argv": one.argv, "url": one.url} for role, one in servers.items()}
        click.echo(json.dumps({"name": order.deployment.name, "servers": found}, ensure_ascii=False))
        return
    for role, server in servers.items():
        click.echo(f"# {role}")
        click.echo(" ".join([*(f"{k}={shlex.quote(v)}" for k, v in envs[role].items()), shlex.join(server.argv)]))
    for role, runtime in order.deployment.runtimes.items():
        if runtime.url:
            click.echo(f"# {role} runs already at {runtime.url}")


def keep(order: Upkeep, display: Display) -> None:
    """Brings it up and keeps it up until a signal ends it.

    Raises:
        LookaheadError: as ``runtimes.launch``; or the target cannot be kept up.
        KeyboardInterrupt: before it was up.
    """
    name = order.deployment.name
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with (
        launched.claimed(name),
        display.starting() as progress,
        launch(order.deployment, order.logs, progress, order.timeout) as running,
    ):
        progress.finish()

        def remember() -> launched.Launched:
            up = launched.describe(running, order.modes, order.layered, order.sampling, started)
            launched.write(up)
            return up

        def tell(event: Event) -> None:
            _tell(event, display)
            if event.what == "back":
                remember()  # it is another process now

        try:
            _show(remember(), display)
            Keeper(running, tell, Patience(restarts=order.restarts), order.timeout).watch()
        except KeyboardInterrupt:  # the usual way to end it
            display.note("stopping the servers")
        finally:
            launched.remove(name)


def prime(order: Upkeep, sampling: Mapping[str, Any], display: Display) -> None:
    """Has the servers compile what they compile on first use, and says where it is kept; no later start waits for it.

    Args:
        sampling: of the sampled request; its kernels are others than those of a greedy one.

    Raises:
        LookaheadError: as ``runtimes.launch``.
    """
    folders = compile_caches.folders()
    before = compile_caches.contents(folders)
    with (
        launched.claimed(order.deployment.name),
        display.starting() as progress,
        launch(order.deployment, order.logs, progress, order.timeout) as running,
    ):
        progress.finish()
        for role, server in running.servers.items():
            probe.warm(server.url, timeout=order.timeout, role=role, sampled=sampling)
    after = compile_caches.contents(folders)
    if display.as_json:
        found = {
            name: {"path": str(folders[name]), "before": asdict(before[name]), "after": asdict(after[name])}
            for name in folders
        }
        click.echo(json.dumps({"name": order.deployment.name, "caches": found}))
        return
    for name, path in folders.items():
        was, now = before[name], after[name]
        sizes = f"{was.size / 1e6:8.1f} -> {now.size / 1e6:8.1f} MB, {now.files - was.files:+} files"
        click.echo(f"{name:16} {sizes if now.files else 'nothing'}  {path}")


def _show(up: launched.Launched, display: Display) -> None:
    if display.as_json:
        click.echo(json.dumps({"name": up.name, "pid": up.pid, "roles": up.roles}, ensure_ascii=False))
        return
    for role, about in up.roles.items():
        click.echo(f"{role:7} {about['url']}  {about['model'] or '(attached)'}")
    display.note(f'attach: lr-sglang run --attach {shlex.quote(up.name)} "..."    end: Ctrl-C')


def _tell(event: Event, display: Display) -> None:
    at = time.strftime("%H:%M:%S")  # it may be read hours later
    if event.what == "ended":
        display.warn(f"{at} {event.role}: {event.message}; started again in {event.delay:g} s ({event.hint})")
    elif event.what == "given up":
        display.warn(f"{at} {event.role}: {event.message}; given up, answers go on without it, slower but no worse")
    else:
        display.note(f"{at} {event.role}: {event.message}")
