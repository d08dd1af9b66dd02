"""A state whose generation has failed: whoever reads it gets the named error, and nobody waits for ever."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from lr_sglang.errors import LookaheadError
from lr_sglang.sglang_api.interpreter import StreamExecutor


def _tell(error: LookaheadError) -> NoReturn:
    error.heard = True
    raise error


class _Known(dict[str, Any]):
    """The variables of a failed state: what was there stays, anything later raises the failure."""

    def __init__(self, known: dict[str, Any], error: LookaheadError) -> None:
        super().__init__(known)
        self.error = error

    def __missing__(self, key: str) -> NoReturn:
        _tell(self.error)

    def __setitem__(self, key: str, value: Any) -> None:
        self.pop(key, None)


def _guarded(name: str) -> property:
    """An attribute that only the state's own thread can still read: a reader may have waited while it failed."""

    def read(self: Failed) -> Any:
        if self.use_thread and threading.current_thread() is not self.worker:
            _tell(self.error_)
        return self.__dict__[name]

    def write(self: Failed, value: Any) -> None:
        self.__dict__[name] = value

    return property(read, write)


class Failed(StreamExecutor):
    """A state after a failure: what is added to it does nothing, and who reads or forks it gets the named error."""

    text_, messages_, arguments = map(_guarded, ("text_", "messages_", "arguments"))

    def _fail(self, *_: Any) -> NoReturn:
        _tell(self.error_)

    text = messages = fork = _fail

    def _execute(self, expression: Any) -> None:
        for event in [*self.variable_event.values(), *(self.stream_var_event or {}).values()]:
            event.set()
        call, self.call = getattr(self, "call", None), None
        if call is not None:
            call.end(self.error_)

    submit = _execute


def poison(s: StreamExecutor, error: LookaheadError) -> None:
    """Makes a failed state raise ``error`` wherever it is read.

    SGLang's worker thread dies of an exception, and reads after that can wait for ever. So it is not told: the thread
    lives on, later expressions do nothing, and the reader gets the named error.
    """
    known = {k: v for k, v in s.variables.items() if k not in s.variable_event or s.variable_event[k].is_set()}
    s.variables, s.error_ = _Known(known, error), error
    s.__class__ = Failed
