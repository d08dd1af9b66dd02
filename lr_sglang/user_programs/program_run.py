"""One run of a program: all its generations, with or without lookahead, in the record of one
request.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from lr_sglang.algorithm.answer_request import AnswerRequest, derived_seed
from lr_sglang.algorithm.branches import DRAIN_SECONDS
from lr_sglang.engine.tokenizer import Tokenizer, resolve
from lr_sglang.errors import Cancelled, ConfigError, LookaheadError, PromptTooLong
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.executor import Executor
from lr_sglang.frontend.gen_options import strip_mark
from lr_sglang.sglang_api.interpreter import SglSamplingParams
from lr_sglang.steps.branch import Branch, Request, settle_reuse
from lr_sglang.steps.step import StepStop
from lr_sglang.steps.token_text import TokenText, joined
from lr_sglang.steps.trace import StepRecord, Trace
from lr_sglang.user_programs import generation_trace
from lr_sglang.user_programs.generation_trace import GenerationTrace

MAX_ASKED = 2**16  # number of different prompts


class Samples:
    """Numbers the requests with the same prompt, so that each has its own seed."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()

    def next(self, s: Executor) -> tuple[str, int]:
        """Counts a request: a digest of its prompt, and the number of earlier ones with it."""
        said = repr((s.text_, s.messages_)).encode("utf-8", "replace")
        question = hashlib.sha256(said).hexdigest()[:16]
        sample = self._asked.pop(question, 0)
        self._asked[question] = sample + 1  # now the last one
        if len(self._asked) > MAX_ASKED:  # limits the memory of a long-lived backend
            del self._asked[next(iter(self._asked))]
        return question, sample


