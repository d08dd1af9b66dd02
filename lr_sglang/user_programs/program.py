"""Runs a program for one answer: any ``@sgl.function`` that takes a conversation and leaves an
answer.

Its first argument after ``s`` is the conversation; an argument ``request`` is the
``AnswerRequest``.
The answer is the variable ``answer``, or else the text of the assistant's last turn.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.frontend.dsl import Conversation, Rendered, run_program
from lr_sglang.frontend.gen_options import UNLIMITED
from lr_sglang.sglang_api.interpreter import ProgramState, SglFunction
from lr_sglang.steps.token_text import TokenText
from lr_sglang.user_programs import program_registry
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend
from lr_sglang.user_programs.program_run import ProgramRun

_HINT = "docs/programs.md has an example"


class ProgramError(LookaheadError):
    """A program raised an error, or left no answer. ``detail`` has the traceback."""

    detail_name = "its traceback"


@dataclass(frozen=True)
class Program:
    """A program that answers conversations.

    Attributes:
        name: as given to ``--program``.
        takes_request: whether it has an argument ``request`` for the answer's ``AnswerRequest``.
        continues: whether its generations continue each other, in one answer, which then draws as
            the target does in a single generation: with one seed, and places from its first token.
    """

    name: str
    function: SglFunction
    takes_request: bool
    continues: bool = False

    @classmethod
    def load(cls, asked: str | SglFunction) -> Program:
        """Loads a program by its ``--program`` text (see ``program_registry``), or takes a
        function.

        Raises:
            ConfigError: there is no such program, it takes no such option, or it takes no
                conversation.
        """
        if isinstance(asked, SglFunction):
            return cls._of(asked.func.__name__, asked)
        if not isinstance(asked, str):
            hint = "with options: program=NAME.bind(KEY=VALUE)"
            raise ConfigError(
                f"program: expected a name or an @sgl.function, not {type(asked).__name__}",
                hint=hint,
            )
        chosen = program_registry.parse_program(asked)
        found = program_registry.load_program(chosen)
        if not isinstance(found, SglFunction):
            raise ConfigError(
                f"--program {asked}: it is no @sgl.function", hint=f"decorate it; {_HINT}"
            )
        program_registry.check_arguments(asked, found.arg_names[1:], chosen.options)
        return cls._of(asked, found.bind(**chosen.options))

    @classmethod
    def _of(cls, name: str, function: SglFunction) -> Program:
        names = function.arg_names
        needed = (
            set(names[1 : len(names) - len(function.arg_defaults)])
            - {"request"}
            - function.bind_arguments.keys()
        )
        if not names or names[0] == "request" or needed:
            why = (
                f"it also needs {', '.join(sorted(needed))}"
                if needed
                else "it takes no conversation"
            )
            raise ConfigError(
                f"program {name}: {why}", hint=f"(s, messages) or (s, messages, request); {_HINT}"
            )
        return cls(name, function, "request" in names)


async def perform(
    program: Program,
    messages: Conversation | Rendered | str,
    request: AnswerRequest,
    backend: LookaheadBackend,
) -> None:
    """Runs the program for one answer and completes ``request.trace``, also if the program fails.

    The request's sampling and token limits are the defaults of the program's generations.

    Args:
        messages: the conversation, or the prompt of a program that takes one.

    Raises:
        ProgramError: the program raised an error, or left no answer.
        LookaheadError: a runtime failed, or the request was stopped.
    """
    backend.bind(asyncio.get_running_loop())
    roles = backend.runtimes if backend.ahead else {"target": backend.target}
    run = ProgramRun(request, roles, program.continues)
    inside = backend.within(run)
    text: TokenText | None = None
    finish: str | None = None
    more: dict[str, Any] = {"request": run.own} if program.takes_request else {}
    asked = messages
    if not isinstance(messages, str) and not callable(messages):
        asked = [dict(message) for message in messages]
    try:
        most = request.limits.max_tokens or UNLIMITED
        drawn = {"max_new_tokens": most, **request.sampling.drawn()}
        state = await run_program(program.function, asked, backend=inside, **drawn, **more)
        answer = _answer(program.name, state)
        finish = _finish(state)
        if not answer.startswith(run.shown):
            raise ProgramError(
                f"program {program.name}: its answer is not what it has shown", hint=_HINT
            )
        text = answer
    except BaseException as error:
        if (
            isinstance(error, ConfigError)
            and error.hint.startswith("add [runtimes.")
            and not backend.ahead
        ):
            hint = "this mode has the target only; --mode lookahead has the other roles too"
            raise ConfigError(error.message, role=error.role, hint=hint) from error
        if isinstance(error, LookaheadError) or plugin_files.is_stop(error):
            raise
        if (failure := _behind(error, run.errors)) is not None:
            raise failure from error
        why = f"program {program.name}: {plugin_files.describe(error)}"
        raise ProgramError(
            why, hint=_HINT, detail="".join(traceback.format_exception(error))
        ) from error
    finally:
        await run.close()
        told = len(request.trace.steps)
        run.complete(text, finish if text is not None else "", backend.target)
        request.trace.program = {"name": program.name, **request.trace.program}
    if not program.takes_request and request.on_step:
        for step in request.trace.steps[told:]:  # which are known only when the program has ended
            request.on_step(step)


def _behind(error: BaseException, failures: Sequence[LookaheadError]) -> LookaheadError | None:
    """The failed generation that caused a program's error; None if the program had handled that
    failure.
    """
    chain = []
    one = error.__cause__ or error.__context__
    while one is not None:
        chain.append(one)
        one = one.__cause__ or one.__context__
    return next((failure for failure in failures if failure in chain or not failure.heard), None)


def _answer(name: str, state: ProgramState) -> TokenText:
    executor = state.stream_executor
    state.text()  # raises the named error if the state has failed
    if (error := executor.error()) is not None:
        raise (
            error
            if isinstance(error, LookaheadError)
            else ProgramError(f"program {name}: {error!r}", hint=_HINT)
        )
    if "answer" in executor.variables:
        found = executor.variables["answer"]
        if not isinstance(found, str):
            raise ProgramError(
                f"program {name}: its answer is no text but {type(found).__name__}", hint=_HINT
            )
        return TokenText.wrap(found)
    if executor.cur_role == "assistant":
        return TokenText.wrap(executor.text_[executor.cur_role_begin_pos :])
    said = executor.messages_[-1] if executor.messages_ else {}
    if said.get("role") != "assistant":
        raise ProgramError(
            f"program {name} leaves no answer", hint='generate "answer", or set s["answer"]'
        )
    return TokenText.wrap(said["content"])


def _finish(state: ProgramState) -> str | None:
    """The finish type of the generation called ``answer``, if there is one."""
    reason = (state.stream_executor.meta_info.get("answer") or {}).get("finish_reason")
    return None if reason is None else "length" if reason["type"] == "length" else "stop"
