"""SGLang's executor on an event loop: a state has no thread, and a fork is a plain object.

Expressions are executed in order. Text is appended at once; a ``gen`` or a ``select`` becomes a
task of the loop, and later expressions wait for it. Coroutines on the loop wait with
``await sync(s)``; a synchronous program runs in its own thread, in which reading a state waits, as
in SGLang. After a failure no expression is executed, and every later read raises the error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Protocol

from lr_sglang.engine.loop import running_loop
from lr_sglang.errors import Cancelled, ConfigError, LookaheadError
from lr_sglang.sglang_api.interpreter import (
    ProgramState,
    SglConcateAndAppend,
    SglExpr,
    SglExprList,
    SglGen,
    SglRoleEnd,
    SglSamplingParams,
    SglSelect,
    SglSeparateReasoning,
    StreamExecutor,
)
from lr_sglang.steps.branch import Request
from lr_sglang.steps.step import StepStop
from lr_sglang.steps.token_text import TokenText


def checked_stops(stop: Any) -> tuple[str, ...]:
    """The stop strings of a ``gen``; raises ``ConfigError`` for one that is no text, or empty."""
    stops = tuple(stop) if isinstance(stop, list | tuple) else (stop,)
    if stop is not None and not all(isinstance(one, str) and one for one in stops):
        raise ConfigError(f"gen(stop={stop!r}): a stop string is a text that is not empty")
    return () if stop is None else stops


class SamplingParams(SglSamplingParams):
    """The sampling parameters of a ``gen``.

    Attributes:
        more: of SGLang's, those for which ``gen`` has no option.
    """

    more: Mapping[str, Any] = {}

    def check(self) -> None:
        """Raises ``ConfigError`` for an option that has no effect, or that no server takes."""
        if self.n != 1:
            hint = f"s.fork({self.n}), and a gen in each of the forks"
            raise ConfigError(f"gen(n={self.n}): a gen writes one text", hint=hint)
        checked_stops(self.stop)
        for name in ("top_logprobs_num", "return_text_in_logprobs", "logprob_start_len"):
            if getattr(self, name) is not None and not self.return_logprob:
                hint = "return_logprob=True as well"
                raise ConfigError(f"gen({name}=...): no log-probabilities are asked for", hint=hint)

    @cached_property
    def sent(self) -> dict[str, Any]:
        """The parameters of /generate, without empty ones; cached, so change none afterwards."""
        sent = {
            **self.to_srt_kwargs(),
            "no_stop_trim": isinstance(self.stop, StepStop),
            **self.more,
        }
        return {key: value for key, value in sent.items() if value or value == 0}


class Rendered(Protocol):
    """A whole prompt, the beginning of the assistant's turn included.

    Attributes:
        prefix: the end of it, which the client has written in that turn.
    """

    prefix: str

    def __call__(self, backend: Any) -> TokenText:
        """The prompt as a runtime renders it."""


class NotReady(LookaheadError):
    """A coroutine read or forked a state that is being generated; waiting would block the loop that
    generates it.
    """


class Executor(StreamExecutor):
    """One state of a program, on the event loop of its backend. Any thread can make one.

    Args:
        backend: one of SGLang's with a ``loop``, coroutines ``agenerate(state, params)`` (text
            and its meta information) and ``aselect`` in place of ``generate`` and ``select``, and
            ``opened_thought(state)``.
        arguments, default_sampling_para, chat_template, stream, num_api_spec_tokens, use_thread: as
        SGLang's.

    Attributes:
        request: the ``Request`` of the next ``gen``; None makes a new one.
        opened: ids of the rendered turns before the open one, by tokenizer; forks share it.
        opening: renders what is before the open turn, for a backend, in place of its turns; forks
            share it.
        turns: the text of each closed turn; in SGLang's ``messages_`` it lacks leading white space.

    Raises:
        ConfigError: ``stream`` or ``num_api_spec_tokens`` is set.
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
        if stream:
            raise ConfigError(
                "stream=True is for SGLang's own backends",
                hint="lr.stream(question) gives each step as it is kept; in a program, "
                "lr.lookahead(..., show=True)",
            )
        super().__init__(
            backend, arguments, default_sampling_para, chat_template, False, None, use_thread=False
        )
        self.loop = backend.loop
        self._waiting: deque[SglExpr] = deque()
        self._task: asyncio.Task[None] | None = None
        self._sent = self._received = 0  # expressions sent and received from other threads
        self._idle = True  # all that were received are executed
        self._on_done: list[Callable[[], None]] = []
        self.request: Request | None = None
        self.opened: dict[Any, tuple[Any, tuple[int, ...]]] = {}
        self.opening: Rendered | None = None
        self.turns: tuple[str, ...] = ()
        self.error_: BaseException | None = None
        self.text_: str = ""
        self.variables: dict[str, Any] = {}

    # Adding and executing

    def submit(self, expr: SglExpr) -> None:
        """Adds an expression, from any thread."""
        self._init_var_event(expr)
        if running_loop() is self.loop:
            self._add(expr)
        else:
            self._sent += 1
            self.loop.call_soon_threadsafe(self._receive, expr)

    def _receive(self, expr: SglExpr) -> None:
        self._add(expr)
        self._received += 1  # last: another thread reads it before ``_idle``

    def _add(self, expr: SglExpr) -> None:
        self._idle = False
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
        if self._waiting and self.error_ is not None:
            self._fail(self.error_)
        self._idle = self._task is None

    def _begin(self, expr: SglExpr) -> None:
        if isinstance(expr, SglGen):
            self._start(self._generate(expr))
        elif isinstance(expr, SglExprList):
            self._waiting.extendleft(reversed(expr.expr_list))
        elif isinstance(expr, SglSelect):
            self._start(self._select(expr))
        elif isinstance(expr, SglSeparateReasoning):
            self._start(self._separate(expr))
        elif isinstance(expr, SglConcateAndAppend):
            self._start(self._after([s.stream_executor for s in expr.states], expr))
        else:
            self._execute(expr)

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
        callbacks = self._on_done
        self._on_done = []
        for callback in callbacks:
            callback()
        self._drain()

    async def _after(self, sources: list[Executor], expr: SglExpr) -> None:
        for source in sources:
            await source.drained()
        self._execute(expr)

    async def _generate(self, expr: SglGen) -> None:
        params = expr.sampling_params
        name = expr.name
        if not isinstance(params, SamplingParams):
            params = self.resolve(params)
        text, meta = await self.backend.agenerate(self, params)
        self.text_ += text
        self.variables[name] = text
        self.meta_info[name] = meta
        self._let_read(expr)

    def _let_read(self, expr: SglGen | SglSelect) -> None:
        """Lets an expression's variable be read, unless its reasoning is still to be parted."""
        waiting = [one.expr for one in self._waiting if isinstance(one, SglSeparateReasoning)]
        if not any(_has(one, expr) for one in waiting):
            self.variable_event[expr.name].set()

    async def _separate(self, expr: SglSeparateReasoning) -> None:
        # SGLang imports it when it parts the first reasoning, which takes seconds.
        await asyncio.to_thread(import_module, "sglang.srt.parser.reasoning_parser")
        self._execute(expr)

    def resolve(self, given: SglSamplingParams) -> SamplingParams:
        """The sampling parameters of a ``gen``: its own, and the program's defaults for
        the others.

        Raises:
            ConfigError: an option that would have no effect.
        """
        made = object.__new__(SamplingParams)
        if self.chat_template.stop_str:
            made.__dict__ = vars(self._resolve_sampling_params(given))
        else:  # a shallow copy is enough, because their values are not changed
            changed = {name: value for name, value in vars(given).items() if value is not None}
            made.__dict__ = {**vars(self.default_sampling_para), **changed}
        made.check()
        return made

    async def _select(self, expr: SglSelect) -> None:
        decided = await self.backend.aselect(
            self, expr.choices, expr.temperature, expr.choices_method
        )
        if expr.name is not None:
            self.variables[expr.name] = decided.decision
            self.meta_info[expr.name] = decided.meta_info
            self._let_read(expr)
        self.text_ += decided.decision

    def _execute_role_end(self, expr: SglRoleEnd) -> None:
        said = str.__getitem__(self.text_, slice(self.cur_role_begin_pos, None))
        self.turns = (*self.turns, said)
        super()._execute_role_end(expr)

    def _execute_separate_reasoning(self, expr: SglSeparateReasoning) -> None:
        """As SGLang's; and where the chat template has opened the thinking, the text of the turn
        begins within it: SGLang's parsers look for the marker in the text.
        """
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        other = expr.expr
        if isinstance(other, SglExprList):
            for one in other.expr_list:
                self._execute_separate_reasoning(SglSeparateReasoning(expr.model_type, one))
        if not isinstance(other, SglGen | SglSelect):
            return
        text = str(self.variables[other.name])
        turn = str.__getitem__(self.text_, slice(self.cur_role_begin_pos, None))
        marker = self.backend.opened_thought(self) if turn.startswith(text) else ""
        marker = "" if text.lstrip().startswith(marker) else marker
        thought, said = ReasoningParser(expr.model_type).parse_non_stream(marker + text)
        said = text if said == marker + text else said  # a parser of other markers
        apart = expr.process_name_for_reasoning(other.name)
        self.variables |= {other.name: said, apart: thought}
        self.text_ = self.text_[: self.cur_role_begin_pos] + (said or "")
        for name in (other.name, apart):
            self.variable_event[name].set()

    def end(self) -> None:
        """Ends the state: no expression follows. May be called in any thread, and repeatedly."""
        if not self.__dict__.get("is_finished", True):  # True if it could not be made
            self.is_finished = True
            self.backend.end_program(self)

    def _fail(self, error: BaseException) -> None:
        """Makes later reads raise the error; keeps existing text and variables, drops waiting
        expressions.
        """
        if self.error_ is None:
            self.error_ = error
            for name, event in list(self.variable_event.items()):  # it may grow
                if not event.is_set():
                    self.variables.pop(name, None)
        for event in self.variable_event.values():
            event.set()
        self._waiting.clear()

    async def drained(self) -> None:
        """Waits, on the loop, until all expressions are executed, or one has failed."""
        while self._task is not None:
            await asyncio.wait((self._task,))  # asyncio.wait does not cancel the task

    # Reading

    def sync(self) -> None:
        """Waits, in a program's thread, until all expressions are executed; raises on the loop.

        Raises:
            NotReady: it was called on the loop during a generation.
        """
        if self._sent == self._received and self._idle:
            return
        if running_loop() is not self.loop:
            asyncio.run_coroutine_threadsafe(self.drained(), self.loop).result()
        elif self._task is not None:
            raise _not_ready("the state")

    def get_var(self, name: str) -> Any:
        self._need(name)
        if name not in self.variables:
            self._raise()
        return self.variables[name]

    def get_meta_info(self, name: str, timeout: float | None = None) -> Any:
        self._need(name, timeout)
        if name not in self.meta_info and name not in self.variables:
            self._raise()
        return self.meta_info.get(name)

    def _need(self, name: str, timeout: float | None = None) -> None:
        """Waits for a variable in a program's thread.

        Raises:
            NotReady: it was called on the loop. TimeoutError: it takes longer.
        """
        event = self.variable_event.get(name)
        if event is None or event.is_set():
            return
        if running_loop() is self.loop:
            raise _not_ready(repr(name))
        if not event.wait(timeout):
            raise TimeoutError(f"{name!r} is not generated after {timeout} s")

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

    # Forks

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> list[Executor]:
        """As SGLang's."""
        return [self.forked(self.backend) for _ in range(int(size))]

    def forked(self, backend: Any) -> Executor:
        """One fork, on this backend. Waits in a program's thread; on the loop it raises while the
        state generates.

        Raises:
            NotReady: as ``sync``.
        """
        self._check()
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
            "is_finished": False,
            "_waiting": deque(),
            "_task": None,
            "_sent": 0,
            "_received": 0,
            "_idle": True,
            "_on_done": [],
            "request": None,
        }
        return made


def _not_ready(what: str) -> NotReady:
    return NotReady(f"{what} is still being generated", hint="await lr.sync(s) before that")


async def sync(*states: ProgramState) -> None:
    """Waits on the loop until all expressions of the states are executed or have failed; raises no
    failure.
    """
    for state in states:
        await state.stream_executor.drained()


def _has(expr: SglExpr, leaf: SglExpr) -> bool:
    """Whether an expression is ``leaf``, or a list that has it."""
    return expr is leaf or (
        isinstance(expr, SglExprList) and any(_has(one, leaf) for one in expr.expr_list)
    )
