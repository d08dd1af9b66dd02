"""``lr-sglang launch``: a deployment, brought up and kept up until a signal ends it."""

from __future__ import annotations

import json
import shlex
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import click

from lr_sglang.api.configuration import Plan
from lr_sglang.bench import servers
from lr_sglang.cli import options, session
from lr_sglang.cli.display import Display
from lr_sglang.cli.settings import Given, settle
from lr_sglang.config import Deployment
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import Fleet, built_in, deployments, launched
from lr_sglang.runtimes import launch as start
from lr_sglang.runtimes.launching import compilers, fleet, probe
from lr_sglang.runtimes.launching.keeper import Event, Keeper, Patience

STAMP = "%Y-%m-%dT%H:%M:%S%z"


@click.command()
@click.argument("deployment", required=False)
@click.option("--list", is_flag=True, help="Say which deployments are built in, and which are up.")
@click.option("--print", is_flag=True, help="Print the servers' exact commands, and start nothing.")
@click.option(
    "--prime",
    is_flag=True,
    help="Start, answer a greedy and a sampled request, say which compile caches were filled, "
    "and stop.",
)
@options.modes(
    "What it shall serve, again for more: sd and lookahead+sd need the token layer, the others "
    "none of it.  "
    "[default: lookahead, or lookahead+sd with a token layer]"
)
@click.option(
    "--with-token-layer",
    is_flag=True,
    help="The same as --mode sd --mode lookahead+sd: servers with their token layer.",
)
@click.option(
    "--concurrency",
    type=options.AT_LEAST_1,
    default=8,
    help="Answers at a time to have room for, as serve --concurrency.",
)
@click.option("--name", help="To attach by.  [default: the deployment's]")
@options.flag
@options.keeping
@options.roles
@options.token_layer
@options.method
@options.assign()
@options.as_json
@options.quiet
def launch(**given: Any) -> None:
    """Brings a DEPLOYMENT up and keeps it up: a built-in name (--list) or a TOML file.  [default:
    pocket]

    Roles whose file names no GPUs are placed on those that there are. A server that ends is started
    again on its port, with longer and longer pauses. Ctrl-C or SIGTERM stops all of them; the exit
    status is then 0 if they were up, and 1 if the target could not be kept up.

    \b
    Examples:
      lr-sglang launch
      lr-sglang launch qwen3-4gpu
      lr-sglang launch qwen3-2gpu --with-token-layer --concurrency 4 --name fast
      lr-sglang launch deepseek-1gpu --print
      lr-sglang launch pocket --prime
      lr-sglang launch --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --judge target
      lr-sglang run --attach qwen3-4gpu "How many primes are below 60?"
    """
    display = Display(as_json=given["json"], quiet=given["quiet"])
    if given["list"]:
        _list(display)
        return
    if given["with_token_layer"]:
        given["mode"] = (*given["mode"], "sd", "lookahead+sd")
    plan = settle(given).checked()
    deployment = placed(plan, given)
    given["logs"] = (
        given["logs"] or launched.state_home() / "logs" / launched.path_of(deployment.name).stem
    )
    if given["print"]:
        _print(deployment, given, display)
        return
    with ExitStack() as stack:
        stack.enter_context(launched.claimed(deployment.name))
        before = compilers.cache_contents(compilers.cache_folders()) if given["prime"] else {}
        progress = stack.enter_context(display.starting())
        running = stack.enter_context(
            start(deployment, given["logs"], progress, given["launch_timeout"])
        )
        progress.finish()
        session.tell_shortages(session.of_servers(plan, plan.modes, running), display)
        if not given["prime"]:
            _keep(running, plan, given, display)
            return
        for (
            role,
            server,
        ) in running.servers.items():  # compiles what a later start would compile on first use
            probe.warm(
                server.url,
                timeout=given["launch_timeout"],
                role=role,
                sampled=plan.sampling.drawn(),
            )
    _show_caches(deployment.name, before, display)


def placed(plan: Plan, given: Given) -> Deployment:
    """The runtimes that the modes use, each with its place.

    Raises:
        ConfigError: modes that need different servers, or roles that do not fit on the GPUs.
    """
    if len(plan.server_sets(plan.modes)) > 1:
        raise ConfigError(
            f"modes {', '.join(plan.modes)} need different servers: a token layer is set when "
            "a server starts",
            hint="launch two deployments, with another --name for one of them",
        )
    found = plan.needed(plan.modes, given["concurrency"]).with_options(
        name=given["name"],
        sampling=plan.sampling,
        lookahead=plan.lookahead,
        limits=plan.limits,
        judge_prompt=plan.judge_prompt,
    )
    return servers.placed(servers.flagged(found, given["flag"]), unseen=given["print"])


