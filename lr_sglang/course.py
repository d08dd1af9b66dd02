"""The course of one program: every generation of it, by lookahead or not, in one job's books."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lr_sglang import parts
from lr_sglang.ahead import unmark
from lr_sglang.backend import RuntimeBackend, StepStop
from lr_sglang.call import Call
from lr_sglang.chat import Tokenizer, resolve
from lr_sglang.detokenize import joined
from lr_sglang.errors import Cancelled, LookaheadError, PromptTooLong
from lr_sglang.flight import DRAIN_SECONDS
from lr_sglang.job import Job
from lr_sglang.parts import Part
from lr_sglang.poison import Failed
from lr_sglang.reuse import Unsettled
from lr_sglang.sglang_api.interpreter import SglSamplingParams, StreamExecutor
from lr_sglang.tokens import TokenText
from lr_sglang.trace import StepRecord, Trace
from lr_sglang.tree import Branch

HANG_UP_AFTER = 5  # stops
MOST_ASKED = 2**16  # prompts that are remembered


class Samples:
    """Numbers the times that the same prompt is asked, so that each is another sample of it."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def next(self, s: StreamExecutor) -> tuple[str, int]:
        """What a state asks, as a digest, and how often that was asked before."""
        said = repr((s.text_, s.messages_)).encode("utf-8", "replace")
        question = hashlib.sha256(said).hexdigest()[:16]
        with self._lock:
            sample, self._asked[question] = self._asked[question], self._asked[question] + 1
            if len(self._asked) > MOST_ASKED:  # a backend may be used for as long as its process lives
                del self._asked[next(iter(self._asked))]
        return question, sample


class Course:
    """What one run of a program asks of its runtimes. Complete, its job's record is that of the program's answer.

    Args:
        job: of the answer; stopping it stops every generation.
        roles: the runtimes.

    Attributes:
        own: the job that the program itself may use; the same record.
        counts: generations by how they were answered.
        errors: the failures of generations.
        shown: the beginning of the answer, as far as it was shown while it was written.
    """

    def __init__(self, job: Job, roles: Mapping[str, RuntimeBackend]) -> None:
        self.job, self.own, self.counts = job, dataclasses.replace(job, _wake=None), Counter[str]()
        self.samples, self.seed = Samples(), job.seed("program")
        self.roles: dict[str, Noted] = {}
        self.roles.update({role: Noted(backend, self) for role, backend in roles.items()})
        self._began, self._parts, self._unsettled = time.monotonic(), list[Part](), Unsettled()
        self._running: dict[int, Job | Call] = {id(self.own): self.own}
        self._states = weakref.WeakSet[StreamExecutor]()
        self._changed, self._stopped = threading.Condition(), False
        self.errors: list[LookaheadError] = []
        self.shown = TokenText()
        self._returned = 0.0
        self._stops = 0
        job.listen(self.stop)

    def now(self) -> float:
        """Seconds since the program began."""
        return time.monotonic() - self._began

    def count(self, what: str) -> None:
        """One more generation that was answered so."""
        with self._changed:
            self.counts[what] += 1

    def failed(self, error: LookaheadError) -> None:
        """A generation has failed, or could not be."""
        self.errors.append(error)

    def show(self, text: TokenText, known: Tokenizer, part: Part | None = None, step: StepRecord | None = None) -> None:
        """More of the answer, as it is written; who listens to the job hears of the step that it is."""
        record = self.job.record
        self.shown += text
        record.text += str.__str__(text)
        record.ids += resolve(text, known)
        if part is not None and step is not None:
            record.steps.append(part.moved(step, len(record.steps) - step.position))
            if self.job.on_step:
                self.job.on_step(record.steps[-1])

    def stop(self) -> None:
        """Ends what is being generated, from any thread; nothing more will be."""
        with self._changed:
            self._stopped, running = True, list(self._running.values())
            self._stops += 1
        for one in running:
            one.stop() if isinstance(one, Job) else one.cancel()
        if self._stops > HANG_UP_AFTER:  # a runtime that hangs takes no abort
            for call in [call for one in running for call in _calls(one)]:
                if call.cancelled:
                    call.hang_up()

    def seen(self, s: StreamExecutor) -> None:
        """A state of the program, which generates."""
        with self._changed:
            self._states.add(s)

    def close(self) -> None:
        """Ends what a program has left behind, and waits until the runtimes are rid of it.

        A state that is forgotten in a circle of objects would keep its thread, and that the process, until the garbage
        is collected.
        """
        self._returned = self.now()
        self.stop()
        with self._changed:
            states = list(self._states)
        for state in states:
            state.end()
        with self._changed:
            self._running.pop(id(self.own), None)
            self._changed.wait_for(lambda: not self._running, DRAIN_SECONDS)

    @contextmanager
    def ahead(self, job: Job) -> Iterator[Part]:
        """One generation by lookahead reasoning."""
        self._enter(job)
        part = Part(self.now(), "target", job.record)
        try:
            yield part
        except LookaheadError as error:
            self.failed(error)
            raise
        finally:
            self._leave(job, part)

    @contextmanager
    def choosing(self, s: StreamExecutor) -> Iterator[None]:
        """A ``select``: nothing is written for it, so that it has no books; but it can be stopped."""
        s.call = call = Call(key=self.job.key)
        self._enter(call)
        try:
            yield
        finally:
            self._leave(call)

    def begin(self, s: StreamExecutor, known: RuntimeBackend, is_step: bool) -> tuple[Call, Part]:
        """One generation that a runtime does by itself."""
        question, sample = self.samples.next(s)
        branch = Branch(known.role, 0, seed=self.job.seed("program", known.role, question, sample))
        part = Part(self.now(), known.role, Trace(branches=[branch], seeded=known.seeded), ahead=False)

        def done(result: Any) -> None:
            if isinstance(result, LookaheadError):
                self.failed(result)
            if isinstance(result, Cancelled):
                result = result.generation
            elif isinstance(result, LookaheadError):
                branch.error = str(result)
                if known.role != "target":
                    part.trace.failures[known.role] += 1
            part.note(result, self.now() - part.began, known.tokenizer, is_step)
            self._leave(call, part)

        call = Call(branch.seed, None, done, self.job.key)
        self._enter(call)
        self._unsettled.add(branch)
        return call, part

    def _enter(self, one: Job | Call) -> None:
        with self._changed:
            if not self._stopped:
                self._running[id(one)] = one
                return
        raise Cancelled("stopped")

    def _leave(self, one: Job | Call, *made: Part) -> None:
        with self._changed:
            self._parts += made
            self._running.pop(id(one), None)
            self._changed.notify_all()

    def complete(self, text: TokenText | None, finish: str | None, known: Tokenizer) -> None:
        """Writes the job's record: the answer, the steps of the generations that are in it, and all branches.

        Args:
            text: the answer; None of a program that has failed, of which what was shown is kept.
            finish: of the answer; None is that of the last generation in it.
        """
        record, seconds = self.job.record, self._returned
        if record.branches:  # the program has used its job for an answer of its own
            own = TokenText.wrap(record.text)
            self._parts.append(Part(0.0, "target", dataclasses.replace(record), given=own))
            seconds = record.seconds if text in (None, own) else seconds
            text = own if text is None else text
        self._unsettled.settle(whatever=True)
        made, answer = sorted(self._parts, key=lambda part: part.began), self.shown if text is None else text
        parts.place(made, answer)
        generations = parts.write(record, made)
        begun = record.ids if self.shown else ()  # what was shown stays the tokens that it was
        record.text = joined(answer, known.vocabulary, known.decode)
        record.ids = begun + resolve(answer[len(self.shown) :], known)
        record.finish = record.finish if finish is None else finish
        record.seconds, record.drained = seconds, self.now()
        record.program = {"answered": dict(self.counts), "generations": generations}


