"""An answer that a program of ours, or the operator's, writes: with lookahead reasoning, or by
plain decoding.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import sglang as sgl

from lr_sglang.algorithm.answer import answering
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.errors import Cancelled, ConfigError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import run_program
from lr_sglang.frontend.stream_text import Chunk, Reasoning, StreamText
from lr_sglang.programs.lookahead import write_alone, write_answer
from lr_sglang.serve.engine import AnswerEngine, ServedAnswer
from lr_sglang.serve.protocol import StreamOptions
from lr_sglang.serve.replies import Item, Summary, Written, costs_of, usage_of
from lr_sglang.serve.requests import Asked, Prompt
from lr_sglang.serve.thinking import concluding
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.trace import StepRecord
from lr_sglang.user_programs.program import ProgramError, perform

STOP_AGAIN = 0.1  # seconds until ``stop`` is repeated for an answer that has not ended
HANG_UP_AFTER = (
    5  # stops, before connections are closed: a runtime obeys an abort within milliseconds
)
CANCEL_AFTER = (
    150  # stops, before a program is cancelled that waits for something other than a generation
)
PATIENCE = 1.0  # seconds that a complete answer waits for its runtimes to end its last requests
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
    async with answering(s, job) as answer:
        if ahead:
            await write_answer(answer)
        while not answer.ended:
            await write_alone(answer, min(answer.tree.room(answer.tree.root), STREAMED))


class LookaheadAnswer(ServedAnswer):
    """One answer, in pieces: what a step has written, an event if events are wanted, at the end the
    summary.
    """

    delivery: StreamText
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, engine: AnswerEngine, asked: Asked) -> None:
        super().__init__(engine)
        self._asked, self._prompt = asked, Prompt(asked, engine.service)
        self._job = job = engine.requests.make(
            asked.mode, asked.lookahead, asked.sampling, asked.limits, on_step=self._on_step
        )
        job.on_tokens, job.constraints = self._on_tokens, asked.constraints
        if asked.request.wish.trace:
            job.on_event = self.ready.put_nowait
        self._stopping, self._stops = False, 0  # by its client
        self._seen = 0  # tokens that were given to ``delivery``
        self._step_at = 0.0

    def pieces(self) -> AsyncGenerator[Item, None]:
        conclusion = self._asked.conclusion
        if conclusion is None or not conclusion.tools:
            return super().pieces()
        return self.engine.thinking.with_calls(conclusion.tools, super().pieces())

    def prepare(self) -> None:
        request, prompt, reasoning = (
            self._asked.request,
            self._prompt,
            self.engine.service.reasoning,
        )
        prompt.prepare(self.engine.roles["target"])
        split = Reasoning(
            inside=prompt.thinks or (reasoning == "on" and not request.thinks_not),
            split=self._asked.chat
            and reasoning != "off"
            and request.separate_reasoning is not False,
            whole=request.stream_reasoning is False,
        )
        stops = request.stop or ()
        self.delivery = StreamText(prompt.decode, stops, split, bool(request.no_stop_trim))

    async def write(self) -> None:
        engine, asked, job = self.engine, self._asked, self._job
        ahead, program = asked.mode.ahead, engine.program
        said: Any = self._prompt.said
        if (conclusion := asked.conclusion) is not None:
            program, said = concluding(conclusion, job.limits.max_tokens), conclusion.prompt
        self._look()
        try:
            if program is not None:
                await perform(program, said, job, engine.backend(job.lookahead, ahead))
                if job.record.ids:
                    self._on_step(None)  # delivers the tokens of the record that are in no step
            else:
                target = engine.roles["target"]
                await run_program(answer_request, self._prompt, job, ahead, backend=target)
        except Cancelled:
            if not self.delivery.stopped:
                raise
        except ConfigError as error:
            # the request was checked before: the operator's program or verifier is wrong
            raise ProgramError(error.message, role=error.role, hint=error.hint) from error

    def complete(self, error: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        end = self._summary()
        self.engine.metrics.ended(end.trace, end.text.tokens, end.costs, end.degraded)
        if error is None:
            self._finish(end)
        else:
            super().complete(error)

    def _look(self, complete: bool = False) -> None:
        """Delivers a complete answer even if a runtime does not end its requests: after
        ``PATIENCE``, or twice that.
        """
        if complete:
            self._finish(self._summary())
            return
        # an operator's program may go on after an answer of its own
        own = self.engine.program is not None
        complete = bool(self.delivery.stopped or (self._job.record.finish and not own))
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._look, complete)

    def stop(self) -> None:
        """Aborts the requests, repeatedly until the answer has ended; after some tries closes their
        connections.
        """
        self._stopping = True
        if self.task is None or self.task.done():
            return
        self._job.stop()
        self._stops += 1
        for branch in self._job.record.branches if self._stops > HANG_UP_AFTER else ():
            if branch.cancelled:
                branch.close_connection()
        if self._stops % CANCEL_AFTER == 0:
            self.task.cancel()
        asyncio.get_running_loop().call_later(STOP_AGAIN, self.stop)

    def _on_step(self, step: StepRecord | None) -> None:
        before, self._step_at = self._step_at, time.monotonic()
        if before:
            self.engine.metrics.step.observe(self._step_at - before)
        record = self._job.record
        own = written = record.ids[self._seen :]
        if record.steps:
            ends = self.engine.roles["target"].ends | set(self._asked.constraints.stop_token_ids)
            own = record.steps[-1].spoken(written, ends)
        self._deliver(own, len(written) - len(own))

    def _on_tokens(self, ids: Sequence[int]) -> None:
        self._deliver(ids[self._seen - len(self._job.record.ids) :])

    def _deliver(self, ids: Sequence[int], silent: int = 0) -> None:
        """Queues the text of the answer's next tokens, of which the last have none.

        Raises:
            Cancelled: the answer was stopped, or a stop string was written.
        """
        if self._stopping:
            raise Cancelled("stopped")
        self._seen += len(ids) + silent
        self._tell(self.delivery.add(ids, silent))
        if self.delivery.stopped:
            raise Cancelled("a stop string was written")

    def _tell(self, chunks: list[Chunk]) -> None:
        if chunks:
            said, usage = self.delivery, None
            options = self._asked.request.stream_options or StreamOptions()
            if options.continuous_usage_stats:
                prompt = self._job.record.prompt_tokens
                usage = usage_of(prompt, said.tokens, said.reasoning_tokens)
            self.ready.put_nowait(Written(chunks, usage))

    def _finish(self, end: Summary) -> None:
        """Queues the end of an answer that is complete or was cut at a stop string."""
        self._tell(self.delivery.rest())
        self.ready.put_nowait(end)
        super().complete(None)

    def _summary(self) -> Summary:
        trace = self._job.record
        costs = costs_of(trace, self.delivery.tokens)
        # the judge is not asked for a while after a failure, which counts as one failure only
        resting = any(
            verdict is not None and verdict.failed and verdict.by != "draft"
            for step in trace.steps
            for verdict in step.verdicts
        )
        missing = not self._job.drafts or bool(trace.failures) or resting
        missing = missing or self.engine.health.disturbed(self.began)
        return Summary(trace, self.delivery, costs, self._asked.mode.ahead and missing)
