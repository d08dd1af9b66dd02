"""Answers in OpenAI's form, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from lr_sglang import __version__
from lr_sglang.frontend.stream_text import Kind
from lr_sglang.serve.engine import Item
from lr_sglang.serve.request_options import Order
from lr_sglang.serve.summary import Summary
from lr_sglang.steps.events import Event

FIELDS: Mapping[Kind, str] = {"content": "content", "reasoning": "reasoning_content"}


class Reply:
    """Builds what the client of one request gets.

    Args:
        request: its id.
        about: what the log says of the request; the summary is added.
    """

    def __init__(self, order: Order, model: str, request: str, about: dict[str, Any]) -> None:
        self.order, self.about = order, about
        kind = "chat.completion" if order.chat else "text_completion"
        self._head = {
            "id": ("chatcmpl-" if order.chat else "cmpl-") + request,
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"lr-sglang-{__version__}",
        }

    async def whole(self, items: AsyncGenerator[Item, None]) -> dict[str, Any]:
        """One object, at the end."""
        texts: dict[Kind, list[str]] = {"content": [], "reasoning": []}
        events: list[dict[str, Any]] = []
        end: Summary | None = None
        async with aclosing(items):
            async for item in items:
                if isinstance(item, list):
                    for piece in item:
                        texts[piece.kind].append(piece.text)
                elif isinstance(item, Event):
                    events.append(item.to_dict())
                else:
                    end = item
        assert end is not None
        self._note(end)
        text, thought = "".join(texts["content"]), "".join(texts["reasoning"])
        if self.order.chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            message |= {"reasoning_content": thought} if thought else {}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.finish}
        else:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": end.finish}
        about = end.lookahead | ({"trace": events} if self.order.trace else {})
        return {**self._head, "choices": [choice], "usage": end.usage, "lookahead": about}

    async def chunks(self, items: AsyncGenerator[Item, None]) -> AsyncGenerator[dict[str, Any], None]:
        """Objects as they come; those of a trace have no choices."""
        head = {**self._head, "object": "chat.completion.chunk" if self.order.chat else "text_completion"}
        if self.order.usage:
            head["usage"] = None
        first = self.order.chat
        async with aclosing(items):
            async for item in items:
                if first and not isinstance(item, Event):
                    first = False
                    yield {**head, "choices": [self._choice({"role": "assistant", "content": ""})]}
                for chunk in self._chunks(item):
                    yield {**head, **chunk}

    def _chunks(self, item: Item) -> Iterator[dict[str, Any]]:
        chat, usage = self.order.chat, self.order.usage
        if isinstance(item, Event):
            yield {"choices": [], "lookahead": {"event": item.to_dict()}}
        elif isinstance(item, list):
            for kind, text in item:
                yield {"choices": [self._choice({FIELDS[kind]: text} if chat else text)]}
        else:
            self._note(item)
            about = {} if usage else {"lookahead": item.lookahead}
            yield {"choices": [self._choice({} if chat else "", item.finish)], **about}
            if usage:
                yield {"choices": [], "usage": item.usage, "lookahead": item.lookahead}

    def _choice(self, delta: dict[str, str] | str, finish: str | None = None) -> dict[str, Any]:
        told = {"delta": delta} if self.order.chat else {"text": delta}
        return {"index": 0, **told, "logprobs": None, "finish_reason": finish}

    def _note(self, end: Summary) -> None:
        self.about |= {"tokens": end.usage["completion_tokens"], "prompt_tokens": end.usage["prompt_tokens"]}
        self.about |= {key: end.lookahead[key] for key in ("steps", "alpha", "degraded")}
        self.about["answer_seconds"] = end.lookahead["seconds"]  # without the queue
