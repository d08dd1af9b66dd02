"""Answers in OpenAI's form, whole and in chunks, with what they cost and what lookahead did for them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from lr_sglang import __version__
from lr_sglang.frontend.stream_text import Chunk, Kind, StreamText
from lr_sglang.serve.request_options import RequestOptions
from lr_sglang.steps.events import Event
from lr_sglang.steps.trace import Trace

FIELDS: Mapping[Kind, str] = {"content": "content", "reasoning": "reasoning_content"}


def costs_of(trace: Trace, delivered: int) -> dict[str, int]:
    """Tokens of all branches of an answer: ``drafted`` by the draft, ``wasted`` by both writers, ``cached`` of prompts.

    Takes a while: not for the event loop.

    Args:
        delivered: tokens that the client got.
    """
    counts = trace.tokens()
    cached = sum(counts[role]["cached"] for role in ("target", "draft", "judge"))
    wasted = max(0, counts["generated"] - delivered)
    return {"drafted": counts["draft"]["generated"], "wasted": wasted, "cached": cached}


@dataclass(frozen=True)
class Summary:
    """The end of an answer.

    Attributes:
        finish: ``stop`` or ``length``.
        usage: in OpenAI's form; counts only what was delivered.
        lookahead: the extension.
    """

    finish: str
    usage: dict[str, Any]
    lookahead: dict[str, Any]

    @classmethod
    def of(cls, mode: str, trace: Trace, text: StreamText, costs: Mapping[str, int], degraded: bool) -> Summary:
        """The end of an answer of which the client got ``text``."""
        usage = {
            "prompt_tokens": trace.prompt_tokens,
            "completion_tokens": text.tokens,
            "total_tokens": trace.prompt_tokens + text.tokens,
            "completion_tokens_details": {"reasoning_tokens": text.reasoning_tokens},
        }
        about = {
            "mode": mode,
            "degraded": degraded,
            "steps": len(trace.steps),
            "alpha": trace.alpha,
            **{f"{kind}_tokens": tokens for kind, tokens in costs.items()},
            "seconds": round(trace.seconds, 4),
        }
        return cls("stop" if text.stopped else trace.finish, usage, about)


# The pieces of one step, an event that the client asked for, or the end.
Item = list[Chunk] | Event | Summary


class Reply:
    """Builds what the client of one request gets.

    Args:
        request: its id.
        about: what the log says of the request; the summary is added.
    """

    def __init__(self, options: RequestOptions, model: str, request: str, about: dict[str, Any]) -> None:
        self.options, self.about = options, about
        kind = "chat.completion" if options.chat else "text_completion"
        self._head = {
            "id": ("chatcmpl-" if options.chat else "cmpl-") + request,
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
        if self.options.chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            message |= {"reasoning_content": thought} if thought else {}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.finish}
        else:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": end.finish}
        about = end.lookahead | ({"trace": events} if self.options.trace else {})
        return {**self._head, "choices": [choice], "usage": end.usage, "lookahead": about}

    async def chunks(self, items: AsyncGenerator[Item, None]) -> AsyncGenerator[dict[str, Any], None]:
        """Objects as they come; those of a trace have no choices."""
        head = {**self._head, "object": "chat.completion.chunk" if self.options.chat else "text_completion"}
        if self.options.usage:
            head["usage"] = None
        first = self.options.chat
        async with aclosing(items):
            async for item in items:
                if first and not isinstance(item, Event):
                    first = False
                    yield {**head, "choices": [self._choice({"role": "assistant", "content": ""})]}
                for chunk in self._chunks(item):
                    yield {**head, **chunk}

    def _chunks(self, item: Item) -> Iterator[dict[str, Any]]:
        chat, usage = self.options.chat, self.options.usage
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
        text = {"delta": delta} if self.options.chat else {"text": delta}
        return {"index": 0, **text, "logprobs": None, "finish_reason": finish}

    def _note(self, end: Summary) -> None:
        self.about |= {"tokens": end.usage["completion_tokens"], "prompt_tokens": end.usage["prompt_tokens"]}
        self.about |= {key: end.lookahead[key] for key in ("steps", "alpha", "degraded")}
        self.about["answer_seconds"] = end.lookahead["seconds"]  # without the queue