class Noted:
    """A runtime's backend inside of a program: the course hears of what is asked of it."""

    def __init__(self, inner: RuntimeBackend, course: Course) -> None:
        self.inner, self.course, self.roles = inner, course, course.roles

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """As ``RuntimeBackend.generate``; a program's own generation has no more tokens than the run allows."""
        if getattr(s, "call", None) is not None:  # a branch of an answer, which has its own books
            return self.inner.generate(s, sampling_params)
        self.course.seen(s)
        try:
            unmark(sampling_params)
            sampling_params.max_new_tokens = min(sampling_params.max_new_tokens, self._room(s))
            s.call, part = self.course.begin(s, self.inner, isinstance(sampling_params.stop, StepStop))
        except Exception as error:  # noqa: BLE001 - the interpreter's thread must not die of it
            self.course.failed(self.inner._failed(s, error))
            return "", {}
        if s.backend is self:  # else the LookaheadBackend has counted it
            self.course.count(self.inner.role)
        text, meta = self.inner.generate(s, sampling_params)
        part.given = TokenText.wrap(text)
        return text, meta

    def _room(self, s: StreamExecutor) -> int:
        prompt = len(self.inner.prompt_ids(s))
        room = self.course.job.limits.budget(prompt, self.inner.context)
        if room < 1:
            raise PromptTooLong(f"the program's prompt has {prompt} tokens, which leaves no room for more")
        return room

    def generate_stream(
        self, s: StreamExecutor, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Likewise."""
        chunk = self.generate(s, sampling_params)
        if not isinstance(s, Failed):
            yield chunk


def _calls(one: Job | Call) -> list[Call]:
    branches = one.record.branches if isinstance(one, Job) else []
    return [one] if isinstance(one, Call) else [branch.call for branch in list(branches) if branch.call is not None]
