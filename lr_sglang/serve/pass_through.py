"""Answers of the target's own routes: what lookahead reasoning cannot follow is passed on, and its reply passed back.

A request passed on takes a place of the endpoint and a slot of the target, and ends with its client, as any answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from lr_sglang.engine.forwarding import Head
from lr_sglang.engine.request import Request
from lr_sglang.errors import BadReply, LookaheadError, RuntimeBusy, RuntimeRefused
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.serve.admission import Admission
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.health import Health
from lr_sglang.serve.logs import log, where
from lr_sglang.serve.metrics import Metrics
from lr_sglang.serve.passed_request import PROMPTS, PassedRequest
from lr_sglang.serve.settings import Service

PIECES = 64  # of a reply that wait for a client that reads slowly
LIST_SECONDS = 2.0  # for the target to list its models
# Errors of the target that are the client's, and ours for them; all others are the target's.
CLIENTS = {400: 400, 404: 404, 413: 413, 415: 415, 422: 400}
_USAGE = b'"usage":'


class PassThrough:
    """Passes requests on, and their replies back. Belongs to the event loop."""

    def __init__(
        self, roles: Mapping[str, RuntimeBackend], service: Service, metrics: Metrics, health: Health, places: Admission
    ) -> None:
        self._roles, self._service, self._metrics, self._health = roles, service, metrics, health
        self._admission, self._name = places, ""
        self._running: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Requests that the target is answering."""
        return len(self._running)

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Of those requests."""
        return set(self._running)

    def stop(self) -> None:
        """Stops them."""
        for task in self._running:
            task.cancel()

    async def answer(self, asked: PassedRequest, about: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """The body of the target's reply, in pieces: events of a stream, or the whole as one.

        Leaving it, by a failure or by ``aclose``, stops the target at once.

        Args:
            about: what the log says of the request; the tokens are added, where the target says how many.

        Raises:
            Refusal: the target does not answer, or not to its end.
        """
        began = time.monotonic()
        deadline = asyncio.get_running_loop().time() + self._service.timeout
        if self._health.watches["target"].down:
            raise refusal("target_down")
        self._admission.check()
        try:
            async with asyncio.timeout_at(deadline):
                if self._service.max_prompt_tokens is not None:
                    await asyncio.to_thread(self._check_prompt, asked, self._service.max_prompt_tokens)
                await self._admission.enter()
            pieces: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(PIECES)
            task = self._start(asked, pieces)
            first = True
            try:
                while True:
                    async with asyncio.timeout_at(deadline):
                        piece = await pieces.get()
                    if isinstance(piece, BaseException):
                        raise refusal_of(piece) from piece
                    if piece is None:
                        self._metrics.seconds.observe(time.monotonic() - began)
                        return
                    if first:
                        self._metrics.first_step.observe(time.monotonic() - began)
                        first = False
                    yield self._rewritten(piece, asked, about)
            finally:
                task.cancel()
        except TimeoutError:
            raise refusal("timeout", seconds=self._service.timeout) from None

    def _start(self, asked: PassedRequest, pieces: asyncio.Queue[bytes | BaseException | None]) -> asyncio.Task[None]:
        """The target's reply is read in a task of its own, which can be cancelled when the target hangs."""
        task, began = asyncio.create_task(self._forward(asked, pieces)), time.monotonic()

        def ended(done: asyncio.Task[None]) -> None:
            self._running.discard(done)
            self._admission.leave(time.monotonic() - began)
            if pieces.full():
                pieces.get_nowait()  # the reply is not complete: one piece less is no matter
            error = refusal("shutting_down") if done.cancelled() else done.exception()
            if error is not None and not isinstance(error, LookaheadError):
                log("internal error", logging.ERROR, error=type(error).__name__, where=where(error))
            pieces.put_nowait(error)

        self._running.add(task)
        task.add_done_callback(ended)
        return task

    async def _forward(self, asked: PassedRequest, pieces: asyncio.Queue[bytes | BaseException | None]) -> None:
        target, request = self._roles["target"], Request()
        post = asked.post(await self._target_name())
        await target.pool.enter(request)
        try:
            reply = target.transport.forward(post, request, self._service.timeout)
            async with aclosing(reply):
                head = await anext(reply)
                assert isinstance(head, Head)
                streams = head.content_type.startswith("text/event-stream")
                if head.status == 200 and streams and asked.stream:
                    async for event in _events(reply):
                        await pieces.put(event)
                    return
                whole = b"".join([piece async for piece in reply if isinstance(piece, bytes)])
                if head.status != 200:
                    raise refused(head.status, whole, asked.route.path)
                if asked.stream or streams or (asked.route.extended and not _is_object(whole)):
                    message = f"{asked.route.path} does not answer in the form that it was asked for"
                    raise BadReply(message, role="target")
                await pieces.put(whole)
        finally:
            target.pool.leave()

    async def adapters(self) -> list[str]:
        """The LoRA adapters of the target, as requests name them; none while it does not say."""
        if not self._service.passes or self._health.watches["target"].down:
            return []
        try:
            listed = await self._roles["target"].transport.get("/v1/models", LIST_SECONDS)
            return [f"{self._service.model}:{one['id']}" for one in listed.get("data", [])[1:]]
        except (LookaheadError, LookupError, TypeError):
            return []

    async def _target_name(self) -> str:
        """By which the target knows its model."""
        if not self._name:
            listed = await self._roles["target"].transport.get("/v1/models")
            try:
                self._name = str(listed["data"][0]["id"])
            except (LookupError, TypeError) as error:
                raise BadReply("/v1/models lists no model", role="target") from error
        return self._name

    def _rewritten(self, piece: bytes, asked: PassedRequest, about: dict[str, Any]) -> bytes:
        """A piece of the target's reply with our name of the model, and with the extension where the usage is."""
        if self._name != self._service.model:
            named = rb'("model": ?)' + re.escape(orjson.dumps(self._name)[:-1]) + b'(?=[":])'  # an adapter's follows
            piece = re.sub(named, lambda found: found[1] + orjson.dumps(self._service.model)[:-1], piece)
        if _USAGE + b"{" in piece:
            self._count(_usage(piece), about)
        if not asked.route.extended or (asked.stream and not (b'"choices":[]' in piece and _USAGE + b"{" in piece)):
            return piece
        end = piece.rindex(b"}")
        return piece[:end] + b',"lookahead":' + orjson.dumps(asked.extension) + piece[end:]

    def _count(self, usage: Mapping[str, Any], about: dict[str, Any]) -> None:
        """Counts the tokens of a usage; some streams tell it more than once."""
        for name, ours, theirs in (("tokens", "completion", "output"), ("prompt_tokens", "prompt", "input")):
            tokens = usage.get(f"{ours}_tokens", usage.get(f"{theirs}_tokens"))
            if isinstance(tokens, int):
                if name == "tokens":
                    self._metrics.tokens.labels("delivered").inc(max(0, tokens - about.get(name, 0)))
                about[name] = tokens

    def _check_prompt(self, asked: PassedRequest, most: int) -> None:
        """Counts the tokens of all texts in a request: the template's own, and images, come on top.

        Raises:
            Refusal: these are more than the operator allows.
        """
        encode = self._roles["target"].tokenizer.encode
        tokens = sum(len(encode(one)) if isinstance(one, str) else 1 for one in asked.texts())
        if tokens > most:
            param = next(name for name in PROMPTS if name in asked.body)
            raise refusal("context_length_exceeded", param=param, tokens=f"at least {tokens}", most=most)


