"""``lr-sglang launch``: a deployment, up until a signal ends it."""

from __future__ import annotations

import os
import shlex
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import click

from lr_sglang.api.configuration import Plan
from lr_sglang.bench import servers
from lr_sglang.cli import options, streams
from lr_sglang.cli.display import Display, count
from lr_sglang.cli.settings import Given, settle
from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import ConfigError, LaunchError
from lr_sglang.modes import MODES
from lr_sglang.runtimes import Fleet, built_in, deployments, launched
from lr_sglang.runtimes import launch as start
from lr_sglang.runtimes.launching import flags, fleet
from lr_sglang.runtimes.placement import gpus

DEFAULT_ANSWERS = 8  # at a time, unless it is said
STAMP = "%Y-%m-%dT%H:%M:%S%z"


@click.command()
@click.argument("deployment", required=False)
@click.option("--list", is_flag=True, help="Say which deployments are built in, and which are up.")
@click.option("--print", is_flag=True, help="Print the servers' exact commands, and start nothing.")
@click.option(
    "--gpus",
    metavar="NUMBERxGB",
    help="With --print, the machine that the commands are for, such as 4x80.  [default: this one]",
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
    help="Answers at a time to have room for, as serve --concurrency.  [default: 8, or as many as "
    "fit]",
)
@click.option("--name", help="To attach by.  [default: the deployment's]")
@options.logs
@options.roles
@options.token_layer
@options.method
@options.assign()
@options.as_json
@options.quiet
def launch(**given: Any) -> None:
    """Brings a DEPLOYMENT up: a built-in name (--list) or a TOML file.  [default:
    pocket]

    Roles whose file names no GPUs are placed on those that there are. Ctrl-C or SIGTERM stops all
    servers, with exit status 0 if they were up. A draft or judge that ends is reported; with the
    target everything ends, with exit status 1.

    \b
    Examples:
      lr-sglang launch
      lr-sglang launch qwen3-4gpu
      lr-sglang launch qwen3-2gpu --with-token-layer --concurrency 4 --name fast
      lr-sglang launch deepseek-1gpu --print
      lr-sglang launch qwen3.5-27b --print --gpus 2x80
      lr-sglang launch --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --judge target
      lr-sglang run --attach qwen3-4gpu "How many primes are below 60?"
    """
    display = Display(as_json=given["json"], quiet=given["quiet"])
    if given["list"]:
        _list(display)
        return
    if given["with_token_layer"]:
        given["mode"] = (*given["mode"], "sd", "lookahead+sd")
    if given["gpus"] and not given["print"]:
        raise click.UsageError("--gpus goes with --print: servers start on this machine")
    plan = settle(given)
    if given["with_token_layer"] and plan.fed:
        plan = replace(plan, modes=tuple(mode for mode in plan.modes if mode != "sd"))
    plan = plan.checked()
    answers = fitting_answers(plan, given)
    if not given["concurrency"] and answers < DEFAULT_ANSWERS:
        display.warn(
            f"room for {count(answers, 'answer')} at a time, not {DEFAULT_ANSWERS}: "
            "more do not fit on these GPUs"
        )
    deployment = placed_runtimes(plan, {**given, "concurrency": answers})
    for warning in (*crowded(deployment), *doubts(deployment, plan, given)):
        display.warn(warning)
    folder = launched.launched_file(deployment.name).stem
    given["logs"] = given["logs"] or launched.state_home() / "logs" / folder
    if given["print"]:
        _print(deployment, given, display)
        return
    with ExitStack() as stack:
        stack.enter_context(launched.claimed(deployment.name))
        progress = stack.enter_context(display.starting())
        running = stack.enter_context(
            start(deployment, given["logs"], progress, plan.deployment.launch_timeout)
        )
        progress.finish()
        _watch(running, plan, display)


def fitting_answers(plan: Plan, given: Given) -> int:
    """The answers at a time that the GPUs have memory for: as many as are asked for, or
    ``DEFAULT_ANSWERS`` and fewer; the states of a hybrid grow with them.

    Raises:
        ConfigError: as ``placed_runtimes``.
    """
    most: int = given["concurrency"] or DEFAULT_ANSWERS

    def lack(answers: int) -> ConfigError | None:
        try:
            placed_runtimes(plan, {**given, "concurrency": answers})
        except ConfigError as error:
            return error
        return None

    if (too_many := lack(most)) is None:
        return most
    if none := lack(1):
        raise none
    fitting = bisect_left(range(1, most), True, key=lambda answers: bool(lack(answers)))
    if given["concurrency"]:
        hint = f"--concurrency {fitting} fits; or {too_many.hint}"
        raise ConfigError(too_many.message, role=too_many.role, hint=hint)
    return fitting


def placed_runtimes(plan: Plan, given: Given) -> Deployment:
    """The runtimes that the modes use, each with its place.

    Raises:
        ConfigError: modes that need different servers, or roles that do not fit on the GPUs.
    """
    plan.on_one_set("launch two deployments, with another --name for one of them")
    # a command that attaches may use the draft in another mode
    found = plan.needed(plan.modes, given["concurrency"], spare=False)
    found = found.with_options(name=given["name"])
    machine = gpus.described(given["gpus"]) if given.get("gpus") else ()
    return servers.placed_here(found, unseen=given["print"], machine=machine)


