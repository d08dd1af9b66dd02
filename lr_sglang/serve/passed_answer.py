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

from lr_sglang.engine.request import Request
from lr_sglang.engine.transport import Head
from lr_sglang.errors import BadReply, RuntimeBusy, RuntimeRefused
from lr_sglang.serve.engine import AnswerEngine
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.passed_request import PROMPTS, PassedRequest
from lr_sglang.serve.served_answer import END, ServedAnswer

# The target's error statuses that the client has caused, and ours for them; the target has caused
# all others.
CLIENT_ERRORS = {400: 400, 404: 404, 413: 413, 415: 415, 422: 400}
_USAGE = b'"usage":'


class PassedAnswer(ServedAnswer):
    """The body of the target's reply, in pieces: events of a stream, or the whole as one.

    Args:
        about: what the log says of the request; the tokens are added, where the target counts them.
    """

    def __init__(self, engine: AnswerEngine, asked: PassedRequest, about: dict[str, Any]) -> None:
        super().__init__(engine)
        self.asked, self.about, self.name = asked, about, ""

    def prepare(self) -> None:
        """Checks the length of the prompt by its texts alone, without the template's own tokens and
        images.
        """
        if (most := self.engine.service.max_prompt_tokens) is not None:
            encode = self.engine.roles["target"].tokenizer.encode
            tokens = sum(
                len(encode(one)) if isinstance(one, str) else 1 for one in self.asked.texts()
            )
            if tokens > most:
                param = next((name for name in PROMPTS if name in self.asked.body), None)
                raise refusal("context_length_exceeded", param=param, tokens=tokens, most=most)

    async def make(self) -> None:
        target, request, asked = self.engine.roles["target"], Request(), self.asked
        self.name = await self.engine.target_name()
        await target.pool.enter(request)
        try:
            reply = target.transport.forward(
                asked.post(self.name), request, self.engine.service.timeout
            )
            async with aclosing(reply):
                head = await anext(reply)
                assert isinstance(head, Head)
                streams = head.content_type.startswith("text/event-stream")
                if head.status == 200 and streams and asked.stream:
                    async for event in _events(reply):
                        self.ready.put_nowait(self._rewritten(event))
                else:
                    whole = b"".join([piece async for piece in reply if isinstance(piece, bytes)])
                    if head.status != 200:
                        raise refused(head.status, whole, asked.route.path)
                    if asked.stream or streams or (asked.route.reads and not _is_object(whole)):
                        message = (
                            f"{asked.route.path} does not answer in the form that it was asked for"
                        )
                        raise BadReply(message, role="target")
                    self.ready.put_nowait(self._rewritten(whole))
        finally:
            target.pool.leave()
        self.ready.put_nowait(END)

    def _rewritten(self, piece: bytes) -> bytes:
        """A piece of the target's reply with our name of the model, and with the extension where
        the usage is.
        """
        ours, asked = self.engine.service.model, self.asked
        if self.name != ours:
            named = (
                rb'("model": ?)' + re.escape(orjson.dumps(self.name)[:-1]) + b'(?=[":])'
            )  # an adapter may follow
            piece = re.sub(named, lambda found: found[1] + orjson.dumps(ours)[:-1], piece)
        if _USAGE + b"{" in piece:
            self._count(_usage(piece))
        if not asked.route.reads or (
            asked.stream and not (b'"choices":[]' in piece and _USAGE + b"{" in piece)
        ):
            return piece
        end = piece.rindex(b"}")
        return piece[:end] + b',"lookahead":' + orjson.dumps(asked.extension) + piece[end:]

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Counts the tokens of a usage, which some streams send more than once."""
        for name, ours, theirs in (
            ("tokens", "completion", "output"),
            ("prompt_tokens", "prompt", "input"),
        ):
            tokens = usage.get(f"{ours}_tokens", usage.get(f"{theirs}_tokens"))
            if isinstance(tokens, int):
                if name == "tokens":
                    self.engine.metrics.tokens.labels("delivered").inc(
                        max(0, tokens - self.about.get(name, 0))
                    )
                self.about[name] = tokens


async def _events(reply: AsyncGenerator[Head | bytes, None]) -> AsyncGenerator[bytes, None]:
    """Splits a stream, whose pieces may end anywhere, into its events; the rest after the last
    event comes last.
    """
    rest = b""
    async for piece in reply:
        assert isinstance(piece, bytes)
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            yield event + b"\n\n"
    if rest:
        yield rest


def _usage(piece: bytes) -> dict[str, Any]:
    """The usage in a reply, empty if it has none. No generated text can look like it: its quotes
    are escaped.
    """
    try:
        found, _ = json.JSONDecoder().raw_decode(
            piece[piece.rindex(_USAGE) + len(_USAGE) :].decode()
        )
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_object(body: bytes) -> bool:
    """Whether a body is a JSON object that is not empty, judged by its first and last character."""
    body = body.strip()
    return body.startswith(b"{") and body.endswith(b"}") and body != b"{}"


def refused(status: int, body: bytes, path: str) -> Refusal:
    """The target's error in our form. It has the target's message only if the client has
    caused it.
    """
    if status not in CLIENT_ERRORS:
        error = (RuntimeBusy if status in (429, 503) else RuntimeRefused)(
            f"{path}: {status}", role="target"
        )
        error.status = status
        found = refusal_of(error)
        found.__cause__ = error
        return found
    try:
        said = orjson.loads(body)
    except ValueError:
        said = {}
    said = said.get("error", said) if isinstance(said, dict) else {}
    said = said if isinstance(said, dict) else {"message": said}
    message = str(
        said.get("message") or said.get("detail") or f"The target refuses it with status {status}"
    )[:2000]
    param = said.get("param") if isinstance(said.get("param"), str) else None
    is_long = "context length" in message or "longer than the model" in message
    return Refusal(
        CLIENT_ERRORS[status],
        message,
        param=param,
        code="context_length_exceeded" if is_long else None,
    )