async def _events(reply: AsyncGenerator[Head | bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events of a stream, each with the empty line after it; at its end what is left."""
    rest = b""
    async for piece in reply:
        assert isinstance(piece, bytes)
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            yield event + b"\n\n"
    if rest:
        yield rest


def _usage(piece: bytes) -> dict[str, Any]:
    """The usage that a reply tells; empty if it does not. A quotation mark in a text is escaped, so it is no text."""
    at = piece.rfind(_USAGE)
    if at < 0:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(piece[at + len(_USAGE) :].decode())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_object(body: bytes) -> bool:
    """Whether it is a JSON object with anything in it, as far as its ends tell."""
    return body.lstrip().startswith(b"{") and body.rstrip().endswith(b"}") and body.strip() != b"{}"


def refused(status: int, body: bytes, path: str) -> Refusal:
    """The target's error in our form. What a client is not to blame for is not told in the target's words."""
    if status in CLIENTS:
        try:
            said = orjson.loads(body)
            said = said.get("error", said) if isinstance(said, dict) else {}
            said = said if isinstance(said, dict) else {"message": said}
        except ValueError:
            said = {}
        message = str(said.get("message") or said.get("detail") or f"The target refuses it with status {status}")[:2000]
        param = said.get("param")
        long = "context length" in message or "longer than the model" in message
        code = "context_length_exceeded" if long else None
        return Refusal(CLIENTS[status], message, param=param if isinstance(param, str) else None, code=code)
    kind = RuntimeBusy if status in (429, 503) else RuntimeRefused
    error = kind(f"{path}: {status}", role="target")
    error.status = status
    found = refusal_of(error)
    found.__cause__ = error
    return found
