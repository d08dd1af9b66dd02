"""What we change in SGLang's frontend when it is imported (docs/structure.md says why, and what
breaks).

Programs on other backends are left alone.
"""

from __future__ import annotations

import inspect
from typing import Any

from lr_sglang.engine.loop import call, running_loop
from lr_sglang.frontend.executor import Executor
from lr_sglang.sglang_api.interpreter import (
    ProgramState,
    SglFunction,
    StreamExecutor,
    interpreter,
)

_run_internal = interpreter.run_internal


def install_changes() -> None:
    """Makes SGLang's ``run_program`` use our executor on our backends, and run coroutines to their
    end; idempotent.
    """
    StreamExecutor.__new__ = _new
    interpreter.run_internal = _run_to_its_end


def _new(cls: type, backend: Any = None, *_: Any, **__: Any) -> Any:
    """``StreamExecutor.__new__``: our executor for a backend of ours."""
    return object.__new__(
        Executor if cls is StreamExecutor and hasattr(backend, "agenerate") else cls
    )


def _run_to_its_end(
    state: ProgramState, program: SglFunction, args: Any, more: Any, sync: bool
) -> None:
    """SGLang's ``run_internal``, but runs a coroutine to its end, unless it is called on the
    coroutine's loop.
    """
    _run_internal(state, program, args, more, sync)
    executor = state.stream_executor
    if (
        inspect.iscoroutine(state.ret_value)
        and isinstance(executor, Executor)
        and running_loop() is not executor.loop
    ):
        state.ret_value = call(state.ret_value, executor.loop)
