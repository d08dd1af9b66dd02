"""``lr-sglang serve``: starts runtimes (or attaches), watches them, serves the OpenAI-compatible
endpoint over them, and stops both.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.api import session
from lr_sglang.api.configuration import Plan
from lr_sglang.cli import options, streams
from lr_sglang.cli.display import Display
from lr_sglang.cli.settings import Given, asked_settings, settle
from lr_sglang.errors import ConfigError, LaunchError, reason_of
from lr_sglang.modes import MODES, Able, check_verifier, possible
from lr_sglang.runtimes import launched
from lr_sglang.runtimes.attach import served_name
from lr_sglang.serve.settings import ServeSettings, Service, check_public, load_keys
from lr_sglang.verifiers import verifier_registry

if TYPE_CHECKING:
    from lr_sglang.frontend.backend import RuntimeBackend

DEAF_SECONDS = 60
FILES = 2**16


@click.command()
@click.option("--host", default="127.0.0.1", help="Address to listen on; others need a key.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0: any that is free.")
@click.option(
    "--api-keys-file",
    type=options.FILE,
    metavar="FILE",
    help="Keys, one a line; LR_SGLANG_API_KEYS may hold more, with commas.",
)
@options.modes(
    "How to answer; again for more that a request may ask for.  [default: auto, and all others "
    "that "
    "these runtimes can do]"
)
@click.option("--concurrency", type=options.AT_LEAST_1, default=8, help="Answers at a time.")
@click.option(
    "--queue", type=options.AT_LEAST_0, default=64, help="Requests that may wait; others get 429."
)
@click.option(
    "--reasoning",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    help="Whether answers begin within <think>: on, always; auto, as prompt and text say; off, "
    "leave markers alone.",
)
@click.option(
    "--allow-origin",
    metavar="URL",
    multiple=True,
    help="Of web pages that may use the endpoint, such as https://chat.example; * is any.",
)
@options.logs
@options.program
@options.method
@options.token_layer
@options.sampling
@options.runtimes
@options.assign(serve=ServeSettings)
@click.option("--json", is_flag=True, help="Say as JSON where it listens.")
@click.option("--quiet", is_flag=True, help="Only where it listens, and warnings.")
def serve(**given: Any) -> None:
    """Answers over HTTP as OpenAI's API does, with lookahead reasoning behind it, and has a page to
    watch it at /.

    With no other options it starts three small models that come with the package, on this machine's
    CPU. --attach uses what 'lr-sglang launch' keeps up, --target URL and so on
    any SGLang servers. --max-tokens is the most that a request may ask for. A request may choose
    within what is allowed here (docs/serving.md).

    \b
    Examples:
      lr-sglang serve
      lr-sglang serve --attach qwen3-4gpu
      lr-sglang serve --deployment qwen3.toml --host 0.0.0.0 --api-keys-file keys.txt
      lr-sglang serve --target http://localhost:30000 --mode autoregressive --port 8080
      curl localhost:8000/v1/models
    """
    run_endpoint(given, Display(as_json=given["json"], quiet=given["quiet"]))


def run_endpoint(given: Given, display: Display) -> None:
    """Serves until a signal ends it.

    Raises:
        LookaheadError: an invalid option, a port in use, or as ``runtimes.launch``; the target was
            given up.
    """
    plan = settle(given).checked().on_one_set("serve them at two ports")
    service = service_of(plan, given)
    allowed = load_keys(given["api_keys_file"])
    check_public(service, len(allowed), service.allow_no_key)
    service = service.replace(hosts_are_open=bool(allowed) or service.allow_no_key)
    sized = _sized(plan, service)
    _allow_files()
    with listening(service.host, service.port) as sock, display.starting() as progress:
        needed = sized.needed(service.modes, service.concurrency)
        if why := sized.spared(service.modes):
            display.note(why)
        lean = plan.lean(*service.verifiers)
        port = str(sock.getsockname()[1])
        logs = given["logs"] or launched.state_home() / "logs" / "serve" / port
        timeout = plan.deployment.launch_timeout
        with session.session(needed, logs, progress, timeout, lean=lean) as live:
            from lr_sglang.serve.app import create_app
            from lr_sglang.serve.monitoring import set_up_log
            from lr_sglang.serve.server import EndpointServer

            def ready() -> None:
                progress.finish()
                wanted = session.Wanted(sized, service.modes, service.concurrency)
                session.tell_faults(live.roles, plan, display.warn)
                session.tell_room(live.roles, [wanted], display.warn)
                _tell(sock, service, display)

            set_up_log(given["log_level"])
            _check_templates(live.roles)
            app = create_app(live.roles, service, allowed)
            server = EndpointServer(app, service, ready, live.fleet)
            # else old connections would prevent listen()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.run(sockets=[sock])
            if server.failed is not None:
                raise server.failed
            display.note("stopped")


def service_of(plan: Plan, given: Given) -> Service:
    """The endpoint's settings by the options.

    Raises:
        ConfigError: an invalid verifier or depth.
    """
    options = {name: given.get(name) for name in Service.model_fields}
    look = plan.deployment.lookahead
    verifiers = dict.fromkeys((look.verifier, "exact", *given["verifiers"]))
    for name in ("depth", "width"):
        most = given[f"max_{name}"]
        if most is not None and most < getattr(look, name):
            message = (
                f"serve.max_{name} {most} is less than lookahead.{name}, {getattr(look, name)}"
            )
            raise ConfigError(message, hint=f"give -o lookahead.{name}={most} as well")
    # its servers can do these modes as well; one that does not tell may have no token layer
    judge_needed = verifier_registry.needs_judge(look.verifier)
    able = possible(Able(plan.models, plan.layer(plan.modes[0]) or "", judge_needed))
    # auto is no slower than the target alone under load; it would replace a policy that was asked
    # for
    by_user = "policy" in asked_settings(given).get("lookahead", {})
    looks_ahead = MODES[plan.modes[0]].ahead and "auto" in able
    auto = ("auto",) if looks_ahead and not by_user else ()
    served = plan.modes if given["mode"] else tuple(dict.fromkeys((*auto, *plan.modes, *able)))
    asking = [name for name in served if MODES[name].judged]
    for name in given["verifiers"]:
        check_verifier([MODES[mode] for mode in served], name, "-o serve.verifiers:")
        if verifier_registry.needs_judge(name) and "judge" not in plan.models:
            hint = "give --judge MODEL|URL (--judge target shares the target)"
            raise ConfigError(f"-o serve.verifiers: {name} needs a judge model", hint=hint)
    if not asking:
        verifiers = {"exact": None}  # the judge is not started for them
    judged = "judge" in plan.models
    named = plan.deployment.serve
    settled = {
        "check_judge": True,
        # attaching says what is wrong where a target names none
        "model": named.model or served_name(plan.models["target"]) or "lookahead",
        "aliases": named.aliases,
        "modes": served,
        "verifiers": tuple(
            name for name in verifiers if not verifier_registry.needs_judge(name) or judged
        ),
        **{
            name: getattr(plan.deployment, name)
            for name in ("lookahead", "sampling", "limits", "judge_prompt")
        },
        "program": plan.program,
    }
    return Service().with_options(**options | settled)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to the address before the slow start of servers, so that no other process
    takes it meanwhile.

    Raises:
        LaunchError: the address cannot be listened on.
    """
    with ExitStack() as stack:
        try:
            family, *_, address = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM
            )[0]
            sock = stack.enter_context(socket.socket(family))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # its connections too: no step waits for an ACK
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A connection whose client takes nothing for so long is closed.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAF_SECONDS * 1000)
            sock.bind(address)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name such as 0..0.0
            why = f"cannot listen on {host}:{port}: {reason_of(error)}"
            hint = "give another --host, or another --port (0 is any that is free)"
            raise LaunchError(why, hint=hint) from error
        yield sock


