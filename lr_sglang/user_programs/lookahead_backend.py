"""Lookahead reasoning for any SGLang program: a backend that uses it for free-text ``gen``.

sgl.set_default_backend(LookaheadBackend(roles, judge_prompt="pocket"))  # every program
from now on s += lookahead("answer", depth=4)  # or one gen of a program, with its own options
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer import answering
from lr_sglang.algorithm.answer_request import AnswerRequest, derived_seed
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.delivery.stream_text import StreamText, WholeTokens
from lr_sglang.errors import BadReply, Cancelled, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import end
from lr_sglang.frontend.executor import Executor
from lr_sglang.frontend.gen_options import (
    UNLIMITED,
    LookaheadMark,
    fallback_reason,
    lookahead,
    stops_of,
    strip_mark,
)
from lr_sglang.modes import MODES
from lr_sglang.programs.lookahead import write_answer
from lr_sglang.sglang_api.interpreter import BaseBackend, ProgramState, SglSamplingParams
from lr_sglang.steps.branch import Request
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.trace import Event, StepRecord, Trace
from lr_sglang.user_programs.generation_trace import GenerationTrace
from lr_sglang.user_programs.program_run import ProgramRun, RecordingBackend, Samples
from lr_sglang.user_programs.request_maker import RequestMaker

__all__ = ["LookaheadBackend", "lookahead"]


class LookaheadBackend(BaseBackend):
    """Runs SGLang programs on a deployment, with lookahead reasoning for their free-text ``gen``.

    The target alone answers a ``gen`` with a regex or a schema, short ones, and
    ``select``. Forks, nested programs and ``run_batch`` work as in SGLang.

    Args:
        roles: backends of the deployment, by role.
        options: the settings of lookahead reasoning.
        seed: the run's seed; that of a ``gen`` is derived from it and the prompt.
        everything: False uses lookahead only for ``gen`` that ``lookahead()`` made.
        judge_prompt: name of the judge's prompt.
        on_event: called with each event while an answer is made.
        ahead: False makes the target answer alone, as the baseline of a comparison.
        requests: makes the requests of its answers, which share runtimes, verifiers and
            statistics with others; None makes a new one.

    Attributes:
        roles: the backends that ``fork`` and ``on`` move a state to; within a program they record
            its requests.
        counts: number of generations by ``lookahead``, and of others by the reason.

    Raises:
        ConfigError: the verifier lacks its runtime.
    """

    def __init__(
        self,
        roles: Mapping[str, RuntimeBackend],
        options: Lookahead | None = None,
        *,
        judge_prompt: str,
        seed: int = 0,
        everything: bool = True,
        on_event: Callable[[Event], None] | None = None,
        ahead: bool = True,
        requests: RequestMaker | None = None,
    ) -> None:
        super().__init__()
        self.roles: Mapping[str, RuntimeBackend | RecordingBackend] = roles
        self.runtimes = roles
        self.options = options or Lookahead()
        self.seed = seed
        self.everything = everything
        self.target = roles["target"]
        self.on_event = on_event
        self.chat_template = self.target.chat_template
        self.counts: Counter[str] = Counter()
        self.ahead = ahead
        self.limits = Limits()
        self._run: ProgramRun | None = None
        self._samples = Samples()
        self._requests = requests or RequestMaker(roles, judge_prompt, policy.RunStatistics())
        if ahead:
            self._requests.verifier(self.options.verifier)

    def within(self, run: ProgramRun) -> LookaheadBackend:
        """A copy of this backend for one run of a program."""
        made = copy.copy(self)
        made.roles = run.roles
        made._run = run
        made.limits = run.request.limits
        made.on_event = run.request.on_event or self.on_event
        return made

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.target.loop

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        for backend in self.runtimes.values():
            backend.bind(loop)

    async def agenerate(self, s: Executor, params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """Generates text after a state, by lookahead reasoning where possible; raises
        ``LookaheadError``.
        """
        if self._is_alone(s, params):
            return await self._alone(s, params)
        try:
            return await self._write(s, params)
        except LookaheadError:
            raise
        except Exception as error:
            raise BadReply(f"a generation failed: {error!r}") from error

    async def aselect(
        self, s: Executor, choices: list[str], temperature: float, method: Any
    ) -> Any:
        """As ``RuntimeBackend.aselect``: by the target."""
        self.counts["select"] += 1
        return await self.roles["target"].aselect(s, choices, temperature, method)

    def opened_thought(self, s: Executor) -> str:
        """As ``RuntimeBackend.opened_thought``: of the target."""
        return self.target.opened_thought(s)

    def flush_cache(self) -> None:
        for backend in self.roles.values():
            backend.flush_cache()

    def _count(self, s: Executor, what: str) -> None:
        self.counts[what] += 1
        if self._run is not None:
            self._run.register(s)
            self._run.counts[what] += 1

    def _is_alone(self, s: Executor, params: SglSamplingParams) -> bool:
        """Whether the target generates without lookahead; counts the reason."""
        reason = fallback_reason(s, params, self.everything) if self.ahead else "autoregressive"
        self._count(s, reason or "lookahead")
        return bool(reason)

    async def _alone(self, s: Executor, params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """The target generates alone, within its room; ``s`` and ``params`` are changed for it."""
        strip_mark(params)
        if params.max_new_tokens >= UNLIMITED:
            params.max_new_tokens = max(1, min(self.room(s), params.max_new_tokens))
        if self._run is None:  # otherwise the run makes the request
            s.request = Request(seed=derived_seed(*self._identify(s)))
        return await self.roles["target"].agenerate(s, params)

    def room(self, s: Executor) -> int:
        """Tokens that the target can still write after a state, within the model's context and the
        run's limits.
        """
        return self.limits.budget(len(self.target.prompt_ids(s)), self.target.facts.context)

    async def _write(
        self,
        s: Executor,
        params: SglSamplingParams,
    ) -> tuple[TokenText, dict[str, Any]]:
        """Generates text after ``s`` by lookahead reasoning, in a fork."""
        mark = params.stop
        tokenizer = self.target.tokenizer
        run = self._run
        look = (
            self.options.with_options(**mark.options)
            if isinstance(mark, LookaheadMark)
            else self.options
        )
        request = self._answer_request(s, look, params)
        delivery = StreamText(tokenizer.decode, stops_of(mark))
        with (
            run.ahead(s, request)
            if run is not None
            else nullcontext(GenerationTrace(0.0, "target", request.trace)) as part
        ):
            shown = (
                run
                if isinstance(mark, LookaheadMark) and mark.show and s.fork_start_text_pos is None
                else None
            )

            def give(text: TokenText, step: StepRecord | None = None) -> None:
                part.given += text
                if shown is not None:
                    shown.show(text, tokenizer, part, step)

            told = 0
            whole = WholeTokens(tokenizer)

            def keep(step: StepRecord) -> None:
                nonlocal told
                ids = request.trace.ids[told:]
                told = len(request.trace.ids)
                own = step.spoken(ids, self.target.ends)
                give(whole.add(delivery.add(own, len(ids) - len(own)), own), step)
                if delivery.stopped:
                    raise Cancelled("a stop string was written")

            request.on_step = keep
            if on_event := self.on_event:  # with seconds since the program began
                request.on_event = lambda event: on_event(
                    replace(event, seconds=event.seconds + part.began)
                )
            if shown is not None and mark.name != "answer":
                shown.show(
                    TokenText.wrap(s.text_[s.cur_role_begin_pos or 0 :][len(shown.shown) :]),
                    tokenizer,
                )
            state = self._beside(s)
            try:
                async with answering(state, request) as answer:
                    await write_answer(answer)
            except Cancelled:
                if not delivery.stopped:
                    raise
                request.trace.finish = "stop"
            finally:
                end(state)
            give(whole.rest(delivery.rest()))
        return part.given, _meta(request.trace, delivery)

    def _beside(self, s: Executor) -> ProgramState:
        """A fork of a state during its generation, at the text before that generation."""
        made = Executor(self.target, s.arguments, SglSamplingParams(), self.chat_template, False)
        made.text_ = s.text_
        made.messages_ = list(s.messages_)
        made.turns = s.turns
        made.cur_role = s.cur_role
        made.cur_role_begin_pos = s.cur_role_begin_pos
        made.fork_start_text_pos = len(s.text_)
        return ProgramState(made)

    def _identify(self, s: Executor) -> tuple[int, str, int]:
        if self._run is not None:
            return self._run.identify(s)
        return self.seed, *self._samples.next(s)

    def _answer_request(
        self, s: Executor, look: Lookahead, params: SglSamplingParams
    ) -> AnswerRequest:
        seed, question, sample = self._identify(s)
        most = [n for n in (params.max_new_tokens, self.limits.max_tokens) if n is not None]
        request = self._requests.make(
            MODES["lookahead"],
            look,
            Sampling(
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                min_p=params.min_p,
                seed=seed,
            ),
            self.limits.replace(max_tokens=min(most, default=None)),
            question=question,
            sample=sample,
        )
        if self._run is not None:
            request.key = self._run.request.key
        return request


def backend_for_requests(requests: RequestMaker, look: Lookahead, ahead: bool) -> LookaheadBackend:
    """A backend for answers of ``requests``."""
    prompt = requests.judge_prompt
    return LookaheadBackend(
        requests.roles, look, judge_prompt=prompt, ahead=ahead, requests=requests
    )


def _meta(trace: Trace, delivery: StreamText) -> dict[str, Any]:
    """The meta information of the answer for ``s.get_meta_info``: SGLang's keys, and
    ``lookahead``.
    """
    counts = trace.tokens()
    finish = (
        {"type": "stop", "matched": delivery.stopped}
        if delivery.stopped
        else {"type": trace.finish}
    )
    return {
        "prompt_tokens": trace.prompt_tokens,
        "completion_tokens": delivery.tokens,
        "finish_reason": finish,
        "lookahead": {
            "steps": len(trace.steps),
            "accepted": trace.accepted,
            "alpha": trace.alpha,
            "wasted_tokens": counts["wasted"],
            "seconds": trace.seconds,
        },
    }
