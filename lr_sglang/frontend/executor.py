"""SGLang's executor on an event loop: a state has no thread, and a fork is a plain object.

Coroutines on the loop wait with ``await sync(s)``; a synchronous program runs in its own thread, in
which reading a state waits, as in SGLang. After a failure every later read raises the error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from lr_sglang.engine.loop import running_loop
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.execution import Execution, ForkHere
from lr_sglang.frontend.values import Flag, TextEvent
from lr_sglang.sglang_api.interpreter import ProgramState, SglRoleEnd


class NotReady(LookaheadError):
    """A coroutine read a variable or text that is being generated; waiting would block the loop
    that generates it.
    """


class Executor(Execution):
    """One state of a program, with SGLang's methods to read it. Arguments as for ``Execution``.

    Attributes:
        turns: the text of each closed turn; in SGLang's ``messages_`` it lacks leading white space.
    """

    turns: tuple[str, ...] = ()

    def _execute_role_end(self, expr: SglRoleEnd) -> None:
        self.turns = (
            *self.turns,
            str.__getitem__(self.text_, slice(self.cur_role_begin_pos, None)),
        )
        super()._execute_role_end(expr)

    def sync(self) -> None:
        """Waits, in a program's thread, until all expressions are executed; raises on the loop.

        Raises:
            NotReady: it was called on the loop during a generation.
        """
        if self._task is None and self._sent == self._received:
            return
        if running_loop() is not self.loop:
            asyncio.run_coroutine_threadsafe(self.drained(), self.loop).result()
        elif self._task is not None:
            raise NotReady(
                "the state is still being generated", hint="await lr.sync(s) before reading it"
            )

    def get_var(self, name: str) -> Any:
        event = self.variable_event.get(name)
        if event is not None and not event.wait(0):
            if running_loop() is self.loop and self.error_ is None:
                raise NotReady(
                    f"{name!r} is still being generated", hint="await lr.sync(s) before reading it"
                )
            if not event.wait():
                self.sync()
        elif event is None and name not in self.variables:
            self.sync()  # it may be a fork of a state that is generating
        if name not in self.variables:
            self._raise()
        return self.variables[name]

    def get_meta_info(self, name: str, timeout: float | None = None) -> Any:
        event = self.variable_event.get(name)
        if (
            event is not None
            and not event.wait(0)
            and running_loop() is self.loop
            and self.error_ is None
        ):
            raise NotReady(
                f"{name!r} is still being generated", hint="await lr.sync(s) before reading it"
            )
        if isinstance(event, Flag):
            self.sync()
        found = super().get_meta_info(name, timeout)
        if found is None and name not in self.variables:
            self._raise()
        return found

    def text(self) -> str:
        self._check()
        return str(self.text_)

    def messages(self) -> list[dict[str, Any]]:
        self._check()
        return list(self.messages_)

    def _check(self) -> None:
        self.sync()
        self._raise()

    def _raise(self) -> None:
        """Raises the failure of the state, if it has failed."""
        if self.error_ is not None:
            if isinstance(self.error_, LookaheadError):
                self.error_.heard = True
            raise self.error_

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> list[Executor]:
        """As SGLang's. On the loop, forks made during a generation continue from the
        text after it.
        """
        return [self.forked(self.backend) for _ in range(int(size))]

    def forked(self, backend: Any) -> Executor:
        """One fork, on this backend."""
        if running_loop() is not self.loop:
            self.sync()
        self._raise()
        made = self._copied(backend)
        if self._task is not None:
            reached = self.loop.create_future()
            made._start(reached)
            self._add(ForkHere(made, reached, dict(made.variables)))
        return made

    def _copied(self, backend: Any) -> Executor:
        made = object.__new__(type(self))
        made.__dict__ = {
            **self.__dict__,
            "backend": backend,
            "variables": dict(self.variables),
            "variable_event": {},
            "meta_info": {},
            "messages_": list(self.messages_),
            "images_": list(self.images_),
            "cur_images": [],
            "fork_start_text_pos": len(self.text_),
            "_finished": False,
            "_waiting": deque(),
            "_task": None,
            "_ended": False,
            "_closing": False,
            "_sent": 0,
            "_received": 0,
            "_on_done": [],
            "request": None,
        }
        if self.stream:
            made.stream_text_event, made.stream_var_event = TextEvent(), {}
        return made

    def adopt(self, parent: Any, known: dict[str, Any]) -> None:
        own = {
            name: value
            for name, value in self.variables.items()
            if known.get(name, known) is not value
        }
        self.variables, self.turns = parent.variables | own, parent.turns
        self.text_, self.messages_, self.fork_start_text_pos = (
            parent.text_,
            list(parent.messages_),
            len(parent.text_),
        )
        self.cur_role, self.cur_role_begin_pos = parent.cur_role, parent.cur_role_begin_pos


async def sync(*states: ProgramState) -> None:
    """Waits on the loop until all expressions of the states are executed or have failed; raises no
    failure.
    """
    for state in states:
        await state.stream_executor.drained()
