"""An answer of the target alone: its reply, passed back with our model's name and the ``lookahead``
object.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from lr_sglang.engine import sse
from lr_sglang.engine.client import says_too_long
from lr_sglang.engine.transport import Head, Post
from lr_sglang.errors import BadReply, RuntimeBusy, RuntimeRefused
from lr_sglang.serve.engine import AnswerEngine, Put
from lr_sglang.serve.errors import TOO_LONG, Refusal, told_by_server
from lr_sglang.serve.monitoring import RequestLine
from lr_sglang.serve.requests import PassedRequest
from lr_sglang.steps.branch import Request

# The target's error statuses that the client has caused, and ours for them; the target has caused
# all others.
CLIENT_ERRORS = {400: 400, 404: 404, 413: 413, 415: 415, 422: 400}
_USAGE = b'"usage":'
_ERROR = sse.DATA_FIELD + b'{"error":'


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
                    parser = sse.EventParser()
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
    body = sse.object_in(event)
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
