"""An answer that a program of ours, or the operator's, writes: with lookahead reasoning, or by
plain decoding.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.errors import Cancelled, ConfigError
from lr_sglang.frontend.dsl import run_program
from lr_sglang.frontend.stream_text import Chunk, Reasoning, StreamText
from lr_sglang.serve.engine import AnswerEngine
from lr_sglang.serve.program import answer_request, for_program
from lr_sglang.serve.prompt import Prompt, prepare
from lr_sglang.serve.replies import Item, Summary, UsageSoFar, costs_of, usage_of
from lr_sglang.serve.request_options import RequestOptions
from lr_sglang.serve.served_answer import END, ServedAnswer
from lr_sglang.serve.thinking import with_calls
from lr_sglang.steps.trace import StepRecord
from lr_sglang.user_programs.program import ProgramError

STOP_AGAIN = 0.1  # seconds until ``stop`` is repeated for an answer that has not ended
HANG_UP_AFTER = (
    5  # stops, before connections are closed: a runtime obeys an abort within milliseconds
)
CANCEL_AFTER = (
    150  # stops, before a program is cancelled that waits for something other than a generation
)
PATIENCE = 1.0  # seconds that a complete answer waits for its runtimes to end its last requests


class LookaheadAnswer(ServedAnswer):
    """One answer, in pieces: the chunks of a step, an event if events are wanted, at the end the
    summary.
    """

    job: AnswerRequest
    prompt: Prompt
    delivery: StreamText
    _timer: asyncio.TimerHandle

    def __init__(self, engine: AnswerEngine, options: RequestOptions) -> None:
        super().__init__(engine)
        self.options, self.step_at = options, 0.0
        self.costs: dict[str, int] | None = None
        self.cut = self.stopping = False  # by a stop string; by its client
        self.stops = self.seen = 0  # ``seen``: tokens that were given to ``delivery``

    def pieces(self) -> AsyncGenerator[Item, None]:
        conclusion = self.options.conclusion
        if conclusion is None or not conclusion.tools:
            return super().pieces()
        return with_calls(
            super().pieces(), partial(self.engine.thinking.calls_in, conclusion.tools)
        )

    def prepare(self) -> None:
        if self.engine.operator_program is not None:
            self.options = for_program(self.options)
        self.prompt = prepare(self.options, self.engine.roles["target"], self.engine.service)

    def begin(self) -> None:
        options, reasoning = self.options, self.engine.service.reasoning
        inside = self.prompt.thinks or (reasoning == "on" and not options.thinks_not)
        told = options.chat and reasoning != "off" and options.text.reasoning
        split = Reasoning(inside, split=told, whole=options.text.reasoning_whole)
        self.delivery = StreamText(
            self.prompt.decode, options.stops, split, keep_stop=options.text.keep_stop
        )
        self.job = self.engine.requests.make(
            options.mode, options.lookahead, options.sampling, options.limits
        )
        self.job.on_step, self.job.on_tokens = self._on_step, self._on_tokens
        self.job.constraints = options.constraints
        if options.trace:
            self.job.on_event = self.ready.put_nowait
        self._look()

    async def make(self) -> None:
        engine, job, asked, ahead = (
            self.engine,
            self.job,
            self.prompt.asked,
            self.options.mode.ahead,
        )
        try:
            if (conclusion := self.options.conclusion) is not None:
                given = {"grammar": conclusion.grammar, "most": job.limits.max_tokens}
                await engine.concluding.answer(asked, job, ahead, **given)
            elif engine.operator_program is not None:
                await engine.operator_program.answer(asked, job, ahead)
            else:
                await run_program(answer_request, asked, job, ahead, backend=engine.roles["target"])
        except Cancelled:
            if not self.delivery.stopped:
                raise
        except (
            ConfigError
        ) as error:  # the request was checked before: the operator's program or verifier is wrong
            raise ProgramError(error.message, role=error.role, hint=error.hint) from error
        finally:
            self.costs = costs_of(job.record, self.delivery.tokens)

    def complete(self, error: BaseException | None) -> None:
        self._timer.cancel()
        self.engine.metrics.ended(
            self.job.record, self.delivery.tokens, self._costs(), self._degraded()
        )
        if error is None:
            self._finish()
        else:
            self.end(error)

    def _look(self, complete: bool = False) -> None:
        """Delivers a complete answer even if a runtime does not end its requests: after
        ``PATIENCE``, or twice that.
        """
        if complete:
            self._finish()
            return
        # an operator's program may go on after an answer of its own
        complete = self.cut or bool(self.job.record.finish and self.engine.operator_program is None)
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._look, complete)

    def stop(self) -> None:
        """Aborts the requests, repeatedly until the answer has ended; after some tries closes their
        connections.
        """
        self.stopping = True
        if self.task is not None and self in self.engine.running:
            self.job.stop()
            self.stops += 1
            if self.stops > HANG_UP_AFTER:
                for request in [branch.request for branch in self.job.record.branches]:
                    if request is not None and request.cancelled:
                        request.close_connection()
            if self.stops % CANCEL_AFTER == 0:
                self.task.cancel()
            asyncio.get_running_loop().call_later(STOP_AGAIN, self.stop)

    def _on_step(self, step: StepRecord | None) -> None:
        before, self.step_at = self.step_at, time.monotonic()
        if before:
            self.engine.metrics.step.observe(self.step_at - before)
        record = self.job.record
        written = record.ids[self.seen :]
        own = written
        if record.steps:
            stops = set(self.options.constraints.stop_token_ids)
            ends = self.engine.roles["target"].ends | stops
            own = record.steps[-1].spoken(written, ends)
        self._deliver(own, len(written) - len(own))

    def _on_tokens(self, ids: Sequence[int]) -> None:
        self._deliver(ids[self.seen - len(self.job.record.ids) :])

    def _deliver(self, ids: Sequence[int], silent: int = 0) -> None:
        """Queues the text of the answer's next tokens, of which the last have none.

        Raises:
            Cancelled: the answer was stopped, or a stop string was written.
        """
        if self.stopping:
            raise Cancelled("stopped")
        self.seen += len(ids) + silent
        self._tell(self.delivery.add(ids, silent))
        if self.delivery.stopped:
            self.cut = True
            raise Cancelled("a stop string was written")

    def _tell(self, chunks: list[Chunk]) -> None:
        if chunks and self.options.usage_so_far:
            said = self.delivery
            usage = usage_of(self.job.record.prompt_tokens, said.tokens, said.reasoning_tokens)
            self.ready.put_nowait(UsageSoFar(usage))
        if chunks:
            self.ready.put_nowait(chunks)

    def _finish(self) -> None:
        """Queues the end of an answer that is complete or was cut at a stop string."""
        self._tell(self.delivery.rest())
        self.ready.put_nowait(
            Summary(self.options, self.job.record, self.delivery, self._costs(), self._degraded())
        )
        self.ready.put_nowait(END)

    def _costs(self) -> dict[str, int]:
        return self.costs or costs_of(self.job.record, self.delivery.tokens)

    def _degraded(self) -> bool:
        """Whether draft or judge was missing, at least for a while."""
        trace, ahead = self.job.record, self.options.mode.ahead
        # the judge is not asked for a while after a failure, which counts as one failure only
        resting = any(
            verdict is not None and verdict.failed and verdict.by != "draft"
            for step in trace.steps
            for verdict in step.verdicts
        )
        failed = not self.job.drafts or bool(trace.failures) or resting
        return ahead and (failed or self.engine.health.disturbed(self.began))