class ProgramRun:
    """The generations of one run of a program. ``complete`` writes them to the request's record.

    Args:
        request: the answer's request; stopping it stops every generation.
        roles: the runtimes.
        continues: as ``Program.continues``.

    Attributes:
        own: the request that the program gets as ``request``; it has the same record.
        counts: number of generations with ``lookahead``, and of others by the reason.
        states: the program's states that have generated.
        errors: the failures of generations.
        shown: the beginning of the answer that was reported before the program ended.
    """

    def __init__(
        self, request: AnswerRequest, roles: Mapping[str, RuntimeBackend], continues: bool = False
    ) -> None:
        self.request = request
        self.own = dataclasses.replace(request, _wake=None)
        self.counts = Counter[str]()
        self._samples = Samples()
        self._seed = request.seed("program")
        self._continues = continues
        self._prompt_tokens: int | None = None  # before the first generation
        self.roles: dict[str, RecordingBackend] = {}
        self.roles.update(
            {role: RecordingBackend(backend, self) for role, backend in roles.items()}
        )
        self._loop = roles["target"].loop
        self._began = self._loop.time()
        self._parts: list[GenerationTrace] = []
        self._unsettled: deque[Branch] = deque()
        self._running: dict[int, AnswerRequest | Request] = {id(self.own): self.own}
        self.states = weakref.WeakSet[Executor]()
        self._changed = asyncio.Event()
        self._stopped = False
        self.errors: list[LookaheadError] = []
        self.shown = TokenText()
        self._returned = 0.0
        request.listen(lambda: self._loop.call_soon_threadsafe(self.stop))

    def now(self) -> float:
        return self._loop.time() - self._began

    def show(
        self,
        text: TokenText,
        tokenizer: Tokenizer,
        part: GenerationTrace | None = None,
        step: StepRecord | None = None,
    ) -> None:
        """Adds text to the shown answer, and calls the request's ``on_step`` with its step."""
        record = self.request.trace
        self.shown += text
        record.text += str.__str__(text)
        record.ids += resolve(text, tokenizer)
        if part is not None and step is not None:
            record.steps.append(part.moved(step, len(record.steps) - step.position))
            if self.request.on_step:
                self.request.on_step(record.steps[-1])

    def register(self, s: Executor) -> None:
        """Adds a state before it generates; raises ``ConfigError`` if its prompt is empty."""
        if (
            not s.messages_
            and s.cur_role in (None, "assistant")
            and not s.text_[s.cur_role_begin_pos or 0 :].strip()
        ):
            raise ConfigError(
                "the program writes without the conversation",
                hint="begin with lr.converse(s, messages)",
            )
        self.states.add(s)

    def identify(self, s: Executor) -> tuple[int, str, int]:
        """What the draws of a state's next generation follow from: seed, question and sample."""
        if self._continues:
            return self.request.sampling.seed, self.request.question, self.request.sample
        return self._seed, *self._samples.next(s)

    def _place(self, s: Executor, backend: RuntimeBackend) -> int:
        """The number of tokens of the answer before a state's next generation; the first call
        keeps the prompt's length, from which it counts.
        """
        if not self._continues:
            return 0
        tokens = len(backend.prompt_ids(s))
        self._prompt_tokens = tokens if self._prompt_tokens is None else self._prompt_tokens
        return tokens - self._prompt_tokens

    def stop(self) -> None:
        """Cancels the running generations, and makes new ones fail. Call it on the loop."""
        self._stopped = True
        for one in list(self._running.values()):
            one.stop() if isinstance(one, AnswerRequest) else one.cancel()

    async def close(self) -> None:
        """Cancels the generations that still run when a program has ended, and waits for
        their end.
        """
        self._returned = self.now()
        self.stop()
        for state in list(self.states):
            state.end()
        self._running.pop(id(self.own), None)
        with suppress(TimeoutError):  # a runtime hangs
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._running:
                    self._changed.clear()
                    await self._changed.wait()
        self.request.listen(None)

    @contextmanager
    def ahead(self, s: Executor, request: AnswerRequest) -> Iterator[GenerationTrace]:
        """One generation by lookahead reasoning. Its own draws are numbered from its beginning."""
        self._place(s, self.roles["target"].inner)
        self._enter(request)
        part = GenerationTrace(self.now(), "target", request.trace)
        try:
            yield part
        except LookaheadError as error:
            self.errors.append(error)
            raise
        finally:
            self._leave(request, part)

    @contextmanager
    def choosing(self, s: Executor) -> Iterator[None]:
        """Registers a ``select``, so that ``stop`` cancels it; it generates no text and is not
        recorded.
        """
        s.request = request = Request(key=self.request.key)
        self._enter(request)
        try:
            yield
        finally:
            self._leave(request)

    @contextmanager
    def generation(
        self, s: Executor, backend: RuntimeBackend, params: SglSamplingParams
    ) -> Iterator[GenerationTrace]:
        """One generation by a runtime alone, without lookahead; gives ``s`` its request, with the
        generation's seed, and records its branch.
        """
        # As ``AnswerRequest.seed`` of the same generation by lookahead, so that an exact verifier
        # gives the text that the target writes here.
        where = () if backend.role == "target" else (backend.role,)
        seed = derived_seed(*self.identify(s), *where)
        place = self._place(s, backend)
        branch = Branch(backend.role, 0, seed=seed, key=self.request.key, place=place)
        seeded = backend.facts.follows_seed(params.sent)
        part = GenerationTrace(
            self.now(), backend.role, Trace(branches=[branch], seeded=seeded), ahead=False
        )
        s.request = branch
        self._enter(branch)
        self._unsettled.append(branch)
        try:
            yield part
        finally:
            is_step = isinstance(params.stop, StepStop)
            part.note(self.now() - part.began, backend.tokenizer, is_step)
            if branch.error and backend.role != "target":
                part.trace.failed(backend.role, branch.error.removeprefix(f"{backend.role}: "))
            self._leave(branch, part)

    def _enter(self, one: AnswerRequest | Request) -> None:
        if self._stopped:
            raise Cancelled("stopped")
        self._running[id(one)] = one

    def _leave(self, one: AnswerRequest | Request, *made: GenerationTrace) -> None:
        self._parts += made
        self._running.pop(id(one), None)
        self._changed.set()

    def complete(self, text: TokenText | None, finish: str | None, target: RuntimeBackend) -> None:
        """Writes the request's record: the answer, the steps of the generations that are in it, and
        all branches.

        Args:
            text: the answer; None if the program has failed, so that the shown text is the answer.
            finish: the finish type of the answer; None for that of the last generation in it.
        """
        record = self.request.trace
        seconds = self._returned
        tokenizer = target.tokenizer
        if record.branches:  # the program used an ``Answer`` with its request
            own = TokenText.wrap(record.text)
            self._parts.append(
                GenerationTrace(0.0, "target", dataclasses.replace(record), given=own)
            )
            seconds = record.seconds if text in (None, own) else seconds
            text = own if text is None else text
        settle_reuse(self._unsettled, include_unfinished=True)
        made = sorted(self._parts, key=lambda part: part.began)
        answer = self.shown if text is None else text
        generation_trace.find_generations(made, answer)
        generations = generation_trace.write_generations(record, made)
        begun = record.ids if self.shown else ()  # the ids of shown text are in the record already
        record.text = joined(answer, tokenizer.vocabulary, tokenizer.decode)
        record.ids = begun + resolve(answer[len(self.shown) :], tokenizer)
        record.ids += generation_trace.end_of_sequence(made, answer, target.ends)
        record.finish = record.finish if finish is None else finish
        record.seconds = seconds
        record.drained = self.now()
        record.program = {"answered": dict(self.counts), "generations": generations}


class RecordingBackend:
    """A runtime's backend for one run of a program, which records its requests."""

    def __init__(self, inner: RuntimeBackend, run: ProgramRun) -> None:
        self.inner = inner
        self.run = run
        self.roles = run.roles

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def agenerate(self, s: Executor, params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """As ``RuntimeBackend.agenerate``; records a program's own generation, and limits its
        tokens.
        """
        if s.request is not None:  # a branch of an answer, which records it
            return await self.inner.agenerate(s, params)
        self.run.register(s)
        try:
            with self.inner.naming:
                strip_mark(params)
                params.max_new_tokens = min(params.max_new_tokens, self._room(s))
                if s.backend is self:  # otherwise the LookaheadBackend has counted it
                    self.run.counts[self.inner.role] += 1
                with self.run.generation(s, self.inner, params) as part:
                    text, meta = await self.inner.agenerate(s, params)
                    part.given = TokenText.wrap(text)
        except LookaheadError as error:
            self.run.errors.append(error)
            raise
        return text, meta

    def _room(self, s: Executor) -> int:
        prompt = len(self.inner.prompt_ids(s))
        room = self.run.request.limits.budget(prompt, self.inner.facts.context)
        if room < 1:
            raise PromptTooLong(
                f"the program's prompt has {prompt} tokens, which leaves no room for more"
            )
        return room

    async def aselect(self, s: Executor, *given: Any) -> Any:
        self.run.register(s)
        self.run.counts["select"] += 1
        with self.run.choosing(s):
            return await self.inner.aselect(s, *given)
