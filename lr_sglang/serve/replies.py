"""Answers in OpenAI's form, whole and in chunks, with what they cost and what lookahead did for them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from lr_sglang import __version__
from lr_sglang.frontend.stream_text import Chunk, Kind, StreamText
from lr_sglang.serve.request_options import RequestOptions
from lr_sglang.steps.events import Event
from lr_sglang.steps.step import Ending
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


def usage_of(prompt: int, written: int, thought: int) -> dict[str, Any]:
    """The usage of an answer, in SGLang's form."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": None,
        "completion_tokens_details": {"reasoning_tokens": thought} if thought else None,
        "reasoning_tokens": thought,
    }


@dataclass(frozen=True)
class Summary:
    """The end of an answer.

    Attributes:
        finish: ``stop`` or ``length``.
        usage: in SGLang's form; counts only what was delivered.
        lookahead: the extension.
        matched: what ended it: a stop string, or the token that ends a sequence.
    """

    finish: str
    usage: dict[str, Any]
    lookahead: dict[str, Any]
    matched: str | int | None = None

    @classmethod
    def of(
        cls, options: RequestOptions, trace: Trace, text: StreamText, costs: Mapping[str, int], degraded: bool
    ) -> Summary:
        """The end of an answer of which the client got ``text``."""
        usage = usage_of(trace.prompt_tokens, text.tokens, text.reasoning_tokens)
        about: dict[str, Any] = {"mode": options.mode.name}
        if options.conclusion is not None:
            about["why"] = list(options.conclusion.why)
        about |= {
            "degraded": degraded,
            "steps": len(trace.steps),
            "alpha": trace.alpha,
            **{f"{kind}_tokens": tokens for kind, tokens in costs.items()},
            "seconds": round(trace.seconds, 4),
        }
        ended = trace.ids and trace.steps and trace.steps[-1].ending == Ending.END
        matched = text.stopped or (trace.ids[-1] if ended else None)
        return cls("stop" if text.stopped else trace.finish, usage, about, matched)

    @classmethod
    def of_all(cls, ends: Sequence[Summary]) -> Summary:
        """The end of answers to one prompt: it counts once, and ``alpha`` is the mean of theirs."""
        if len(ends) == 1:
            return ends[0]
        prompt = ends[0].usage["prompt_tokens"]
        written = sum(end.usage["completion_tokens"] for end in ends)
        usage = usage_of(prompt, written, sum(end.usage["reasoning_tokens"] for end in ends))
        told = [end.lookahead for end in ends]
        alphas = [one["alpha"] for one in told if one["alpha"] is not None]
        about: dict[str, Any] = {key: told[0][key] for key in ("mode", "why") if key in told[0]}
        about |= {
            "degraded": any(one["degraded"] for one in told),
            "steps": sum(one["steps"] for one in told),
            "alpha": sum(alphas) / len(alphas) if alphas else None,
            **{
                f"{kind}_tokens": sum(one[f"{kind}_tokens"] for one in told) for kind in ("drafted", "wasted", "cached")
            },
            "seconds": max(one["seconds"] for one in told),
        }
        return cls("", usage, about)


@dataclass(frozen=True)
class ToolCalls:
    """Those of an answer, in OpenAI's form."""

    calls: list[dict[str, Any]]


# The pieces of one step, an event that the client asked for, the calls of tools, or the end.
Item = list[Chunk] | Event | ToolCalls | Summary
# Those of several answers, each with the index of its answer.
Items = AsyncGenerator[tuple[int, Item], None]


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

    async def whole(self, items: Items) -> dict[str, Any]:
        """One object, at the end."""
        texts: list[dict[Kind, list[str]]] = [{"content": [], "reasoning": []} for _ in range(self.options.answers)]
        events: list[dict[str, Any]] = []
        ends, calls = dict[int, Summary](), dict[int, ToolCalls]()
        async with aclosing(items):
            async for index, item in items:
                if isinstance(item, list):
                    for piece in item:
                        texts[index][piece.kind].append(piece.text)
                elif isinstance(item, Event):
                    events.append(item.to_dict())
                elif isinstance(item, ToolCalls):
                    calls[index] = item
                else:
                    ends[index] = item
        end = self._end(ends)
        choices = [
            self._choice_of(index, texts[index], calls.get(index), ends[index]) for index in range(self.options.answers)
        ]
        about = end.lookahead | ({"trace": events} if self.options.trace else {})
        return {**self._head, "choices": choices, "usage": end.usage, "lookahead": about}

    def _choice_of(
        self, index: int, texts: Mapping[Kind, list[str]], calls: ToolCalls | None, end: Summary
    ) -> dict[str, Any]:
        text, thought = "".join(texts["content"]), "".join(texts["reasoning"])
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        message |= {"content": text or None, "tool_calls": calls.calls} if calls else {}
        message["reasoning_content"] = thought or None
        form = {"message": message} if self.options.chat else {"text": text}
        return {"index": index, **form, "logprobs": None, "finish_reason": end.finish, "matched_stop": end.matched}

    async def chunks(self, items: Items) -> AsyncGenerator[dict[str, Any], None]:
        """Objects as they come; those of a trace have no choices."""
        head = {**self._head, "object": "chat.completion.chunk" if self.options.chat else "text_completion"}
        if self.options.usage:
            head["usage"] = None
        begun, ends = set[int](), dict[int, Summary]()
        async with aclosing(items):
            async for index, item in items:
                if self.options.chat and index not in begun and not isinstance(item, Event):
                    begun.add(index)
                    yield {**head, "choices": [self._choice(index, {"role": "assistant", "content": ""})]}
                if isinstance(item, Summary):
                    ends[index] = item
                    last = {}
                    if len(ends) == self.options.answers and not self.options.usage:
                        last = {"lookahead": self._end(ends).lookahead}
                    empty: Any = {} if self.options.chat else ""
                    choice = {**self._choice(index, empty, item.finish), "matched_stop": item.matched}
                    yield {**head, "choices": [choice], **last}
                else:
                    for chunk in self._chunks(index, item):
                        yield {**head, **chunk}
        if self.options.usage:
            end = self._end(ends)
            yield {**head, "choices": [], "usage": end.usage, "lookahead": end.lookahead}

    def _chunks(self, index: int, item: list[Chunk] | Event | ToolCalls) -> Iterator[dict[str, Any]]:
        if isinstance(item, Event):
            yield {"choices": [], "lookahead": {"event": item.to_dict()}}
            return
        if isinstance(item, ToolCalls):
            calls = [{"index": number, **call} for number, call in enumerate(item.calls)]
            yield {"choices": [self._choice(index, {"tool_calls": calls})]}
            return
        for kind, text in item:
            yield {"choices": [self._choice(index, {FIELDS[kind]: text} if self.options.chat else text)]}

    def _choice(self, index: int, delta: dict[str, Any] | str, finish: str | None = None) -> dict[str, Any]:
        text = {"delta": delta} if self.options.chat else {"text": delta}
        return {"index": index, **text, "logprobs": None, "finish_reason": finish}

    def _end(self, ends: Mapping[int, Summary]) -> Summary:
        """That of all answers; the log says it too."""
        end = Summary.of_all(list(ends.values()))
        self.about |= {"tokens": end.usage["completion_tokens"], "prompt_tokens": end.usage["prompt_tokens"]}
        self.about |= {key: end.lookahead[key] for key in ("steps", "alpha", "degraded")}
        self.about["answer_seconds"] = end.lookahead["seconds"]  # without the queue
        return end
