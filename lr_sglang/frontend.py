"""Lookahead reasoning for any SGLang program: a backend that answers its free-text ``gen`` that way.

sgl.set_default_backend(LookaheadBackend(roles))   # every program from now on, unchanged
s += lookahead("answer", depth=4)                  # or one gen of a program, as it is told
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache, reduce
from operator import add
from queue import SimpleQueue
from typing import Any

import sglang as sgl
from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.interpreter import ProgramState, StreamExecutor
from sglang.lang.ir import SglGen, SglSamplingParams

from lr_sglang import policy, verifiers
from lr_sglang.answer import Answer
from lr_sglang.backend import RuntimeBackend, StepStop
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.delivery import Delivery
from lr_sglang.dsl import end
from lr_sglang.errors import BadReply, Cancelled, ConfigError, LookaheadError
from lr_sglang.events import Event
from lr_sglang.job import Job
from lr_sglang.poison import poison
from lr_sglang.programs.lookahead import look_ahead
from lr_sglang.tokens import TokenText
from lr_sglang.trace import StepRecord, Trace

# What has fewer tokens than a few steps is written sooner by the target alone.
SHORT = 64
# Traces that are kept for who wants to look.
LAST = 64
# What a ``gen`` may ask for that is the target's business alone.
CANNOT = (
    "regex",
    "json_schema",
    "dtype",
    "return_logprob",
    "ignore_eos",
    "stop_token_ids",
    "stop_regex",
    "min_new_tokens",
    "frequency_penalty",
    "presence_penalty",
)


class Ahead(str):
    """A stop string that marks a ``gen`` as lookahead reasoning; SGLang carries it where other marks are lost."""

    options: dict[str, Any]
    stops: tuple[str, ...]


def lookahead(name: str = "answer", max_tokens: int = 4096, stop: str | Sequence[str] = (), **given: Any) -> SglGen:
    """A ``gen`` that is answered by lookahead reasoning, on a ``LookaheadBackend``.

    Args:
        name: of the variable, as for ``gen``.
        max_tokens: the answer's budget.
        stop: where the text is cut off, as for ``gen``.
        given: fields of ``Lookahead`` (``depth``, ``width``, ``verifier``, ...) and of ``gen`` (``temperature``, ...).

    Raises:
        ConfigError: there is no such option, or it cannot be.
    """
    fields = {key: given.pop(key) for key in list(given) if key in Lookahead.__dataclass_fields__}
    mark = Ahead("\x00lookahead")
    mark.stops = (stop,) if isinstance(stop, str) else tuple(stop)
    mark.options = fields
    Lookahead().replace(**fields)  # what cannot be is said here, where it is written
    try:
        return sgl.gen(name, max_tokens=max_tokens, stop=mark, **given)
    except TypeError as error:
        raise ConfigError(f"lookahead(): {error}", hint="fields of Lookahead, and what gen() takes") from error


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

    Attributes:
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
        seed: int = 0,
        everything: bool = True,
        judge_prompt: str = "paper",
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__()
        self.roles, self.options, self.seed, self.everything = roles, options or Lookahead(), seed, everything
        self.target, self.on_event = roles["target"], on_event
        self.chat_template = self.target.chat_template
        self.counts: Counter[str] = Counter()
        self.traces: deque[Trace] = deque(maxlen=LAST)
        self._asked: Counter[str] = Counter()
        self._experience = policy.experience_for(self.options)
        self._lock = threading.Lock()
        self._verifier = cache(lambda name: verifiers.make(name, roles, judge_prompt))
        self._verifier(self.options.verifier)

    def get_model_name(self) -> str:
        return self.target.get_model_name()

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """Called by the interpreter in the state's thread. Never raises, as ``RuntimeBackend.generate``."""
        reason = self._reason(s, sampling_params)
        self._count(reason or "lookahead")
        if reason:
            return self.target.generate(s, sampling_params)
        pieces: list[str] = []
        try:
            meta = self._write(s, sampling_params, pieces.append)
        except Exception as error:  # noqa: BLE001 - whatever it is, the one who waits must hear of it
            poison(s, _named(error))
            return "", {}
        return reduce(add, pieces, TokenText()), meta

    def generate_stream(
        self, s: StreamExecutor, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """A chunk for each step, as it is kept."""
        reason = self._reason(s, sampling_params)
        self._count(reason or "lookahead")
        if reason:
            yield from self.target.generate_stream(s, sampling_params)
            return
        ready: SimpleQueue[str | dict[str, Any] | Exception] = SimpleQueue()

        def write() -> None:
            try:
                ready.put(self._write(s, sampling_params, ready.put))
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
        self._count("select")
        return self.target.select(s, choices, temperature, choices_method)

    def end_program(self, s: StreamExecutor) -> None:
        self.target.end_program(s)

    def shutdown(self) -> None:
        for backend in self.roles.values():
            backend.shutdown()

    def flush_cache(self) -> None:
        """Empties the runtimes' radix caches."""
        for backend in self.roles.values():
            backend.flush_cache()

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _reason(self, s: StreamExecutor, params: SglSamplingParams) -> str:
        """Why lookahead reasoning is not for this ``gen``; empty if it is."""
        if s.images_:
            return "images"
        cannot = [name for name in CANNOT if getattr(params, name) not in (None, (), [], False, 0, 0.0)]
        if cannot:
            return cannot[0]
        if params.n != 1:
            return "n"
        if isinstance(params.stop, Ahead):
            return ""
        if not self.everything or isinstance(params.stop, StepStop):
            return "plain"
        return "short" if params.max_new_tokens < SHORT else ""

    def _write(self, s: StreamExecutor, params: SglSamplingParams, tell: Callable[[str], None]) -> dict[str, Any]:
        """Makes an answer in a state of its own, which goes on where ``s`` stands."""
        mark, known = params.stop, self.target.tokenizer
        stops = mark.stops if isinstance(mark, Ahead) else (mark,) if isinstance(mark, str) else tuple(mark)
        look = self.options.replace(**mark.options) if isinstance(mark, Ahead) else self.options
        state, delivery = self._beside(s), Delivery(known.decode, stops)
        job = self._job(s, look, params)

        def keep(step: StepRecord) -> None:
            ids = job.record.ids[len(job.record.ids) - step.tokens :]
            shown = "".join(piece.text for piece in delivery.add(ids))
            if shown == step.text:
                tell(TokenText.of(shown, ids[:-1] if step.ending == "end of sequence" else ids, known.vocabulary))
            elif shown:
                tell(shown)
            if delivery.stopped:
                raise Cancelled("a stop string was written")

        job.on_step = keep
        try:
            with suppress(Cancelled) if stops else nullcontext(), Answer(state, job) as answer:
                look_ahead(answer)
        finally:
            end(state)
        if rest := "".join(piece.text for piece in delivery.rest()):
            tell(rest)
        with self._lock:
            self.traces.append(job.record)
        return _meta(job.record, delivery)

    def _beside(self, s: StreamExecutor) -> ProgramState:
        """As ``s.fork`` does it, which cannot be called in the thread of ``s``."""
        made = StreamExecutor(self.target, s.arguments, SglSamplingParams(), self.chat_template, False)
        made.text_, made.messages_ = s.text_, list(s.messages_)
        made.cur_role, made.cur_role_begin_pos = s.cur_role, s.cur_role_begin_pos
        made.fork_start_text_pos = len(s.text_)
        return ProgramState(made)

    def _job(self, s: StreamExecutor, look: Lookahead, params: SglSamplingParams) -> Job:
        question = hashlib.sha256(repr((s.text_, s.messages_)).encode("utf-8", "replace")).hexdigest()[:16]
        with self._lock:  # the same prompt again is another sample of it
            sample, self._asked[question] = self._asked[question], self._asked[question] + 1
        return Job(
            lookahead=look,
            sampling=Sampling(params.temperature, params.top_p, params.top_k, params.min_p, self.seed),
            limits=Limits(max_tokens=params.max_new_tokens),
            verifier=self._verifier(look.verifier),
            fast=verifiers.fast(look, self.roles),
            question=question,
            sample=sample,
            experience=self._experience,
            on_event=self.on_event,
        )


def _named(error: Exception) -> LookaheadError:
    return error if isinstance(error, LookaheadError) else BadReply(repr(error))


def _meta(trace: Trace, delivery: Delivery) -> dict[str, Any]:
    """What ``s.get_meta_info`` says of the answer, in SGLang's words where it has some."""
    counts = trace.tokens()
    return {
        "prompt_tokens": trace.prompt_tokens,
        "completion_tokens": delivery.tokens,
        "finish_reason": {"type": "stop" if delivery.stopped else trace.finish},
        "lookahead": {
            "steps": len(trace.steps),
            "accepted": trace.accepted,
            "alpha": trace.alpha,
            "wasted_tokens": counts["wasted"],
            "seconds": trace.seconds,
        },
    }
