"""Lookahead reasoning for any SGLang program: a backend that answers its free-text ``gen`` that way.

sgl.set_default_backend(LookaheadBackend(roles, judge_prompt=plan.judge_prompt))  # every program from now on
s += lookahead("answer", depth=4)  # or one gen of a program, as it is told
"""

from __future__ import annotations

import copy
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from queue import SimpleQueue
from typing import Any

from lr_sglang import policy, verifiers
from lr_sglang.ahead import ALL, Ahead, lookahead, stops_of, unmark, why_not
from lr_sglang.answer import Answer
from lr_sglang.backend import RuntimeBackend
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.course import Course, Noted, Samples
from lr_sglang.delivery import Delivery
from lr_sglang.dsl import end
from lr_sglang.errors import BadReply, Cancelled, LookaheadError
from lr_sglang.events import Event
from lr_sglang.job import Job
from lr_sglang.parts import Part
from lr_sglang.poison import Failed, poison
from lr_sglang.programs.lookahead import look_ahead
from lr_sglang.sglang_api.interpreter import (
    BaseBackend,
    ChoicesDecision,
    ProgramState,
    SglSamplingParams,
    StreamExecutor,
)
from lr_sglang.tokens import TokenText
from lr_sglang.trace import StepRecord, Trace

__all__ = ["LookaheadBackend", "lookahead"]

# Traces that are kept for who wants to look.
LAST = 64


