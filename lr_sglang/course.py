"""The course of one program: every generation of it, by lookahead or not, in one job's books."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sglang.lang.interpreter import StreamExecutor
from sglang.lang.ir import SglSamplingParams

from lr_sglang.backend import RuntimeBackend
from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.flight import DRAIN_SECONDS
from lr_sglang.generation import Generation
from lr_sglang.job import Job
from lr_sglang.poison import Failed
from lr_sglang.reuse import Unsettled
from lr_sglang.steps import split_ids
from lr_sglang.trace import StepRecord, Trace
from lr_sglang.transport import Call
from lr_sglang.tree import Branch, Outcome

HANG_UP_AFTER = 5  # stops


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
        return question, sample


@dataclass
class _Part:
    """One generation: when it began, what it gave to the program, and its own books."""

    began: float
    role: str
    trace: Trace
    text: str = ""
    ahead: bool = True
    used: bool = field(default=False)


class Course:
    """What one run of a program asks of its runtimes. Complete, its job's record is that of the program's answer.

    Args:
        job: of the answer; stopping it stops every generation.
        roles: the runtimes.

    Attributes:
        own: the job that the program itself may use; the same record.
        counts: generations by how they were answered.
        error: the first failure of a generation.
    """

    def __init__(self, job: Job, roles: Mapping[str, RuntimeBackend]) -> None:
        self.job, self.own, self.counts = job, dataclasses.replace(job, _wake=None), Counter[str]()
        self.samples, self.seed = Samples(), job.seed("program")
        self.roles: dict[str, Noted] = {}
        self.roles.update({role: Noted(backend, self) for role, backend in roles.items()})
        self._began, self._parts, self._unsettled = time.monotonic(), list[_Part](), Unsettled()
        self._running: dict[int, Job | Call] = {id(self.own): self.own}
        self._changed, self._stopped = threading.Condition(), False
        self.error: LookaheadError | None = None
        self._stops = 0
        job.listen(self.stop)

    def now(self) -> float:
        """Seconds since the program began."""
        return time.monotonic() - self._began

    def count(self, what: str) -> None:
        """One more generation that was answered so."""
        with self._changed:
            self.counts[what] += 1

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

    def close(self) -> None:
        """Ends what a program has left behind, and waits until the runtimes are rid of it."""
        self.stop()
        with self._changed:
            self._running.pop(id(self.own), None)
            self._changed.wait_for(lambda: not self._running, DRAIN_SECONDS)

    @contextmanager
    def ahead(self, job: Job) -> Iterator[_Part]:
        """One generation by lookahead reasoning."""
        self._enter(job)
        part = _Part(self.now(), "target", job.record)
        try:
            yield part
        except LookaheadError as error:
            self.error = self.error or error
            raise
        finally:
            self._leave(job, part)

    def begin(self, role: str, s: StreamExecutor, known: RuntimeBackend) -> Call:
        """One generation that a runtime does by itself."""
        question, sample = self.samples.next(s)
        branch = Branch(role, 0, seed=self.job.seed("program", role, question, sample))
        trace = Trace(branches=[branch], seeded=known.seeded)
        part = _Part(self.now(), role, trace, ahead=False)

        def done(result: Any) -> None:
            if isinstance(result, LookaheadError):
                self.error = self.error or result
            if isinstance(result, Cancelled):
                result = result.generation
            _note(part, branch, self.now() - part.began, result, known)
            self._leave(call, part)

        call = Call(branch.seed, None, done, self.job.key)
        self._enter(call)
        self._unsettled.add(branch)
        return call

    def _enter(self, one: Job | Call) -> None:
        with self._changed:
            if not self._stopped:
                self._running[id(one)] = one
                return
        raise Cancelled("stopped")

    def _leave(self, one: Job | Call, part: _Part) -> None:
        with self._changed:
            self._parts.append(part)
            self._running.pop(id(one), None)
            self._changed.notify_all()

    def complete(self, text: str, ids: tuple[int, ...], finish: str | None) -> None:
        """Writes the job's record: the answer, the steps of the generations that are in it, and all branches.

        ``finish`` is that of the last of these generations where it is None; it is empty for a program that has failed.
        What the program has generated beside its answer counts as wasted.
        """
        record = self.job.record
        if record.branches:  # the program has used its job for an answer of its own
            self._parts.append(_Part(0.0, "target", dataclasses.replace(record), record.text))
        self._unsettled.settle(whatever=True)
        parts, at = sorted(self._parts, key=lambda part: part.began), 0
        for part in parts:
            wrote = part.text.strip()
            if wrote and (found := text.find(wrote, at)) >= 0:
                part.used, at = True, found + len(wrote)
        record.steps, record.branches = [], []
        for part in sorted(parts, key=lambda part: not part.used):
            base = len(record.steps)
            if part.used:
                record.steps += [_later(step, base, part.began) for step in part.trace.steps]
            record.branches += [_moved(branch, base, part) for branch in part.trace.branches]
        traces = [part.trace for part in parts]
        if finish is None:
            finish = ([part.trace.finish for part in parts if part.used] or ["stop"])[-1]
        record.text, record.ids, record.finish = text, ids, finish
        record.prompt_tokens = next((t.prompt_tokens for t in traces if t.prompt_tokens), 0)
        record.cycles, record.seeded = sum(t.cycles for t in traces), all(t.seeded for t in traces)
        record.failures = sum((t.failures for t in traces), Counter())
        record.seconds, record.drained = self.now(), self.now()

    def summary(self) -> list[dict[str, Any]]:
        """The generations in the order in which they began, in figures."""
        return [
            {
                "began": round(part.began, 6),
                "seconds": round(part.trace.seconds, 6),
                "role": part.role,
                "lookahead": part.ahead,
                "steps": len(part.trace.steps),
                "judged": part.trace.judged,
                "accepted": part.trace.accepted if part.ahead else 0,
                "generated": sum(b.generated_tokens for b in part.trace.branches if b.role != "judge"),
                "in_answer": part.used,
            }
            for part in sorted(self._parts, key=lambda part: part.began)
        ]


class Noted:
    """A runtime's backend inside of a program: the course hears of what is asked of it."""

    def __init__(self, inner: RuntimeBackend, course: Course) -> None:
        self.inner, self.course, self.roles = inner, course, course.roles

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """As ``RuntimeBackend.generate``; a program's own generation has no more tokens than the run allows."""
        if getattr(s, "call", None) is None:  # else it is a branch of an answer, which has its own books
            try:
                room = self.course.job.limits.budget(len(self.inner.prompt_ids(s)), self.inner.context)
                sampling_params.max_new_tokens = min(sampling_params.max_new_tokens, max(1, room))
                s.call = self.course.begin(self.inner.role, s, self.inner)
            except Exception as error:  # noqa: BLE001 - the interpreter's thread must not die of it
                self.inner._failed(s, error)
                return "", {}
            if s.backend is self:  # else the LookaheadBackend has counted it
                self.course.count(self.inner.role)
        return self.inner.generate(s, sampling_params)

    def generate_stream(
        self, s: StreamExecutor, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Likewise."""
        chunk = self.generate(s, sampling_params)
        if not isinstance(s, Failed):
            yield chunk


def _note(part: _Part, branch: Branch, seconds: float, result: Any, known: RuntimeBackend) -> None:
    """What came of a generation; its text is cut into steps, as that of an answer by plain decoding is."""
    branch.ended = seconds
    if isinstance(result, LookaheadError):
        branch.error = str(result)
    if not isinstance(result, Generation):
        return
    branch.prompt_tokens, branch.cached_tokens = result.prompt_tokens, result.cached_tokens
    branch.generated_tokens, branch.entry = len(result.ids), result.entry
    branch.speculation = result.speculation
    tokenizer, source = known.tokenizer, "draft" if branch.role == "draft" else "target"
    outcome = "accepted" if source == "draft" else "written"
    for step in split_ids(result.ids, result.finish, tokenizer.decode, result.ends, tokenizer.vocabulary):
        position, ending = len(part.trace.steps), step.ending.value
        kept = StepRecord(position, step.text, len(step.ids), source, outcome, ending, seconds)
        part.trace.add(kept, step.ids)
    part.text = result.meta["text"]
    part.trace.seconds, part.trace.prompt_tokens = seconds, result.prompt_tokens
    part.trace.finish = "length" if result.finish == "length" else "stop"


def _calls(one: Job | Call) -> list[Call]:
    branches = one.record.branches if isinstance(one, Job) else []
    return [one] if isinstance(one, Call) else [branch.call for branch in list(branches) if branch.call is not None]


def _later(step: StepRecord, base: int, seconds: float) -> StepRecord:
    return dataclasses.replace(step, position=step.position + base, seconds=step.seconds + seconds)


def _moved(branch: Branch, base: int, part: _Part) -> Branch:
    """A copy, for the part's trace is somebody else's too."""
    ended = None if branch.ended is None else branch.ended + part.began
    moved = dataclasses.replace(
        branch, position=branch.position + base, started=branch.started + part.began, ended=ended
    )
    if moved.outcome is None:
        written = Outcome.ACCEPTED if part.role == "draft" else Outcome.BONUS
        moved.outcome = written if part.used else Outcome.CANCELLED
    return moved
