"""Running a SGLang program on the event loop: a coroutine as it is, a synchronous one in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from lr_sglang.engine.loop import call, in_thread, running_loop
from lr_sglang.frontend.executor import Executor
from lr_sglang.sglang_api.interpreter import ProgramState, SglFunction, interpreter


async def run_program(program: SglFunction, *args: Any, backend: Any, **more: Any) -> ProgramState:
    """Runs a program to its end on the running loop, which its runtimes are bound to; returns its state.

    Args:
        backend: an ``AsyncBackend``.
        args, more: as for ``program.run``.

    Raises:
        Any error that the program raises.
    """
    for one in (backend, *getattr(backend, "roles", {}).values()):
        one.bind(asyncio.get_running_loop())
    if inspect.iscoroutinefunction(program.func):
        state = program.run(*args, backend=backend, **more)  # begins it: its first line has not run yet
        try:
            await state.ret_value
        finally:
            state.stream_executor.end()
    else:
        state = await in_thread(lambda: program.run(*args, backend=backend, **more))
    await state.stream_executor.drained()
    return state


_run_internal = interpreter.run_internal


def _run_to_its_end(state: ProgramState, program: SglFunction, args: Any, more: Any, sync: bool) -> None:
    """SGLang's ``run_internal``, which would only begin a coroutine: ``program.run`` and ``run_batch`` wait for it,
    unless they are called on its own loop."""
    _run_internal(state, program, args, more, sync)
    executor = state.stream_executor
    if inspect.iscoroutine(state.ret_value) and isinstance(executor, Executor) and running_loop() is not executor.loop:
        state.ret_value = call(state.ret_value, executor.loop)


interpreter.run_internal = _run_to_its_end
