"""The SGLang program that answers one request: ours, or the operator's own (``--program``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sglang as sgl

from lr_sglang.algorithm.answer import Answer
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.lookahead import write_alone, write_answer
from lr_sglang.serve.errors import Refusal
from lr_sglang.serve.request_options import RequestOptions
from lr_sglang.sglang_api.interpreter import ProgramState, SglFunction
from lr_sglang.steps.token_text import TokenText
from lr_sglang.user_programs.lookahead_backend import backends
from lr_sglang.user_programs.program import Program, perform
from lr_sglang.verifiers.requests import RequestMaker

# Tokens of one streamed generation: SGLang sends all of its tokens so far with each event.
STREAMED = 2048


@sgl.function
async def answer_request(
    s: ProgramState,
    prompt: Callable[[RuntimeBackend], TokenText],
    job: AnswerRequest,
    ahead: bool,
) -> None:
    """Goes on with a prompt, which each runtime has rendered for itself; with lookahead or by plain
    decoding.
    """
    s.stream_executor.opening = prompt
    s += sgl.assistant_begin()
    async with Answer(s, job) as answer:
        if ahead:
            await write_answer(answer)
        while not answer.ended:
            await write_alone(answer, min(answer.tree.room(answer.tree.root), STREAMED))


def for_program(options: RequestOptions) -> RequestOptions:
    """The options of an answer that the operator's program writes, which is told a conversation of
    texts and nothing of how to render it.

    Raises:
        Refusal: the request asks for more.
    """
    wrong = ["prompt"] * (not options.chat) + ["continue_final_message"] * bool(options.prefix)
    wrong += ["chat_template_kwargs"] * bool(options.arguments) + options.constraints.names()
    turns = []
    for turn in options.asked if isinstance(options.asked, list) else []:
        role = "system" if turn["role"] == "developer" else turn["role"]
        wrong += ["messages"] * (role in ("tool", "function") or "tool_calls" in turn)
        content = turn["content"]
        if isinstance(content, list):
            content = " ".join(part["text"] for part in content)
        turns.append({"role": role, "content": content})
    if wrong:
        raise Refusal(400, f"{wrong[0]}: a program answers conversations of texts", param=wrong[0])
    return replace(options, asked=turns)


class ServedProgram:
    """A program with generations of its own, as ``--program`` names it; ``ConfigError`` if there is
    none. ``continues``: as that of ``Program``.
    """

    def __init__(
        self, program: str | SglFunction, requests: RequestMaker, continues: bool = False
    ) -> None:
        self._program = replace(Program.load(program), continues=continues)
        self._backend = backends(requests)

    async def answer(
        self,
        asked: list[dict[str, Any]] | TokenText,
        job: AnswerRequest,
        ahead: bool,
        **options: Any,
    ) -> None:
        """Runs it. Text that the program does not stream is delivered at the end.

        Raises:
            ProgramError: it raised something, or left no answer. LookaheadError: as any answer.
        """
        program = (
            replace(self._program, function=self._program.function.bind(**options))
            if options
            else self._program
        )
        await perform(program, asked, job, self._backend(job.lookahead, ahead))
        tell: Any = job.on_step
        if tell is not None and job.record.ids:
            tell(None)  # delivers the tokens of the record that are in no step
