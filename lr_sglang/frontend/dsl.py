"""Additions to SGLang's frontend language, and ``run_program``, which runs its programs on the
event loop.

Everything else is ``import sglang as sgl``.

branch = fork(s, "draft")               # a copy of the state, on another role's runtime
branch += step("step", max_tokens=100)  # generate to the blank line that ends a step
await sync(branch)                      # in a coroutine: waits until it is generated
asked = weigh(s, branch["step"])        # how likely is this text on the target, after s?
confidence(asked)                       # from 0 to 1; also of what was generated
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sglang as sgl

from lr_sglang.engine.loop import call, in_thread
from lr_sglang.engine.tokenizer import resolve
from lr_sglang.errors import BadReply, ConfigError, PromptTooLong
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.executor import Rendered, sync
from lr_sglang.sglang_api.interpreter import ProgramState, SglFunction, SglGen
from lr_sglang.steps.step import DELIMITER, StepStop
from lr_sglang.steps.token_text import TokenText

__all__ = [
    "Rendered",
    "backend_of",
    "confidence",
    "converse",
    "end",
    "entropy",
    "fork",
    "on",
    "reward",
    "run_program",
    "step",
    "sync",
    "weigh",
]


def step(name: str = "step", max_tokens: int = 100, **sampling: Any) -> SglGen:
    """Generates one reasoning step: up to and including the blank line, at most ``max_tokens``
    tokens.

    The text keeps its token ids, so that appending it to another state of the same vocabulary is
    token-exact.
    """
    return sgl.gen(name, max_tokens=max_tokens, stop=StepStop(DELIMITER), **sampling)


Conversation = Sequence[Mapping[str, str]]


def converse(s: ProgramState, messages: Conversation | Rendered) -> None:
    """Adds a conversation and opens the assistant's turn.

    Args:
        messages: each with ``role`` (system, user or assistant) and ``content``; or the whole
            prompt.

    Raises:
        ConfigError: another role.
    """
    if callable(messages):
        s.stream_executor.opening = messages
        messages = ()
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


def weigh(s: ProgramState, text: str, role: str = "target") -> ProgramState:
    """Asks a role how likely a text is after ``s``: one prefill of the text, nothing generated.
    ``confidence`` reads the answer.
    """
    state = fork(s, role)
    tokens = len(resolve(TokenText.wrap(text), state.stream_executor.backend.tokenizer))
    state += text
    state += sgl.gen(
        "weight", max_tokens=0, temperature=0.0, return_logprob=True, logprob_start_len=-tokens
    )
    end(state)  # takes effect after the reply
    return state


def confidence(s: ProgramState, name: str = "weight") -> float:
    """The geometric mean of the probabilities of a text's tokens, from 0 to 1.

    Args:
        s: a state from ``weigh``, or one that has generated ``name`` with ``return_logprob=True``,
            whose probabilities are those at the temperature of the generation.

    Returns:
        0 for an empty text, or one that was too long to be weighed.

    Raises:
        BadReply: the runtime gave no log-probabilities.
    """
    try:
        meta = _log_probabilities(s, name)
    except PromptTooLong:
        return 0.0
    written = meta["completion_tokens"]  # none where a text was weighed
    rows = meta["output_token_logprobs"][:written] or meta.get("input_token_logprobs") or ()
    logs = [row[0] for row in rows if row[0] is not None]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 0.0


def entropy(s: ProgramState, name: str) -> float:
    """The entropy in nats of the first token of a generation that was made with
    ``return_logprob=True, top_logprobs_num=N``; tokens beyond the N likeliest count as one.

    Raises:
        BadReply: the runtime gave no log-probabilities.
    """
    (first, *_) = _log_probabilities(s, name).get("output_top_logprobs") or [()]
    shares = [math.exp(row[0]) for row in first]
    rest = max(0.0, 1.0 - math.fsum(shares))
    return -math.fsum(p * math.log(p) for p in (*shares, rest) if p > 0)


def reward(s: ProgramState, role: str = "judge") -> float:
    """The score that a reward model, on the runtime of ``role``, gives a state's conversation (by
    SGLang's ``/classify``). For programs that are no coroutines.

    Raises:
        BadReply: the runtime is no reward model of one score.
    """
    executor = fork(s, role).stream_executor
    backend = executor.backend
    with backend.naming:
        body = {"input_ids": backend.prompt_ids(executor)}
        reply = call(backend.transport.post("/classify", body, backend.timeout), executor.loop)
        (score,) = reply["embedding"]
    return float(score)


def _log_probabilities(s: ProgramState, name: str) -> Mapping[str, Any]:
    """The meta information of a generation, which has log-probabilities."""
    s[name]  # raises the named error if it has failed
    found: Mapping[str, Any] = s.get_meta_info(name)
    if "output_token_logprobs" not in found:
        raise BadReply(
            f"{name!r} has no log-probabilities", hint="generate it with return_logprob=True"
        )
    return found


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
        # makes the coroutine and does not run it yet
        state = program.run(*args, backend=backend, **more)
        try:
            await state.ret_value
        finally:
            state.stream_executor.end()
    else:
        state = await in_thread(lambda: program.run(*args, backend=backend, **more))
    await state.stream_executor.drained()
    return state