def _list(display: Display) -> None:
    """Deployments that are built in, and those that are up."""
    ours = {name: deployments.summary(name) for name in built_in()}
    running = launched.up()
    if display.as_json:
        up = {
            one.name: {"pid": one.pid, "started": one.started, "roles": one.roles}
            for one in running
        }
        click.echo(json.dumps({"built_in": ours, "up": up}, ensure_ascii=False))
        return
    for name, about in ours.items():
        click.echo(f"{name:18} {about}")
    for one in running:
        roles = ", ".join(f"{role} {it['url']}" for role, it in one.roles.items())
        click.echo(f"up: {one.name} (process {one.pid}, since {one.started}): {roles}")


def _print(deployment: Deployment, given: Given, display: Display) -> None:
    """Prints the servers' exact commands; without a given port, each call chooses other
    free ports.
    """
    servers = fleet.prepared(deployment, given["logs"])
    # An empty TMPDIR asks our guardian for a folder that is removed with the server; a shell knows
    # no such rule.
    envs = {
        role: {k: v for k, v in one.env.items() if (k, v) != ("TMPDIR", "")}
        for role, one in servers.items()
    }
    if display.as_json:
        found = {
            role: {"env": envs[role], "argv": one.argv, "url": one.url}
            for role, one in servers.items()
        }
        click.echo(json.dumps({"name": deployment.name, "servers": found}, ensure_ascii=False))
        return
    for role, server in servers.items():
        click.echo(f"# {role}")
        click.echo(
            " ".join(
                [*(f"{k}={shlex.quote(v)}" for k, v in envs[role].items()), shlex.join(server.argv)]
            )
        )
    for role, runtime in deployment.runtimes.items():
        if runtime.url:
            click.echo(f"# {role} runs already at {runtime.url}")


def _keep(running: Fleet, plan: Plan, given: Given, display: Display) -> None:
    """Keeps servers up until a signal ends this, and keeps their description in a file for runs
    that attach.
    """
    layered, sampling, started = (
        plan.layered(plan.modes[0]),
        plan.deployment.sampling.given(),
        time.strftime(STAMP),
    )

    def remember() -> launched.Launched:
        up = launched.describe(running, list(plan.modes), layered, sampling, started)
        launched.write(up)
        return up

    def tell(event: Event) -> None:
        # it may be read hours later
        said = f"{time.strftime('%H:%M:%S')} {event.role}: {event.message}"
        if event.what == "ended":
            display.warn(f"{said}; started again in {event.delay:g} s ({event.hint})")
        elif event.what == "given up":
            display.warn(f"{said}; given up, answers go on without it, slower but no worse")
        else:
            display.note(said)
            remember()  # its process has changed

    try:
        up = remember()
        if display.as_json:
            click.echo(
                json.dumps({"name": up.name, "pid": up.pid, "roles": up.roles}, ensure_ascii=False)
            )
        else:
            for role, about in up.roles.items():
                click.echo(f"{role:7} {about['url']}  {about['model'] or '(attached)'}")
            display.note(
                f'attach: lr-sglang run --attach {shlex.quote(up.name)} "..."    end: Ctrl-C'
            )
        Keeper(running, tell, Patience(restarts=given["restarts"]), given["launch_timeout"]).watch()
    except KeyboardInterrupt:  # the usual way to end it
        display.note("stopping the servers")
    finally:
        launched.remove(running.deployment.name)


def _show_caches(name: str, before: dict[str, Any], display: Display) -> None:
    """Prints the folders of compiled kernels, before and after."""
    folders = compilers.cache_folders()
    after = compilers.cache_contents(folders)
    if display.as_json:
        caches = {
            key: {"path": str(path), "before": asdict(before[key]), "after": asdict(after[key])}
            for key, path in folders.items()
        }
        click.echo(json.dumps({"name": name, "caches": caches}))
        return
    for key, path in folders.items():
        was, now = before[key], after[key]
        sizes = (
            f"{was.size / 1e6:8.1f} -> {now.size / 1e6:8.1f} MB, {now.files - was.files:+} files"
        )
        click.echo(f"{key:16} {sizes if now.files else 'nothing'}  {path}")