class LookaheadBackend(BaseBackend):
    """Runs SGLang programs on a deployment; their free-text ``gen`` is answered by lookahead reasoning.

    What cannot be looked ahead for (a regex, a schema, several samples in one ``gen``, ``select``, short texts) goes to
    the target as it is. Forks, nested programs, ``run_batch`` and ``stream=True`` work as ever.

    Args:
        roles: backends of the deployment, by role.
        options: of lookahead reasoning.
        seed: of the run; every ``gen`` derives its own from it and its prompt.
        everything: False looks ahead only for what ``lookahead()`` writes.
        judge_prompt: which prompt the judge is given.
        on_event: told of what happens while an answer is made.
        ahead: False lets the target write everything by itself: what lookahead reasoning is compared with.
        experience: what answers learn together; None begins a new one.

    Attributes:
        roles: what a program finds when it moves a state to another role; outside of one the same as ``runtimes``.
        counts: answers by ``lookahead``, and by the reason why it was not.
        traces: of the last answers, the latest at the end.

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
        experience: policy.Experience | None = None,
    ) -> None:
        super().__init__()
        self.roles: Mapping[str, RuntimeBackend | Noted] = roles
        self.runtimes = roles
        self.options, self.seed, self.everything = options or Lookahead(), seed, everything
        self.target, self.on_event = roles["target"], on_event
        self.chat_template = self.target.chat_template
        self.counts: Counter[str] = Counter()
        self.traces: deque[Trace] = deque(maxlen=LAST)
        self.ahead, self.limits = ahead, Limits()
        self._course: Course | None = None
        self._samples = Samples()
        self._experience = experience or policy.experience_for(self.options)
        self._lock = threading.Lock()
        self._verifier = cache(lambda name: verifiers.make(name, verifiers.Setup(roles, judge_prompt)))
        if ahead:
            self._verifier(self.options.verifier)

    def within(self, course: Course) -> LookaheadBackend:
        """The same backend for one run of a program, whose books are ``course``."""
        made = copy.copy(self)
        made.roles, made._course = course.roles, course
        made._samples, made.seed, made.limits = course.samples, course.seed, course.job.limits
        made.on_event = course.job.on_event or self.on_event
        return made

    def get_model_name(self) -> str:
        return self.target.get_model_name()

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """Called by the interpreter in the state's thread. Never raises, as ``RuntimeBackend.generate``."""
        if self._is_alone(s, sampling_params):
            return self._alone(s, sampling_params)
        try:
            return self._write(s, sampling_params)
        except Exception as error:  # noqa: BLE001 - whatever it is, the one who waits must hear of it
            poison(s, _named(error))
            return "", {}

    def generate_stream(
        self, s: StreamExecutor, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """A chunk for each step, as it is kept."""
        if self._is_alone(s, sampling_params):
            made = self._alone(s, sampling_params)
            if not isinstance(s, Failed):
                yield made
            return
        ready: SimpleQueue[str | dict[str, Any] | Exception] = SimpleQueue()

        def write() -> None:
            try:
                ready.put(self._write(s, sampling_params, ready.put)[1])
            except Exception as error:  # noqa: BLE001 - as above
                ready.put(error)

        thread = threading.Thread(target=write, name="lr-stream", daemon=True)
        thread.start()
        while isinstance(item := ready.get(), str):
            yield item, {}
        thread.join()
        if isinstance(item, Exception):
            poison(s, _named(item))
        else:
            yield "", item

    def select(self, s: StreamExecutor, choices: list[str], temperature: float, choices_method: Any) -> Any:
        self._count(s, "select")
        try:
            with self._course.choosing(s) if self._course is not None else nullcontext():
                return self.target.select(s, choices, temperature, choices_method)
        except Exception as error:  # noqa: BLE001 - as above
            poison(s, _named(error))
            return ChoicesDecision("", {})

    def end_program(self, s: StreamExecutor) -> None:
        self.target.end_program(s)

    def shutdown(self) -> None:
        for backend in self.roles.values():
            backend.shutdown()

    def flush_cache(self) -> None:
        """Empties the runtimes' radix caches."""
        for backend in self.roles.values():
            backend.flush_cache()

    def _count(self, s: StreamExecutor, what: str) -> None:
        with self._lock:
            self.counts[what] += 1
        if self._course is not None:
            self._course.seen(s)
            self._course.count(what)

    def _is_alone(self, s: StreamExecutor, params: SglSamplingParams) -> bool:
        """Whether the target is to write it by itself; it is counted why."""
        reason = why_not(s, params, self.everything) if self.ahead else "autoregressive"
        self._count(s, reason or "lookahead")
        return bool(reason)

    def _alone(self, s: StreamExecutor, params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """The target writes it by itself."""
        unmark(params)
        try:
            if params.max_new_tokens >= ALL:
                params.max_new_tokens = max(1, min(self.room(s), params.max_new_tokens))
        except Exception as error:  # noqa: BLE001 - as above
            poison(s, _named(error))
            return "", {}
        return self.roles["target"].generate(s, params)

    def room(self, s: StreamExecutor) -> int:
        """Tokens that the target can still write after a state, within the model's context and the run's limits."""
        return self.limits.budget(len(self.target.prompt_ids(s)), self.target.context)

    def _write(
        self, s: StreamExecutor, params: SglSamplingParams, tell: Callable[[str], None] = lambda text: None
    ) -> tuple[TokenText, dict[str, Any]]:
        """Makes an answer in a state of its own, which goes on where ``s`` stands."""
        mark, known, course = params.stop, self.target.tokenizer, self._course
        look = self.options.replace(**mark.options) if isinstance(mark, Ahead) else self.options
        job, delivery = self._job(s, look, params), Delivery(known.decode, stops_of(mark))
        with course.ahead(job) if course is not None else nullcontext(Part(0.0, "target", job.record)) as part:
            shown = course if isinstance(mark, Ahead) and mark.show and s.fork_start_text_pos is None else None

            def give(text: TokenText, step: StepRecord | None = None) -> None:
                part.given += text
                tell(text)
                if shown is not None:
                    shown.show(text, known, part, step)

            told = 0

            def keep(step: StepRecord) -> None:
                nonlocal told
                ids, told = job.record.ids[told:], len(job.record.ids)
                text = "".join(piece.text for piece in delivery.add(ids))
                own = ids[:-1] if step.ending == "end of sequence" and ids[-1:] and ids[-1] in self.target.ends else ids
                give(TokenText.of(text, own, known.vocabulary) if text == step.text else TokenText.wrap(text), step)
                if delivery.stopped:
                    raise Cancelled("a stop string was written")

            job.on_step = keep
            if heard := self.on_event:  # it counts from when the program began
                job.on_event = lambda event: heard(replace(event, seconds=event.seconds + part.began))
            if shown is not None and mark.name != "answer":
                shown.show(TokenText.wrap(s.text_[s.cur_role_begin_pos or 0 :][len(shown.shown) :]), known)
            state = self._beside(s)
            try:
                with Answer(state, job) as answer:
                    look_ahead(answer)
            except Cancelled:
                if not delivery.stopped:
                    raise
            finally:
                end(state)
            give(TokenText.wrap("".join(piece.text for piece in delivery.rest())))
        with self._lock:
            self.traces.append(job.record)
        return part.given, _meta(job.record, delivery, stops_of(mark))

    def _beside(self, s: StreamExecutor) -> ProgramState:
        """As ``s.fork`` does it, which cannot be called in the thread of ``s``."""
        made = StreamExecutor(self.target, s.arguments, SglSamplingParams(), self.chat_template, False)
        made.text_, made.messages_ = s.text_, list(s.messages_)
        made.cur_role, made.cur_role_begin_pos = s.cur_role, s.cur_role_begin_pos
        made.fork_start_text_pos = len(s.text_)
        return ProgramState(made)

    def _job(self, s: StreamExecutor, look: Lookahead, params: SglSamplingParams) -> Job:
        question, sample = self._samples.next(s)
        most = [n for n in (params.max_new_tokens, self.limits.max_tokens) if n is not None]
        job = Job(
            lookahead=look,
            sampling=Sampling(params.temperature, params.top_p, params.top_k, params.min_p, self.seed),
            limits=self.limits.replace(max_tokens=min(most, default=None)),
            verifier=self._verifier(look.verifier),
            fast=verifiers.fast(look, self.runtimes),
            question=question,
            sample=sample,
            experience=self._experience,
        )
        if self._course is not None:
            job.key = self._course.job.key
        return job


def _named(error: Exception) -> LookaheadError:
    return error if isinstance(error, LookaheadError) else BadReply(repr(error))


def _meta(trace: Trace, delivery: Delivery, stops: tuple[str, ...]) -> dict[str, Any]:
    """What ``s.get_meta_info`` says of the answer, in SGLang's words where it has some."""
    counts = trace.tokens()
    finish: dict[str, Any] = {"type": "stop" if delivery.stopped else trace.finish}
    if delivery.stopped and len(stops) == 1:
        finish["matched"] = stops[0]
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
