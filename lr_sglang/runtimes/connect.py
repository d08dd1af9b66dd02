"""Connects to runtimes that are ready: makes the backends that run programs on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, TemplateError, meta

from lr_sglang.config import Deployment
from lr_sglang.engine.client import Client
from lr_sglang.engine.fed import fed_layer
from lr_sglang.engine.loop import call
from lr_sglang.engine.pool import Pool
from lr_sglang.engine.probes import seed_fault
from lr_sglang.engine.router import RouterClient, reach
from lr_sglang.engine.tokenizer import Tokenizer, ends_of_server, load_tokenizer
from lr_sglang.engine.transport import Transport
from lr_sglang.errors import RuntimeDown, RuntimeRefused
from lr_sglang.runtimes import Fleet, launch
from lr_sglang.runtimes.attach import TEXT, note_prompts
from lr_sglang.runtimes.launching import probe
from lr_sglang.runtimes.launching.fleet import Progress
from lr_sglang.runtimes.launching.server import tail_of
from lr_sglang.sglang_api import draws, internal_state

if TYPE_CHECKING:  # it imports SGLang, which takes seconds
    from lr_sglang.frontend.backend import RuntimeBackend

DEFAULT_CONTEXT = 32768
# The arguments of chat templates that switch thinking on and off.
SWITCHES = frozenset(("enable_thinking", "thinking"))
DYING_SECONDS = 2.0  # between a broken connection and the end of the process that broke it


@contextmanager
def deployed(
    deployment: Deployment,
    logs: Path,
    progress: Progress | None = None,
    timeout: float = 600.0,
    ready: Callable[[Fleet], None] = lambda fleet: None,
) -> Iterator[dict[str, RuntimeBackend]]:
    """Starts a deployment, yields its backends by role, and finally stops everything.

    Args:
        ready: called when all servers answer, before SGLang's frontend is imported, which takes
            seconds.

    Raises:
        LookaheadError: as ``runtimes.launch``; after the death of a server with the end of its log.
    """
    with launch(deployment, logs, progress, timeout) as fleet:
        ready(fleet)
        with _logs_told(fleet), connected(fleet) as roles:
            yield roles


@contextmanager
def _logs_told(fleet: Fleet) -> Iterator[None]:
    """Adds the end of a server's log to an error that follows from the death of that server."""
    try:
        yield
    except RuntimeDown as error:
        server = fleet.server(error.role or "")
        deadline = time.monotonic() + DYING_SECONDS
        while server and server.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        if server is None or server.alive():
            raise
        raise RuntimeDown(
            f"its server ended with status {server.status}",
            role=error.role,
            hint=f"its log: {server.log}",
            detail=tail_of(server.log),
        ) from None


@contextmanager
def connected(fleet: Fleet) -> Iterator[dict[str, RuntimeBackend]]:
    """A backend for every role; each knows the others, so that a program can move a branch between
    them.

    Their connections are closed on leaving.

    Raises:
        LookaheadError: a runtime does not answer.
    """
    roles: dict[str, RuntimeBackend] = {}
    try:
        _connect(fleet, roles)
        yield roles
    finally:
        for backend in roles.values():
            backend.shutdown()


def _connect(fleet: Fleet, roles: dict[str, RuntimeBackend]) -> None:
    from lr_sglang.frontend.backend import RuntimeBackend

    pools: dict[str, Pool] = {}  # by URL: roles of one server share its slots
    for role, url in fleet.urls.items():
        runtime = fleet.deployment.runtime(role)
        assert runtime is not None
        transport, infos = call(_asked(url, role, fleet.keys.get(role, "")))
        known = load_tokenizer(fleet.tokenizers[role], _template(infos))
        backend = RuntimeBackend(role, transport, known, timeout=runtime.timeout)
        roles[role] = backend  # before a check that may fail
        backend.pool = pools.setdefault(url, backend.pool)
        _describe(backend, infos, runtime.context_length)
    for backend in roles.values():
        backend.roles = roles
    call(note_prompts(roles))
    call(_check_seeds(roles, fleet))


async def _check_seeds(roles: Mapping[str, RuntimeBackend], fleet: Fleet) -> None:
    """Asks the servers of target and draft that run already whether they honour seeds, as their
    settings say. Those that are started for this deployment have our plugin, and do.
    """
    asked = {
        fleet.urls[role]: backend
        for role, backend in roles.items()
        if role != "judge" and backend.seeded and fleet.server(role) is None
    }
    faults = await asyncio.gather(
        *(seed_fault(one.transport, one.tokenizer.encode(TEXT)) for one in asked.values())
    )
    for url, fault in zip(asked, faults, strict=True):
        for role in roles if fault else ():
            if fleet.urls[role] == url:
                roles[role].seed_fault, roles[role].seeded = fault, False
                roles[role].doubts.found["seeds"] = f"it ignores seeds: {fault}"


async def _asked(url: str, role: str, key: str) -> tuple[Client, Sequence[Mapping[str, Any]]]:
    """A client for a role's URL, and the ``/server_info`` of its server, or of each worker of a
    router; none of a proxy of another kind.
    """
    client = await reach(url, role, key)
    try:
        return client, await client.infos("/server_info", 30.0)
    except RuntimeRefused:
        return client, []
    finally:  # answers may run on another loop
        await client.disconnect()


