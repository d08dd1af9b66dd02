"""An answer that a program of ours, or the operator's, writes: with lookahead reasoning, or by
plain decoding.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import sglang as sgl

from lr_sglang.algorithm.answer import answering
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.errors import Cancelled, ConfigError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import run_program
from lr_sglang.frontend.stream_text import Chunk, Reasoning, StreamText
from lr_sglang.programs.lookahead import write_alone, write_answer
from lr_sglang.serve.engine import END, AnswerEngine, Put, ServedAnswer
from lr_sglang.serve.replies import Summary, Written, costs_of, usage_of
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
    _prompt: Prompt
    _timer: asyncio.TimerHandle

    def __init__(self, asked: Asked, engine: AnswerEngine, put: Put) -> None:
        super().__init__(engine, put)
        self._asked = asked
        self._job = job = engine.requests.make(
            asked.mode, asked.lookahead, asked.sampling, asked.limits, on_step=self._on_step
        )
        job.on_tokens, job.constraints = self._on_tokens, asked.constraints
        job.on_event = put if asked.request.wish.trace else None
        self._tools = asked.conclusion.tools if asked.conclusion else ()
        self._held = ""  # what follows the thinking, where calls of tools are to be found in it
        self._stopping, self._stops = False, 0  # by its client
        self._seen = 0  # tokens that were given to ``delivery``
        self._step_at = 0.0

    def prepare(self) -> None:
        asked, request, service = self._asked, self._asked.request, self.engine.service
        self._prompt = Prompt(asked, service, self.engine.roles["target"])
        thinks = service.reasoning == "on" and not request.thinks_not
        split = Reasoning(
            inside=self._prompt.thinks or thinks,
            split=asked.chat
            and service.reasoning != "off"
            and request.separate_reasoning is not False,
            whole=request.stream_reasoning is False,
        )
        keep_stop = bool(request.no_stop_trim)
        self.delivery = StreamText(self._prompt.decode, request.stop or (), split, keep_stop)

    async def write(self) -> None:
        self._look()
        try:
            await self._run()
        except Cancelled:
            if not self.delivery.stopped:
                raise
        except ConfigError as error:
            # the request was checked before: the operator's program or verifier is wrong
            raise ProgramError(error.message, role=error.role, hint=error.hint) from error
        finally:
            self._timer.cancel()
        self._tell(self.delivery.rest())
        calls: list[dict[str, Any]] = []
        if self._held:
            text, calls = await self.engine.thinking.calls_in(self._tools, self._held)
            self._put_written([Chunk("content", text)] if text else [])
        self.put(self._summary(calls))

    async def _run(self) -> None:
        """Runs the program that writes it."""
        engine, asked, job = self.engine, self._asked, self._job
        ahead, program = asked.mode.ahead, engine.program
        said = self._prompt.said
        if (conclusion := asked.conclusion) is not None:
            program, said = concluding(conclusion, job.limits.max_tokens), conclusion.prompt
        if program is None:
            target = engine.roles["target"]
            await run_program(answer_request, self._prompt, job, ahead, backend=target)
            return
        await perform(program, said, job, engine.backend(job.lookahead, ahead))
        if job.record.ids:
            self._on_step(None)  # delivers the tokens of the record that are in no step

    def count(self) -> None:
        end = self._summary()
        self.engine.metrics.ended(end.trace, end.text.tokens, end.costs, end.degraded)

    def _look(self, complete: bool = False) -> None:
        """Delivers a complete answer even if a runtime does not end its requests: after
        ``PATIENCE``, or twice that.
        """
        if complete:
            self._tell(self.delivery.rest())
            self.put(self._summary())
            self.put(END)
            return
        # an operator's program may go on after an answer of its own
        ours = self.engine.program is None and not self._tools
        complete = ours and bool(self.delivery.stopped or self._job.record.finish)
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._look, complete)

    def stop(self) -> None:
        """Aborts the requests, repeatedly until the answer has ended; after some tries closes their
        connections.
        """
        self._stopping = True
        if self.task.done():
            return
        self._job.stop()
        self._stops += 1
        for branch in self._job.record.branches if self._stops > HANG_UP_AFTER else ():
            if branch.cancelled:
                branch.close_connection()
        if not self.began or self._stops % CANCEL_AFTER == 0:
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
        """Puts the text of the answer's next tokens, of which the last have none.

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
        if self._tools:
            self._held += "".join(one.text for one in chunks if one.kind == "content")
            chunks = [one for one in chunks if one.kind != "content"]
        self._put_written(chunks)

    def _put_written(self, chunks: list[Chunk]) -> None:
        if chunks:
            said, prompt = self.delivery, self._job.record.prompt_tokens
            self.put(Written(chunks, usage_of(prompt, said.tokens, said.reasoning_tokens)))

    def _summary(self, calls: Sequence[dict[str, Any]] = ()) -> Summary:
        trace, written = self._job.record, self.delivery.tokens
        # the judge is not asked for a while after a failure, which counts as one failure only
        resting = any(
            verdict is not None and verdict.failed and verdict.by != "draft"
            for step in trace.steps
            for verdict in step.verdicts
        )
        missing = not self._job.drafts or bool(trace.failures) or resting
        missing = missing or self.engine.health.disturbed(self.began)
        degraded = self._asked.mode.ahead and missing
        return Summary(trace, self.delivery, costs_of(trace, written), degraded, calls)
