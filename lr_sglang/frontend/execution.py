"""Executes a state's expressions on the event loop, in order.

Text is appended at once. A ``gen`` or a ``select`` becomes a task of the loop, and later
expressions wait for it. After a failure no expression is executed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from lr_sglang.engine.loop import running_loop
from lr_sglang.engine.request import Request
from lr_sglang.errors import Cancelled, ConfigError
from lr_sglang.frontend.values import (
    FailedText,
    FailedVariables,
    Flag,
    SamplingParams,
    StreamedEvent,
    TextEvent,
)
from lr_sglang.sglang_api.interpreter import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    SglConcateAndAppend,
    SglExpr,
    SglExprList,
    SglGen,
    SglSamplingParams,
    SglSelect,
    StreamExecutor,
)
from lr_sglang.steps.token_text import TokenText

# SGLang's reader of a streamed variable checks whether it exists, then whether the stream has
# ended; a short program could begin and end between the two checks. So a stream is marked as ended
# this long after its last expression.
READER_SECONDS = 0.05


class AsyncBackend(Protocol):
    """The methods of a backend that an executor calls, besides those of SGLang's
    ``BaseBackend``.
    """

    loop: asyncio.AbstractEventLoop

    async def agenerate(self, s: Any, params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """Generates text after the state's; returns it and its meta information."""

    def astream(
        self, s: Any, params: SglSamplingParams
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yields the same in pieces as they are generated."""

    async def aselect(
        self, s: Any, choices: list[str], temperature: float, method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """Chooses the choice that is most likely after the state's text."""


class ForkHere(NamedTuple):
    """A queue entry of a state that was forked during a generation; the fork waits until it is
    executed.
    """

    fork: Execution
    reached: asyncio.Future[None]
    known: dict[str, Any]  # the fork's variables until then


class Execution(StreamExecutor):
    """One state of a program, on the event loop of its backend. Any thread can make one.

    Args:
        backend: an ``AsyncBackend``.
        arguments, default_sampling_para, chat_template, stream, num_api_spec_tokens, use_thread: as
        SGLang's.

    Attributes:
        request: the ``Request`` of the next ``gen``; None makes a new one.
        opened: ids of the rendered turns before the open one, by tokenizer; forks share it.
        opening: renders what is before the open turn, for a backend, in place of its turns; forks
            share it.

    Raises:
        ConfigError: ``num_api_spec_tokens`` is set.
    """

    def __init__(
        self,
        backend: Any,
        arguments: dict[str, Any],
        default_sampling_para: SglSamplingParams,
        chat_template: Any,
        stream: bool,
        num_api_spec_tokens: int | None = None,
        use_thread: bool = True,
    ) -> None:
        if num_api_spec_tokens is not None:
            raise ConfigError(
                "num_api_spec_tokens is for SGLang's backends of chat APIs only",
                hint="leave it out",
            )
        super().__init__(
            backend, arguments, default_sampling_para, chat_template, stream, None, use_thread=False
        )
        self.loop = backend.loop
        self._waiting: deque[SglExpr | ForkHere] = deque()
        self._task: asyncio.Task[None] | None = None
        self._ended = self._closing = False
        self._sent = self._received = (
            0  # numbers of expressions sent and received from other threads
        )
        self._on_done: list[Callable[[], None]] = []
        self.request: Request | None = None
        self.opened: dict[Any, tuple[Any, tuple[int, ...]]] = {}
        self.opening: Callable[[Any], TokenText] | None = None
        self.error_: BaseException | None = None
        if stream:
            self.stream_text_event = TextEvent()
        self.text_: str = ""
        self.variables: dict[str, Any] = {}

    # Adding and executing

    def submit(self, expr: SglExpr) -> None:
        """Adds an expression, from any thread."""
        if running_loop() is self.loop:
            if isinstance(expr, SglGen) and not self.stream:
                self.variable_event[expr.name] = (
                    Flag()
                )  # only coroutines read it; they wait with sync()
            else:
                self._init_var_event(expr)
            self._add(expr)
        else:
            self._init_var_event(expr)
            self._sent += 1
            self.loop.call_soon_threadsafe(self._receive, expr)

    def _init_var_event(self, expr: SglExpr) -> None:
        super()._init_var_event(expr)
        if self.stream:
            for name, news in self.stream_var_event.items():
                if not isinstance(self.variable_event[name], StreamedEvent):
                    self.variable_event[name] = StreamedEvent(news)

    def _receive(self, expr: SglExpr) -> None:
        self._received += 1
        self._add(expr)

    def _add(self, expr: SglExpr | ForkHere) -> None:
        self._waiting.append(expr)
        if self._task is None:
            self._drain()

    def _drain(self) -> None:
        """Executes waiting expressions up to the next one that becomes a task."""
        while self._waiting and self._task is None and self.error_ is None:
            try:
                self._begin(self._waiting.popleft())
            except Exception as error:  # noqa: BLE001 - raised when the state is read
                self._fail(error)
            if self.stream_text_event:
                self.stream_text_event.set()
        if self._waiting and self.error_ is not None:
            self._fail(self.error_)
        if self._task is None and self._closing:
            self._finish()

    def _begin(self, expr: SglExpr | ForkHere) -> None:
        if isinstance(expr, SglGen):
            self._start(self._generate(expr))
        elif isinstance(expr, SglExprList):
            self._waiting.extendleft(reversed(expr.expr_list))
        elif isinstance(expr, SglSelect):
            self._start(self._select(expr))
        elif isinstance(expr, SglConcateAndAppend):
            self._start(self._after([s.stream_executor for s in expr.states], expr))
        elif isinstance(expr, ForkHere):
            expr.fork.adopt(self, expr.known)
            expr.reached.set_result(None)
        else:
            self._execute(expr)

    def adopt(self, parent: Execution, known: dict[str, Any]) -> None:
        """Copies the parent's text and variables as they are at the fork, except variables that the
        fork has set.
        """

    def _start(self, work: Awaitable[None]) -> None:
        self._task = self.loop.create_task(self._work(work))

    async def _work(self, work: Awaitable[None]) -> None:
        error: BaseException | None = None
        try:
            await work
        except asyncio.CancelledError:
            error = Cancelled("cancelled")
        except (Exception, SystemExit, KeyboardInterrupt) as raised:  # noqa: BLE001 - raised when the state is read
            error = raised
        if isinstance(error, Cancelled):
            error.__traceback__ = None  # its frames refer to this state, which refers to the error
        self._arrived(error)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` on the loop when the running task has ended, before the next
        expression is executed.
        """
        self._on_done.append(callback)

    def _arrived(self, error: BaseException | None) -> None:
        self._task = None
        if error is not None:
            self._fail(error)
        if self.stream_text_event:
            self.stream_text_event.set()
        callbacks, self._on_done = self._on_done, []
        for callback in callbacks:
            callback()
        self._drain()

    async def _after(self, sources: list[Execution], expr: SglExpr) -> None:
        for source in sources:
            await source.drained()
        self._execute(expr)

    async def _generate(self, expr: SglGen) -> None:
        params, name = expr.sampling_params, expr.name
        if not isinstance(params, SamplingParams):
            params = self.resolve(params)
        if self.stream:
            await self._stream(name, params)
        else:
            text, meta = await self.backend.agenerate(self, params)
            self.text_ += text[0] if isinstance(text, list) else text
            self.variables[name], self.meta_info[name] = text, meta
        self.variable_event[name].set()

    def resolve(self, given: SglSamplingParams) -> SamplingParams:
        """The sampling parameters of a ``gen``: its own, and the program's defaults for
        the others.
        """
        made = object.__new__(SamplingParams)
        if self.chat_template.stop_str:
            made.__dict__ = vars(self._resolve_sampling_params(given))
        else:  # a shallow copy is enough, because their values are not changed
            changed = {name: value for name, value in vars(given).items() if value is not None}
            made.__dict__ = {**vars(self.default_sampling_para), **changed}
        return made

    async def _stream(self, name: str, params: SglSamplingParams) -> None:
        event = self.stream_var_event[name]
        self.variables[name] = ""
        async for text, meta in self.backend.astream(self, params):
            self.text_ += text
            self.variables[name] += text
            self.meta_info[name] = meta
            event.set()
            self.stream_text_event.set()
        self.variable_event[name].set()
        event.set()

    async def _select(self, expr: SglSelect) -> None:
        decided = await self.backend.aselect(
            self, expr.choices, expr.temperature, expr.choices_method
        )
        if expr.name is not None:
            self.variables[expr.name], self.meta_info[expr.name] = (
                decided.decision,
                decided.meta_info,
            )
            self.variable_event[expr.name].set()
            if self.stream_var_event:
                self.stream_var_event[expr.name].set()
        self.text_ += decided.decision

    def end(self) -> None:
        """Ends the state: no expression follows. May be called in any thread, and repeatedly."""
        if self.__dict__.get("_ended", True):
            return
        self._ended = True
        if (
            self._task is None and self._sent == self._received and not self.stream
        ):  # the usual case
            self._finish()
        elif running_loop() is self.loop:
            self._end()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(
                    self._end
                )  # after the expressions that this thread has added
        self.backend.end_program(self)

    def _end(self) -> None:
        self._closing = True
        if self._task is None:
            self._finish()

    def _finish(self) -> None:
        if self.stream:
            self.loop.call_later(READER_SECONDS, self._set_finished)
        self._finished = not self.stream

    def _set_finished(self) -> None:
        self._finished = True
        self.stream_text_event.set()

    def _fail(self, error: BaseException) -> None:
        """Makes later reads raise the error; keeps existing text and variables, drops waiting
        expressions.
        """
        if self.error_ is None:
            self.error_ = error
            begun = [
                name for name, event in list(self.variable_event.items()) if not event.wait(0)
            ]  # it may grow
            self.variables = FailedVariables(
                {k: v for k, v in list(self.variables.items()) if k not in begun}, error
            )
            if self.stream:
                self.text_ = FailedText(self.text_, error)
        for event in (*self.variable_event.values(), *(self.stream_var_event or {}).values()):
            event.set()
        for expr in self._waiting:
            if isinstance(expr, ForkHere):
                expr.reached.set_exception(error)
        self._waiting.clear()

    @property
    def is_finished(self) -> bool:
        """As SGLang's: whether a stream has ended and was read to its end. Raises the failure of a
        stream.
        """
        if self.stream and self.error_ is not None:
            raise self.error_
        return self._finished and not (self.stream and self.stream_text_event.unread)

    @is_finished.setter
    def is_finished(self, finished: bool) -> None:
        self._finished = finished

    async def drained(self) -> None:
        """Waits, on the loop, until all expressions are executed, or one has failed."""
        while self._task is not None:
            await asyncio.wait((self._task,))  # asyncio.wait does not cancel the task
