"""Additions to SGLang's frontend language, and ``run_program``, which runs its programs on the
event loop.

Everything else is ``import sglang as sgl``.

branch = fork(s, "draft")               # a copy of the state, on another role's runtime
branch += step("step", max_tokens=100)  # generate to the blank line that ends a step
await sync(branch)                      # in a coroutine: waits until it is generated
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import sglang as sgl

from lr_sglang.engine.loop import in_thread
from lr_sglang.errors import ConfigError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.executor import sync
from lr_sglang.sglang_api.interpreter import ProgramState, SglFunction, SglGen
from lr_sglang.steps.step import DELIMITER, StepStop

__all__ = ["backend_of", "converse", "end", "fork", "on", "run_program", "step", "sync"]


def step(name: str = "step", max_tokens: int = 100, **sampling: Any) -> SglGen:
    """Generates one reasoning step: up to and including the blank line, at most ``max_tokens``
    tokens.

    The text keeps its token ids, so that appending it to another state of the same vocabulary is
    token-exact.
    """
    return sgl.gen(name, max_tokens=max_tokens, stop=StepStop(DELIMITER), **sampling)


def converse(s: ProgramState, messages: Sequence[Mapping[str, str]]) -> None:
    """Adds a conversation and opens the assistant's turn.

    Args:
        messages: each with ``role`` (system, user or assistant) and ``content``.

    Raises:
        ConfigError: another role.
    """
    turns = {"system": sgl.system, "user": sgl.user, "assistant": sgl.assistant}
    for message in messages:
        if message["role"] not in turns:
            raise ConfigError(
                f"no role is called {message['role']!r}", hint=f"one of {', '.join(turns)}"
            )
        s += turns[message["role"]](message["content"])
    s += sgl.assistant_begin()


def backend_of(s: ProgramState, role: str) -> RuntimeBackend:
    """The runtime that plays ``role`` in the deployment that ``s`` runs on.

    Raises:
        ConfigError: there is none.
    """
    backend = s.stream_executor.backend
    found: RuntimeBackend | None = getattr(backend, "roles", {}).get(role)
    if found is None:
        raise ConfigError(
            f"the deployment has no {role} runtime", hint=f"add [runtimes.{role}] to it"
        )
    return found


def on(s: ProgramState, role: str) -> ProgramState:
    """Moves a state to the runtime of ``role``, which makes its next generations."""
    s.stream_executor.backend = backend_of(s, role)
    return s


def fork(s: ProgramState, role: str) -> ProgramState:
    """One fork of ``s`` on the runtime of ``role``; RadixAttention shares the prefix with its
    siblings there.
    """
    return ProgramState(s.stream_executor.forked(backend_of(s, role)))


def end(s: ProgramState) -> None:
    """Ends a state: nothing more can be added. Its text stays, and it can still be forked."""
    s.stream_executor.end()


async def run_program(program: SglFunction, *args: Any, backend: Any, **more: Any) -> ProgramState:
    """Runs a program to its end on the running loop, a synchronous one in a new thread; returns its
    state.

    Binds the runtimes to the loop.

    Args:
        backend: an ``AsyncBackend``.
        args, more: as for ``program.run``.

    Raises:
        Any error that the program raises.
    """
    for one in (backend, *getattr(backend, "roles", {}).values()):
        one.bind(asyncio.get_running_loop())
    if inspect.iscoroutinefunction(program.func):
        state = program.run(
            *args, backend=backend, **more
        )  # makes the coroutine and does not run it yet
        try:
            await state.ret_value
        finally:
            state.stream_executor.end()
    else:
        state = await in_thread(lambda: program.run(*args, backend=backend, **more))
    await state.stream_executor.drained()
    return state
