"""Running a SGLang program on the event loop: a coroutine as it is, a synchronous one in a thread of its own."""

from __future__ import annotations

import inspect
from typing import Any

from sglang.lang.interpreter import ProgramState
from sglang.lang.ir import SglFunction

from lr_sglang.engine.loop import in_thread


async def run_program(program: SglFunction, *args: Any, backend: Any, **more: Any) -> ProgramState:
    """Runs a program to its end, on the loop of its backend; returns its state.

    Args:
        backend: an ``AsyncBackend``.
        args, more: as for ``program.run``.

    Raises:
        whatever the program raises.
    """
    assert backend.loop is not None
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