def _template(infos: Sequence[Mapping[str, Any]]) -> str:
    """The chat template that servers were started with, if it is one of Jinja's in a file here."""
    file = Path(str(infos[0].get("chat_template") or "")) if infos else Path()
    try:
        # SGLang takes the line breaks at its ends off, too
        return file.read_text("utf-8").strip("\n") if file.suffix == ".jinja" else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _describe(
    backend: RuntimeBackend, infos: Sequence[Mapping[str, Any]], configured: int | None
) -> None:
    """Sets a backend's properties from its servers: their slots add up, since any of them may get a
    request.
    """
    backend.context = min(
        (_context(info, configured) for info in infos), default=configured or DEFAULT_CONTEXT
    )
    honoured = bool(infos) and all(_seeded(info) for info in infos)
    backend.seeded = honoured and not backend.seed_fault
    backend.relaxed = {name: nothing for info in infos for name, nothing in _relaxed(info).items()}
    on_cpus = all(info.get("device") == "cpu" for info in infos)
    numbered = all(probe.state(info).get(draws.SEEDS_FIELD) for info in infos)
    backend.places = "answer" if on_cpus or numbered else "prompt"
    ours = bool(infos) and all(probe.state(info).get(internal_state.CACHE_FIELD) for info in infos)
    backend.counts_written = on_cpus and ours
    # With these each event has the new tokens only; the older one may leave out some of them.
    backend.increments = any(info.get("incremental_streaming_output") for info in infos)
    old = any(info.get("stream_output") for info in infos)
    mixed = {bool(info.get("incremental_streaming_output")) for info in infos}
    backend.streams = len(mixed) == 1 and not old
    backend.repeatable = any(info.get("enable_deterministic_inference") for info in infos)
    slots, held = (_sum(map(of, infos)) for of in (probe.slots, probe.held))
    backend.set_capacity(slots, held)
    wanted = _sum(info.get("max_running_requests") for info in infos)
    if slots and wanted and slots < wanted:
        short = "--mem-fraction-static, and for a hybrid --max-mamba-cache-size, give it more"
        backend.doubts.note(
            "slots", f"it runs {slots} requests at a time of {wanted} that were asked for: {short}"
        )
    backend.token_layer = probe.token_layer(infos)
    backend.fed, fault = fed_layer([probe.state(info) for info in infos], backend.seeded)
    if fault:
        backend.doubts.note("fed", fault)
    parsers = {str(info.get("tool_call_parser") or "") for info in infos}
    backend.tool_call_parser = parsers.pop() if len(parsers) == 1 else ""
    parsed = bool(infos) and all(info.get("reasoning_parser") for info in infos)
    backend.forces_reasoning = parsed and _switches_thinking(backend.tokenizer)
    defaults = infos[0].get("default_chat_template_kwargs") if infos else None
    backend.template_defaults = defaults if isinstance(defaults, Mapping) else {}
    caches = {
        str(probe.state(info).get(internal_state.CACHE_FIELD) or "not told") for info in infos
    }
    backend.prefix_cache = ", ".join(sorted(caches))
    backend.infos = infos
    backend.doubts.little_reuse = _little_reuse(backend.transport, infos)
    for info in infos:
        backend.ends |= ends_of_server(info)


def _switches_thinking(known: Tokenizer) -> bool:
    """Whether a chat template names the marker that opens thinking, and has a switch for it."""
    marks = known.thinking
    if not marks.always or marks.opens not in known.template:
        return False
    with suppress(TemplateError):
        parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(known.template)
        return not SWITCHES.isdisjoint(meta.find_undeclared_variables(parsed))
    return False


def _little_reuse(transport: Transport, infos: Sequence[Mapping[str, Any]]) -> str:
    """Why a runtime may compute prefixes again, with what to do; empty if nothing says so."""
    if any(info.get("disable_radix_cache") for info in infos):
        return "its prefix cache is off: start it without --disable-radix-cache"
    if isinstance(transport, RouterClient):
        return (
            "its router may spread the branches of an answer: --policy manual keeps them together"
        )
    if any(info.get("uses_mamba_radix_cache") for info in infos):
        return (
            "its model keeps states of some places of a prompt only (a hybrid): "
            "docs/hybrids.md has its flags"
        )
    page = max((int(info.get("page_size") or 1) for info in infos), default=1)
    return f"its cache has pages of {page} tokens: --page-size 1 shares more" if page > 1 else ""


def _sum(each: Iterable[int | None]) -> int | None:
    """The sum over all servers; None if one of them reports no value, or if there are no
    servers.
    """
    known = list(each)
    return None if not known or None in known else sum(filter(None, known))


def _context(info: Mapping[str, Any], configured: int | None) -> int:
    """The longest prompt and answer in tokens: the model's context, or the runtime's memory if that
    is less.
    """
    known = [
        n for n in (configured, info.get("context_length"), probe.held(info)) if isinstance(n, int)
    ]
    longest = info.get("max_req_input_len")
    if isinstance(longest, int):
        known.append(longest)
    return min(known, default=DEFAULT_CONTEXT)


def _relaxed(info: Mapping[str, Any]) -> Mapping[str, float]:
    """As ``RuntimeBackend.relaxed``: on a GPU with a token layer; our plugin on a CPU verifies each
    token with all that is before it.
    """
    if info.get("device") == "cpu" or not info.get("speculative_algorithm"):
        return {}
    seeds = probe.state(info).get(draws.SEEDS_FIELD)
    return draws.RELAXED if seeds else draws.RELAXED | draws.LEFT_OUT


def _seeded(info: Mapping[str, Any]) -> bool:
    """Whether seeds are honoured: on a CPU, and on a GPU by our plugin where it is turned on; else
    only with deterministic inference and no token layer.
    """
    if info.get("device") == "cpu" or probe.state(info).get(draws.SEEDS_FIELD):
        return True
    return bool(info.get("enable_deterministic_inference")) and not info.get(
        "speculative_algorithm"
    )
