"""What lookahead reasoning adds to SGLang's frontend language; everything else is ``import sglang as sgl``.

branch = fork(s, "draft")              # a copy of the state, on another role's runtime
watch(branch, call := Call(done=...))  # a call can be waited for, and cancelled on the server
branch += step("step", max_tokens=100) # generate to the blank line that ends a step
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import sglang as sgl

from lr_sglang.backend import RuntimeBackend, StepStop
from lr_sglang.call import Call
from lr_sglang.errors import ConfigError
from lr_sglang.sglang_api.interpreter import ProgramState, SglGen, SglSamplingParams, StreamExecutor
from lr_sglang.steps import DELIMITER
from lr_sglang.tokens import TokenText
from lr_sglang.tree import Branch, Pair, Verdict


def step(name: str = "step", max_tokens: int = 100, **sampling: Any) -> SglGen:
    """Generates one reasoning step: up to and including the blank line, at most ``max_tokens`` tokens.

    The text keeps its token ids, so that appending it to another state of the same vocabulary is token-exact.
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
            raise ConfigError(f"no role is called {message['role']!r}", hint=f"one of {', '.join(turns)}")
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
        raise ConfigError(f"the deployment has no {role} runtime", hint=f"add [runtimes.{role}] to it")
    return found


class _Defaults(SglSamplingParams):
    """Sampling parameters that are quick to copy: SGLang copies a program's deeply at every ``gen``."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Defaults:
        made = object.__new__(_Defaults)
        made.__dict__ = {name: value[:] if type(value) is list else value for name, value in vars(self).items()}
        return made


def light(s: ProgramState) -> ProgramState:
    """Makes ``s``, and what is forked from it, quicker at ``gen``."""
    defaults = s.stream_executor.default_sampling_para
    if type(defaults) is SglSamplingParams:
        s.stream_executor.default_sampling_para = _Defaults(**vars(defaults))
    return s


def on(s: ProgramState, role: str) -> ProgramState:
    """Moves a state to another role's runtime: what it generates next is generated there."""
    s.stream_executor.backend = backend_of(s, role)
    return s


def fork(s: ProgramState, role: str) -> ProgramState:
    """One fork of ``s`` on the runtime of ``role``; RadixAttention shares the prefix with its siblings there."""
    return on(s.fork(1)[0], role)


def watch(s: ProgramState, call: Call) -> ProgramState:
    """Ties what ``s`` generates next to ``call``: its seed and priority are sent, its end and cancelling are seen."""
    s.stream_executor.call = call
    return light(s)


def after(s: ProgramState, tokens: TokenText) -> ProgramState:
    """The state that says ``tokens`` after all that ``s`` says. It has no thread: it can be read and forked."""
    still = object.__new__(StreamExecutor)
    still.__dict__ = {**vars(s.stream_executor), "text_": s.text() + tokens, "use_thread": False}
    for running in ("worker", "queue"):
        still.__dict__.pop(running, None)
    return ProgramState(still)


def end(s: ProgramState) -> None:
    """Lets a state's thread go. Its text stays, and it can still be forked."""
    s.stream_executor.end()


class Inbox:
    """Where finished branches and verdicts arrive, whichever comes first."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: Any) -> None:
        """Called from any thread."""
        self._arrived.put(item)

    def empty(self) -> bool:
        """Whether nothing has arrived."""
        return self._arrived.empty()

    def first_done(self, timeout: float | None = None) -> Any:
        """Waits for the next arrival.

        Raises:
            queue.Empty: nothing came in ``timeout`` seconds.
        """
        return self._arrived.get(timeout=timeout)


@dataclass(eq=False)
class Inquiry:
    """One pair of versions put to a verifier.

    Attributes:
        reply: takes the verdict, once, from any thread.
        begin: called by a verifier that asks a runtime, with who hears the result; the call it returns is cancelled
            when nobody needs the verdict. Only in the program's thread: ``verify`` runs there.
        later: called from any thread; what it is given runs soon in the program's thread, where it may begin another
            call, and returns as ``verify`` does.
        state: the program after the prefix that both versions follow; to be forked, not to be added to.
        branches: the requests that were begun, in order.
    """

    pair: Pair
    reply: Callable[[Verdict], None]
    begin: Callable[[Callable[[Any], None]], Call]
    later: Callable[[Callable[[], Verdict | None]], None]
    state: ProgramState
    branches: list[Branch] = field(default_factory=list)


class Verifier(Protocol):
    """Decides whether two versions of a step agree."""

    name: str

    def verify(self, inquiry: Inquiry) -> Verdict | None:
        """The verdict, if it is clear at once; else None, and ``inquiry.reply`` gets it later. Must not block."""
