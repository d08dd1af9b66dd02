"""An answer that a program of ours, or the operator's, writes: with lookahead reasoning, or by
plain decoding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lr_sglang.api.runner import answer
from lr_sglang.delivery.stream_text import Chunk, Reasoning, StreamText
from lr_sglang.errors import Cancelled, ConfigError
from lr_sglang.serve.engine import AnswerEngine, Put
from lr_sglang.serve.replies import Summary, WrittenText, cached_of, costs_of, usage_of
from lr_sglang.serve.requests import ClientRequest, RenderedPrompt
from lr_sglang.serve.thinking import concluding
from lr_sglang.user_programs.program import ProgramError


async def write_pieces(
    engine: AnswerEngine, asked: ClientRequest, prompt: RenderedPrompt, put: Put
) -> None:
    """Writes one answer, in pieces: what a step has written, an event if events are wanted, at the
    end the summary.
    """
    await LookaheadAnswer(engine, asked, prompt, put).write()


class LookaheadAnswer:
    """One answer that is being written."""

    def __init__(
        self, engine: AnswerEngine, asked: ClientRequest, prompt: RenderedPrompt, put: Put
    ) -> None:
        self._engine = engine
        self._asked = asked
        self._prompt = prompt
        self._put = put
        self._request = request = engine.requests.make(
            asked.mode,
            asked.lookahead,
            asked.sampling,
            asked.limits,
            on_step=lambda _: self._deliver_kept(),
            on_event=put if asked.request.wish.trace else None,
        )
        request.on_tokens = self._on_tokens
        request.constraints = asked.constraints
        self._tools = asked.conclusion.tools if asked.conclusion else ()
        self._held = ""  # what follows the thinking, where calls of tools are to be found in it
        self._seen = 0  # tokens that were given to ``_delivery``
        self._began = time.monotonic()
        self._step_at = 0.0
        self._delivery = _delivery(engine, asked, prompt)

    async def write(self) -> None:
        calls: list[dict[str, Any]] = []
        try:
            try:
                await self._run()
            except Cancelled:
                if not self._delivery.stopped:
                    raise
            self._tell(self._delivery.rest())
            if self._held:
                text, calls = await self._engine.thinking.calls_in(self._tools, self._held)
                self._put_written([Chunk("content", text)] if text else [])
        finally:
            end = self._summary(calls)
            self._engine.metrics.ended(end.trace, end.text.tokens, end.costs, end.degraded)
        self._put(end)

    async def _run(self) -> None:
        """Runs the program that writes it."""
        engine = self._engine
        asked = self._asked
        request = self._request
        program = engine.program
        said = self._prompt.said if engine.program else self._prompt
        if (conclusion := asked.conclusion) is not None:
            program = concluding(conclusion, request.limits.max_tokens)
            said = conclusion.prompt
        try:
            await answer(program, asked.mode, said, request, engine.requests)
        except ConfigError as error:
            # the request was checked before: the operator's program or verifier is wrong
            raise ProgramError(error.message, role=error.role, hint=error.hint) from error
        if program is not None and request.trace.ids:
            self._deliver_kept()  # the tokens of the record that are in no step

    def _deliver_kept(self) -> None:
        """Delivers what the record has, and the client has not got."""
        before = self._step_at
        self._step_at = time.monotonic()
        if before:
            self._engine.metrics.step.observe(self._step_at - before)
        record = self._request.trace
        own = written = record.ids[self._seen :]
        if record.steps:
            ends = self._engine.roles["target"].ends | set(self._asked.constraints.stop_token_ids)
            own = record.steps[-1].spoken(written, ends)
        self._deliver(own, len(written) - len(own))

    def _on_tokens(self, ids: Sequence[int]) -> None:
        self._deliver(ids[self._seen - len(self._request.trace.ids) :])

    def _deliver(self, ids: Sequence[int], silent: int = 0) -> None:
        """Puts the text of the answer's next tokens, of which the last have none.

        Raises:
            Cancelled: a stop string was written.
        """
        self._seen += len(ids) + silent
        self._tell(self._delivery.add(ids, silent))
        if self._delivery.stopped:
            raise Cancelled("a stop string was written")

    def _tell(self, chunks: list[Chunk]) -> None:
        if self._tools:
            self._held += "".join(one.text for one in chunks if one.kind == "content")
            chunks = [one for one in chunks if one.kind != "content"]
        self._put_written(chunks)

    def _put_written(self, chunks: list[Chunk]) -> None:
        if chunks:
            said = self._delivery
            trace = self._request.trace
            counts = trace.prompt_tokens, said.tokens, said.reasoning_tokens
            self._put(WrittenText(chunks, usage_of(*counts, cached_of(trace))))

    def _summary(self, calls: Sequence[dict[str, Any]] = ()) -> Summary:
        trace = self._request.trace
        written = self._delivery.tokens
        # the judge is not asked for a while after a failure, which counts as one failure only
        resting = any(
            verdict is not None and verdict.failed and verdict.by != "draft"
            for step in trace.steps
            for verdict in step.verdicts
        )
        missing = not self._request.drafts or bool(trace.failures) or resting
        missing = missing or self._engine.health.disturbed(self._began)
        degraded = self._asked.mode.ahead and missing
        return Summary(trace, self._delivery, costs_of(trace, written), degraded, calls)


def _delivery(engine: AnswerEngine, asked: ClientRequest, prompt: RenderedPrompt) -> StreamText:
    """What makes the client's text of an answer's tokens."""
    request = asked.request
    service = engine.service
    inside = prompt.thinks or (service.reasoning == "on" and not request.thinks_not)
    split = Reasoning(
        inside=inside,
        split=asked.chat and service.reasoning != "off" and request.separate_reasoning is not False,
        markers=engine.roles["target"].tokenizer.thinking,
        whole=request.stream_reasoning is False,
    )
    thinks = False if service.stop_in_thinking else inside or None
    keep = bool(request.no_stop_trim)
    return StreamText(prompt.decode, request.stop or (), split, keep, thinks)
