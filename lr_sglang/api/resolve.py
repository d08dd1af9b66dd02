"""Turns a question and its options into a checked task, before anything runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.api.deployment import OpenDeployment
from lr_sglang.api.runner import PROGRAMS
from lr_sglang.api.solution import Solution
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.errors import ConfigError, LookaheadError, did_you_mean
from lr_sglang.frontend.run import run_program
from lr_sglang.modes import MODES, Mode
from lr_sglang.results import machine, record
from lr_sglang.steps.events import Event
from lr_sglang.tasks import Question
from lr_sglang.user_programs.program import Program, perform

Asked = str | Sequence[Mapping[str, str]]
_WITH_LAYER = {"lookahead": "lookahead+sd", "autoregressive": "sd"}  # what it is where the runtime has a token layer
_OPTIONS = {field.name: kind for kind in (Lookahead, Sampling, Limits) for field in fields(kind)}


@dataclass
class AnswerTask:
    """One question to a deployment, with checked options."""

    live: OpenDeployment
    messages: list[dict[str, str]]
    program: Program | None
    mode: Mode
    job: AnswerRequest

    async def run(self) -> Solution:
        """Answers it, on the event loop of the deployment.

        Raises:
            LookaheadError: a runtime failed, or the job was stopped.
        """
        with self.live.answering(self.job):
            if self.mode.ahead and not self.live.given:
                await self.live.requests.check_judge(self.job.lookahead)
            if self.program is None:
                target = self.live.roles["target"]
                await run_program(PROGRAMS[self.mode.program], self.messages, self.job, backend=target)
            else:
                backend = self.live.backends(self.job.lookahead, self.mode.ahead)
                await perform(self.program, self.messages, self.job, backend)
            return self._solution(record.make)

    def failed(self, error: LookaheadError) -> Solution:
        """The solution of a failed answer: the part that was made, and the error."""
        return self._solution(lambda q, mode, job, *rest: record.make_failed(q, mode, job, error, *rest), error)

    def _solution(self, make: Callable[..., record.Record], error: LookaheadError | None = None) -> Solution:
        asked, job = self.messages[-1]["content"], self.job
        config = {
            "program": self.program.name if self.program else self.mode.program,
            "lookahead": job.lookahead.to_dict() if self.mode.ahead else None,
            "sampling": job.sampling.to_dict(),
            "limits": job.limits.to_dict(),
        }
        made = make(Question(job.question, asked), self.mode.name, job, config, machine.versions())
        return Solution(asked, job.record, made, error)


def resolve_request(
    live: OpenDeployment,
    question: Asked,
    program: Program | None,
    mode: str,
    on_event: Callable[[Event], None] | None,
    options: dict[str, Any],
    sample: int = 0,
) -> AnswerTask:
    """Makes a task of a question, with its options by name.

    Raises:
        ConfigError: there is no such option or mode, the question is empty, or the deployment is not open.
    """
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else [dict(m) for m in question]
    said = [m.get("content") if isinstance(m.get("role"), str) else None for m in messages]
    if not said or not all(isinstance(text, str) and text.strip() for text in said):
        raise ConfigError("the question is empty", hint="a text, or messages with 'role' and 'content'")
    for name in options:
        if name not in _OPTIONS:
            hint = did_you_mean(name, _OPTIONS, f"one of {', '.join(sorted(_OPTIONS))}")
            if program is not None and name in program.function.arg_names:
                hint = f"it is the program's: program=NAME.bind({name}=...)"
            raise ConfigError(f"there is no option {name!r}", hint=hint)
    known = MODES.get(_WITH_LAYER.get(mode, mode) if live.roles["target"].token_layer else mode)
    if known is None:
        raise ConfigError(f"there is no mode {mode!r}", hint=f"one of {', '.join(MODES)}")
    if known.ahead and "draft" not in live.roles:
        raise ConfigError("lookahead reasoning needs a draft runtime", hint='draft="...", or mode="autoregressive"')
    config = live.config
    job = live.requests.make(
        known,
        config.lookahead.replace(**_of(Lookahead, options)),
        config.sampling.replace(**_of(Sampling, options)),
        config.limits.replace(**_of(Limits, options)),
        question=hashlib.sha256(repr(messages).encode("utf-8", "replace")).hexdigest()[:16],
        sample=sample,
        on_event=on_event,
    )
    return AnswerTask(live, messages, program, known, job)


def _of(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if _OPTIONS[name] is kind}
