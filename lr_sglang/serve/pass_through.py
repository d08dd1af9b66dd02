"""Requests that the target answers alone: what is sent to one of its routes, within what the operator allows, and how
its reply is passed back.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field

from lr_sglang.engine.forwarding import Head, Post
from lr_sglang.engine.request import Request
from lr_sglang.errors import BadReply, RuntimeBusy, RuntimeRefused
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.protocol import Lenient, LookaheadRequest, Tokens
from lr_sglang.serve.reading import checked
from lr_sglang.serve.served_answer import END, ServedAnswer
from lr_sglang.serve.settings import Service
from lr_sglang.serve.target_routes import TargetRoute

if TYPE_CHECKING:
    from lr_sglang.serve.engine import AnswerEngine

PIECES = 64  # of a reply that wait for a client that reads slowly
# Errors of the target that are the client's, by their status, and ours for them; all others are the target's.
CLIENT_ERRORS = {400: 400, 404: 404, 413: 413, 415: 415, 422: 400}
_USAGE = b'"usage":'
MAX_ANSWERS, MAX_BATCH = 128, 2048  # of one request, as OpenAI's: answers, and inputs of routes that generate nothing
PROMPTS = (
    *("messages", "prompt", "input_ids", "tools"),
    *("input", "instructions", "system", "query", "items", "documents", "text", "tokens"),
)
# Fields that tell the server what to do with a request, not what to answer: the client's are left out.
STEERING = frozenset(
    (
        *("rid", "request_id", "session_id", "session_params", "priority", "custom_labels", "lookahead"),
        *("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
    )
)


class Common(Lenient):
    """The fields of a request to the target that the endpoint itself goes by."""

    model: str | None = Field(default=None, max_length=512)
    stream: bool | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    background: Literal[False] | None = Field(default=None, description="An answer ends with its client.")
    lookahead: LookaheadRequest | None = None
    custom_logit_processor: None = Field(default=None, description="Code, which no client may send.")


@dataclass(frozen=True)
class PassedRequest:
    """A request for one of the target's routes.

    Attributes:
        body: as the target gets it, but for the model's name.
        why: the fields that lookahead reasoning cannot follow.
        batch: inputs in a list.
        adapter: a LoRA adapter of the target's, with a colon before it; empty for none.
    """

    route: TargetRoute
    body: Mapping[str, Any]
    why: tuple[str, ...]
    stream: bool
    batch: int = 0
    adapter: str = ""

    mode_name: ClassVar[str] = "target"

    @property
    def extension(self) -> dict[str, Any]:
        """The ``lookahead`` object of the response."""
        return {"mode": self.mode_name, "why": list(self.why)}

    def post(self, model: str) -> Post:
        """What is sent, to a target that knows its model by this name."""
        rid = self.route.prefix + uuid.uuid4().hex  # clients see it, and name stored responses by it
        named = {"model": model + self.adapter} if "model" in self.body else {}
        own = {self.route.rid: rid} if self.route.rid else {}
        return Post(self.route.path, {**self.body, **named, **own}, rid, self.batch)

    def texts(self) -> Iterator[str | int]:
        """All texts and token ids of the prompt."""
        yield from _texts([self.body.get(name) for name in PROMPTS])


def passed_request(route: TargetRoute, body: Mapping[str, Any], why: Iterable[str], service: Service) -> PassedRequest:
    """A request for the target, within what the operator allows.

    Raises:
        Refusal: a field that the endpoint reads is wrong, another model is asked for, or too much at once.
    """
    common = checked(Common, body)
    model, colon, adapter = (common.model or "").partition(service.model)
    if common.model is not None and (model or not colon or adapter[:1] not in ("", ":")):
        raise refusal("model_not_found", param="model", asked=common.model, known=service.model)
    inputs = body.get(route.batch)
    batch = len(inputs) if isinstance(inputs, list) and not all(isinstance(one, int) for one in inputs) else 0
    answers, most = (batch or 1) * max(common.n or 1, common.best_of or 1), MAX_ANSWERS if route.limits else MAX_BATCH
    if answers > most:
        raise Refusal(400, f"{route.batch or 'n'}: at most {most} of one request", param=route.batch or "n")
    sent = {name: value for name, value in body.items() if name not in STEERING}
    if (limit := service.limits.max_tokens) and route.limits:
        field = next((name for name in route.limits if sent.get(name)), route.limits[-1])
        if sent.get(field) or route.unlimited:
            sent[field] = min(sent.get(field) or limit, limit)
    return PassedRequest(route, sent, tuple(why), bool(common.stream and route.limits), batch, adapter)


def _texts(value: Any) -> Iterator[str | int]:
    """All texts and token ids below a value of JSON; no image that is written as text."""
    match value:
        case str():
            yield value
        case bool():
            return
        case int():
            yield value
        case list():
            for one in value:
                yield from _texts(one)
        case dict():
            for name, one in value.items():
                if not name.endswith("_url"):
                    yield from _texts(one)


class PassedAnswer(ServedAnswer):
    """The body of the target's reply, in pieces: events of a stream, or the whole as one.

    Args:
        about: what the log says of the request; the tokens are added, where the target counts them.
    """

    def __init__(self, engine: AnswerEngine, asked: PassedRequest, about: dict[str, Any]) -> None:
        super().__init__(engine, PIECES)
        self.asked, self.about, self.name = asked, about, ""

    def prepare(self) -> None:
        """Counts the tokens of all texts in a request: the template's own, and images, come on top."""
        if (most := self.engine.service.max_prompt_tokens) is not None:
            encode = self.engine.roles["target"].tokenizer.encode
            tokens = sum(len(encode(one)) if isinstance(one, str) else 1 for one in self.asked.texts())
            if tokens > most:
                param = next((name for name in PROMPTS if name in self.asked.body), None)
                raise refusal("context_length_exceeded", param=param, tokens=tokens, most=most)

    async def make(self) -> None:
        target, request, asked = self.engine.roles["target"], Request(), self.asked
        self.name = await self.engine.target_name()
        await target.pool.enter(request)
        try:
            reply = target.transport.forward(asked.post(self.name), request, self.engine.service.timeout)
            async with aclosing(reply):
                head = await anext(reply)
                assert isinstance(head, Head)
                streams = head.content_type.startswith("text/event-stream")
                if head.status == 200 and streams and asked.stream:
                    async for event in _events(reply):
                        await self.ready.put(self._rewritten(event))
                else:
                    whole = b"".join([piece async for piece in reply if isinstance(piece, bytes)])
                    if head.status != 200:
                        raise refused(head.status, whole, asked.route.path)
                    if asked.stream or streams or (asked.route.reads and not _is_object(whole)):
                        message = f"{asked.route.path} does not answer in the form that it was asked for"
                        raise BadReply(message, role="target")
                    await self.ready.put(self._rewritten(whole))
        finally:
            target.pool.leave()
        await self.ready.put(END)

    def _rewritten(self, piece: bytes) -> bytes:
        """A piece of the target's reply with our name of the model, and with the extension where the usage is."""
        ours, asked = self.engine.service.model, self.asked
        if self.name != ours:
            named = rb'("model": ?)' + re.escape(orjson.dumps(self.name)[:-1]) + b'(?=[":])'  # an adapter's follows
            piece = re.sub(named, lambda found: found[1] + orjson.dumps(ours)[:-1], piece)
        if _USAGE + b"{" in piece:
            self._count(_usage(piece))
        if not asked.route.reads or (asked.stream and not (b'"choices":[]' in piece and _USAGE + b"{" in piece)):
            return piece
        end = piece.rindex(b"}")
        return piece[:end] + b',"lookahead":' + orjson.dumps(asked.extension) + piece[end:]

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Counts the tokens of a usage, which some streams send more than once."""
        for name, ours, theirs in (("tokens", "completion", "output"), ("prompt_tokens", "prompt", "input")):
            tokens = usage.get(f"{ours}_tokens", usage.get(f"{theirs}_tokens"))
            if isinstance(tokens, int):
                if name == "tokens":
                    self.engine.metrics.tokens.labels("delivered").inc(max(0, tokens - self.about.get(name, 0)))
                self.about[name] = tokens


async def _events(reply: AsyncGenerator[Head | bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events of a stream that comes in any pieces; what follows the last of them, too."""
    rest = b""
    async for piece in reply:
        assert isinstance(piece, bytes)
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            yield event + b"\n\n"
    if rest:
        yield rest


def _usage(piece: bytes) -> dict[str, Any]:
    """The usage in a reply; empty if it has none. A quotation mark in a text is escaped, so it is no text."""
    try:
        found, _ = json.JSONDecoder().raw_decode(piece[piece.rindex(_USAGE) + len(_USAGE) :].decode())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_object(body: bytes) -> bool:
    """Whether it is a JSON object with anything in it, as far as its ends tell."""
    body = body.strip()
    return body.startswith(b"{") and body.endswith(b"}") and body != b"{}"


def refused(status: int, body: bytes, path: str) -> Refusal:
    """The target's error in our form. Only an error of the client's is told in the target's words."""
    if status not in CLIENT_ERRORS:
        error = (RuntimeBusy if status in (429, 503) else RuntimeRefused)(f"{path}: {status}", role="target")
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
    message = str(said.get("message") or said.get("detail") or f"The target refuses it with status {status}")[:2000]
    param = said.get("param") if isinstance(said.get("param"), str) else None
    is_long = "context length" in message or "longer than the model" in message
    return Refusal(CLIENT_ERRORS[status], message, param=param, code="context_length_exceeded" if is_long else None)