def _sized(plan: Plan, service: Service) -> Plan:
    """A plan whose servers have room for the greatest depth and width, and for every verifier, of a
    request.
    """
    judged = next((name for name in service.verifiers if verifier_registry.needs_judge(name)), None)
    greatest = {"depth": service.deepest, "width": service.widest, "verifier": judged}
    return plan.with_settings(lookahead=plan.deployment.lookahead.with_options(**greatest))


def _allow_files() -> None:
    """Raises the soft limit of open files: every connection and request in flight has one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _check_templates(roles: Mapping[str, RuntimeBackend]) -> None:
    """Checks that conversations, which clients will send, can be rendered here.

    Raises:
        ConfigError: a runtime renders conversations and its model has no template for it.
    """
    from lr_sglang.engine.loop import call
    from lr_sglang.runtimes.attach import check_template

    for role in {"target", "draft"} & roles.keys():
        one = roles[role]
        if not one.tokenizer.template:
            call(check_template(one.transport, one.tokenizer, role, {}))


def _tell(sock: socket.socket, service: Service, display: Display) -> None:
    host = service.host.strip("[]")
    port = sock.getsockname()[1]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if display.as_json:
        streams.write_json({"url": url, "model": service.model})
    else:
        streams.write_output(f"{url}/v1  model: {service.model}")
        display.note(f"a page to watch it: {url}/    end: Ctrl-C")