def doubts(deployment: Deployment, plan: Plan, given: Given) -> Iterator[str]:
    """What the commands of these servers leave open: devices, memory of a CPU, exact texts on a
    GPU.
    """
    ours = {role: one for role, one in deployment.runtimes.items() if not one.url}
    on_gpu = {
        role: bool(one.gpus) or one.device == "cuda" or flags.device(one, role) == "cuda"
        for role, one in ours.items()
    }
    if given["print"] and (
        unplaced := [r for r, one in ours.items() if on_gpu[r] and not one.gpus]
    ):
        yield (
            f"{', '.join(unplaced)}: no GPU is seen here, so the commands have no devices and no "
            "memory fractions; --gpus 4x80 says which machine they are for"
        )
    for role, one in ours.items():
        if not on_gpu[role] and (why := flags.too_large_here(one)):
            more = "; --gpus 4x80 prints the commands for GPUs" if given["print"] else ""
            yield f"{role}: on the CPU {why}{more}"
    target = deployment.shared.get("target", "target")
    exact = [mode for mode in plan.modes if MODES[mode].lossless]
    if exact and on_gpu.get(target) and not ours[target].repeatable:
        layer = " and no token layer" if plan.layered(exact[0]) else ""
        yield (
            "lossless on a GPU: seeds count there only with repeatable = true "
            f"(-o runtimes.target.repeatable=true){layer}, which is slower; without, the text is "
            "the target's own, but another draw than plain decoding with that seed"
        )


def crowded(deployment: Deployment) -> Iterator[str]:
    """A warning for each GPU on which a server takes the memory of those that start after it."""
    for gpu in sorted({gpu for one in deployment.runtimes.values() for gpu in one.gpus}):
        here = [role for role, one in deployment.runtimes.items() if gpu in one.gpus]
        if taking := [r for r in here[:-1] if not deployment.runtimes[r].memory_fraction]:
            yield (
                f"{' and '.join(here)} share GPU {gpu}, and {taking[0]} has no memory_fraction: it "
                f"takes nearly all of what is free, and {here[-1]} may find no room. Give a "
                "memory_fraction, or leave their 'gpus' out"
            )


def _list(display: Display) -> None:
    """Deployments that are built in, and those that are up."""
    ours = {name: deployments.summary(name) for name in built_in()}
    running = launched.up()
    if display.as_json:
        up = {
            one.name: {"pid": one.pid, "started": one.started, "roles": one.roles}
            for one in running
        }
        streams.write_json({"built_in": ours, "up": up})
        return
    for name, about in ours.items():
        streams.write_output(f"{name:18} {about}")
    for one in running:
        roles = ", ".join(f"{role} {it['url']}" for role, it in one.roles.items())
        streams.write_output(f"up: {one.name} (process {one.pid}, since {one.started}): {roles}")


def _print(deployment: Deployment, given: Given, display: Display) -> None:
    """Prints the servers' exact commands, and in which order they start."""
    hidden = "CUDA_VISIBLE_DEVICES" if given["gpus"] else ""  # it is this machine's
    environ = {name: value for name, value in os.environ.items() if name != hidden}
    servers = fleet.prepared(deployment, given["logs"], environ)
    after = fleet.starts_after(deployment)
    # An empty TMPDIR asks ``Server`` for a folder that is removed with it; a shell knows no such
    # rule.
    envs = {
        role: {k: v for k, v in one.env.items() if (k, v) != ("TMPDIR", "")}
        for role, one in servers.items()
    }
    if display.as_json:
        found = {
            role: {"env": envs[role], "argv": one.argv, "url": one.url, "after": after[role]}
            for role, one in servers.items()
        }
        streams.write_json({"name": deployment.name, "servers": found})
        return
    for role, server in servers.items():
        streams.write_output(f"# {role}{_start(deployment.runtimes[role], after[role])}")
        variables = [f"{name}={shlex.quote(value)}" for name, value in envs[role].items()]
        streams.write_output(" ".join([*variables, shlex.join(server.argv)]))
    for role, runtime in deployment.runtimes.items():
        if runtime.url:
            streams.write_output(f"# {role} runs already at {runtime.url}")


def _start(runtime: Runtime, after: Sequence[str]) -> str:
    """Where a server runs, and what it starts after, as the end of a comment."""
    where = f", GPU {' and '.join(map(str, runtime.gpus))}" if runtime.gpus else ""
    if not after:
        return where
    return (
        f"{where}: starts when {' and '.join(after)} {'is' if len(after) == 1 else 'are'} ready, "
        "since its memory fraction is of what is free then"
    )


def _watch(running: Fleet, plan: Plan, display: Display) -> None:
    """Returns when a signal ends it. Until then the servers' description is in a file for runs that
    attach.
    """
    layered = plan.layered(plan.modes[0])
    started = time.strftime(STAMP)
    up = launched.describe_launched(running, list(plan.modes), layered, started)

    def tell(error: LaunchError) -> None:
        # it may be read hours later
        said = f"{time.strftime('%H:%M:%S')} {error.role}: {error.message}"
        # a full disk, or a terminal that has gone (where rich exits), is no reason to stop
        with suppress(OSError, SystemExit):
            display.warn(f"{said}; answers go on without it, slower ({error.hint})")

    try:
        launched.write(up)
        if display.as_json:
            streams.write_json({"name": up.name, "pid": up.pid, "roles": up.roles})
        else:
            for role, about in up.roles.items():
                streams.write_output(f"{role:7} {about['url']}  {about['model'] or '(attached)'}")
            display.note(
                f'attach: lr-sglang run --attach {shlex.quote(up.name)} "..."    end: Ctrl-C'
            )
        while True:
            running.check(tell)
            time.sleep(fleet.FLEET_POLL)
    except KeyboardInterrupt:  # the usual way to end it
        display.note("stopping the servers")
    finally:
        launched.remove(running.deployment.name)
