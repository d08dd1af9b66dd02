"""What writes an answer, in pieces: a program of ours or the operator's, with lookahead reasoning
or by plain decoding (``LookaheadAnswer``); or the target alone, whose reply is passed back with our
model's name and the ``lookahead`` object (``PassedAnswer``).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from lr_sglang.api.runner import answer
from lr_sglang.delivery.stream_text import Chunk, Reasoning, StreamText
from lr_sglang.engine.client import says_too_long
from lr_sglang.engine.transport import DATA_FIELD, EventParser, Head, Post, object_in
from lr_sglang.errors import BadReply, Cancelled, ConfigError, RuntimeBusy, RuntimeRefused
from lr_sglang.serve.engine import AnswerEngine, Put
from lr_sglang.serve.errors import TOO_LONG, Refusal, told_by_server
from lr_sglang.serve.monitoring import RequestLine
from lr_sglang.serve.replies import Summary, WrittenText, cached_of, costs_of, usage_of
from lr_sglang.serve.requests import ClientRequest, PassedRequest, RenderedPrompt
from lr_sglang.serve.thinking import thinking_program
from lr_sglang.steps.branch import Request
from lr_sglang.user_programs.program import ProgramError

# The target's error statuses that the client has caused, and ours for them; the target has caused
# all others.
CLIENT_ERRORS = {400: 400, 404: 404, 413: 413, 415: 415, 422: 400}
_USAGE = b'"usage":'
_ERROR = DATA_FIELD + b'{"error":'


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
        request.constraints = asked.constraints
        self._tools = asked.ending.tools if asked.ending else ()
        self._held = ""  # what follows the thinking, where calls of tools are to be found in it
        self._seen = 0  # tokens that were given to ``_delivery``
        request.on_tokens = lambda ids: self._deliver(ids[self._seen - len(request.trace.ids) :])
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
                text, calls = await self._engine.endings.calls_in(self._tools, self._held)
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
        if (ending := asked.ending) is not None:
            program = thinking_program(ending, request.limits.max_tokens)
            said = ending.prompt
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


class PassedAnswer:
    """The body of the target's reply, in pieces: events of a stream, or the whole as one.

    Args:
        line: of the request in the log; the tokens are added, where the target counts them.
    """

    def __init__(self, engine: AnswerEngine, asked: PassedRequest, line: RequestLine) -> None:
        self._engine = engine
        self._asked = asked
        self._line = line
        self._name = ""

    async def write(self, put: Put) -> None:
        """Puts the pieces."""
        target = self._engine.roles["target"]
        request = Request()
        asked = self._asked
        self._name = await self._engine.target_name()
        post = asked.post(self._name)
        seconds = self._engine.service.timeout
        await target.slots.enter(request)
        try:
            async with aclosing(target.transport.forward(post, request, seconds)) as reply:
                head = await anext(reply)
                assert isinstance(head, Head)
                body = (piece async for piece in reply if isinstance(piece, bytes))
                streams = head.content_type.startswith("text/event-stream")
                if head.status == 200 and streams and asked.request.stream:
                    parser = EventParser()
                    async for piece in body:
                        for event in parser.feed(piece):
                            put(self._passed(event, post))
                    if parser.rest:
                        put(self._passed(parser.rest, post))
                    return
                whole = b"".join([piece async for piece in body])
            if head.status != 200:
                raise _refused(head.status, whole, post)
            if asked.request.stream or streams or (asked.route.reads and not _is_object(whole)):
                why = f"{post.path} does not answer in the form that it was asked for"
                raise BadReply(why, role="target")
            put(self._rewritten(whole))
        finally:
            target.slots.leave()

    def _passed(self, event: bytes, post: Post) -> bytes:
        """An event as the client gets it; raises the ``Refusal`` of an error in it."""
        if event.startswith(_ERROR):
            raise _refused_later(event, post)
        return self._rewritten(event)

    def _rewritten(self, piece: bytes) -> bytes:
        """A piece of the target's reply with our name of the model, and with the extension where
        the usage is.
        """
        ours = self._engine.service.model
        asked = self._asked
        if self._name != ours:
            # an adapter may follow
            named = rb'("model": ?)' + re.escape(orjson.dumps(self._name)[:-1]) + b'(?=[":])'
            piece = re.sub(named, lambda found: found[1] + orjson.dumps(ours)[:-1], piece)
        has_usage = _USAGE + b"{" in piece
        if has_usage:
            self._count(_usage(piece))
        is_last = not asked.request.stream or (has_usage and b'"choices":[]' in piece)
        if not asked.route.reads or not is_last:
            return piece
        end = piece.rindex(b"}")
        extension = orjson.dumps({"mode": asked.mode_name, "why": asked.why})
        return piece[:end] + b',"lookahead":' + extension + piece[end:]

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Counts the tokens of a usage, which some streams send more than once."""
        written = usage.get("completion_tokens", usage.get("output_tokens"))
        if isinstance(written, int):
            more = max(0, written - (self._line.tokens or 0))
            self._engine.metrics.tokens.labels("delivered").inc(more)
            self._line.tokens = written
        read = usage.get("prompt_tokens", usage.get("input_tokens"))
        if isinstance(read, int):
            self._line.prompt_tokens = read


async def passed_on(
    items: AsyncGenerator[tuple[int, bytes], None],
) -> AsyncGenerator[bytes, None]:
    """The pieces of the only answer."""
    async with aclosing(items):
        async for _, piece in items:
            yield piece


def _usage(piece: bytes) -> dict[str, Any]:
    """The usage in a reply, empty if it has none. No generated text can look like it: its quotes
    are escaped.
    """
    after = piece[piece.rindex(_USAGE) + len(_USAGE) :].decode()
    try:
        found, _ = json.JSONDecoder().raw_decode(after)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_object(body: bytes) -> bool:
    """Whether a body is a JSON object that is not empty, judged by its first and last character."""
    body = body.strip()
    return body.startswith(b"{") and body.endswith(b"}") and body != b"{}"


def _refused_later(event: bytes, post: Post) -> Refusal:
    """The error in a stream of the target's, which began with status 200."""
    body = object_in(event)
    try:
        status = int(orjson.loads(body)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        status = 500
    return _refused(status, body, post)


def _refused(status: int, body: bytes, post: Post) -> Refusal:
    """The target's error in our form. It has the target's message only if the client has
    caused it, and nothing of the target's machine.
    """
    if status not in CLIENT_ERRORS:
        kind = RuntimeBusy if status in (429, 503) else RuntimeRefused
        error = kind(f"{post.path}: {status}", role="target")
        error.status = status
        raise error
    try:
        said = orjson.loads(body)
    except ValueError:
        said = {}
    said = said.get("error", said) if isinstance(said, dict) else {}
    said = said if isinstance(said, dict) else {"message": said}
    unknown = f"The target refuses it with status {status}"
    message = str(said.get("message") or said.get("detail") or unknown)
    message, field = told_by_server(message, orjson.dumps(post.payload).decode())
    message = message or unknown
    param = said.get("param") if isinstance(said.get("param"), str) else field
    code = TOO_LONG if says_too_long(message) else None
    return Refusal(CLIENT_ERRORS[status], message, param=param, code=code)
