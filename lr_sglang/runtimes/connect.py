"""Connects to runtimes that are ready: makes the backends that run programs on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lr_sglang.config import Deployment, Runtime
from lr_sglang.engine.client import Client
from lr_sglang.engine.loop import call
from lr_sglang.engine.probes import seed_fault
from lr_sglang.engine.router import RouterClient, reach
from lr_sglang.engine.server_facts import (
    ServerFacts,
    facts_of,
    honours_seeds,
    template_defaults,
)
from lr_sglang.engine.slots import Slots
from lr_sglang.engine.tokenizer import Tokenizer, load_tokenizer
from lr_sglang.errors import RuntimeDown, RuntimeRefused
from lr_sglang.runtimes import Fleet, launch
from lr_sglang.runtimes.attach import TEXT, prompt_doubts
from lr_sglang.runtimes.launching.fleet import Progress
from lr_sglang.runtimes.launching.server import tail_of

if TYPE_CHECKING:  # it imports SGLang, which takes seconds
    from lr_sglang.frontend.backend import RuntimeBackend

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


class Reached(NamedTuple):
    """A runtime that answers: its settings, its client, the ``/server_info`` of each of its
    servers, and its tokenizer.
    """

    runtime: Runtime
    client: Client
    infos: Sequence[Mapping[str, Any]]
    known: Tokenizer


def _connect(fleet: Fleet, roles: dict[str, RuntimeBackend]) -> None:
    from lr_sglang.frontend.backend import RuntimeBackend

    reached: dict[str, Reached] = {}
    for role, url in fleet.urls.items():
        runtime = fleet.deployment.runtime(role)
        assert runtime is not None
        client, infos = call(_asked(url, role, fleet.keys.get(role, "")))
        tokenizer = load_tokenizer(fleet.tokenizers[role], _template(infos))
        reached[role] = Reached(runtime, client, infos, tokenizer)
    shared: dict[str, Slots] = {}  # by URL: roles of one server share its slots
    for role, facts in call(_facts(fleet, reached)).items():
        runtime, client, _, known = reached[role]
        slots = shared.setdefault(fleet.urls[role], Slots(facts.room))
        backend = RuntimeBackend(role, client, known, facts, timeout=runtime.timeout, slots=slots)
        backend.roles = roles
        roles[role] = backend


async def _facts(fleet: Fleet, reached: Mapping[str, Reached]) -> dict[str, ServerFacts]:
    """What the servers of each role do. Those of target and draft that run already are asked
    whether they honour seeds, as their settings say; those that are started for this deployment
    have our plugin, and do.

    Raises:
        ConfigError: as ``check_tokens``.
    """
    try:
        doubts = {
            role: await prompt_doubts(one.client, one.known, role, template_defaults(one.infos))
            for role, one in reached.items()
        }
        asked = {
            fleet.urls[role]: one
            for role, one in reached.items()
            if role != "judge" and honours_seeds(one.infos) and fleet.server(role) is None
        }
        answers = await asyncio.gather(
            *(seed_fault(one.client, one.known.encode(TEXT)) for one in asked.values())
        )
    finally:  # answers may run on another loop
        for one in reached.values():
            await one.client.disconnect()
    faults = dict(zip(asked, answers, strict=True))
    return {
        role: facts_of(
            one.infos,
            one.known,
            context=one.runtime.context_length,
            routed=isinstance(one.client, RouterClient),
            seed_fault=faults.get(fleet.urls[role], ""),
            doubts=doubts[role],
        )
        for role, one in reached.items()
    }


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
