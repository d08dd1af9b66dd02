"""Answers in OpenAI's form, whole and in chunks, with their costs and what lookahead reasoning did
for them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from lr_sglang import __version__
from lr_sglang.frontend.stream_text import Chunk, StreamText
from lr_sglang.serve.request_options import RequestOptions
from lr_sglang.steps.events import Event
from lr_sglang.steps.step import Ending
from lr_sglang.steps.trace import Trace

FIELDS = {"content": "content", "reasoning": "reasoning_content"}


def costs_of(trace: Trace, delivered: int) -> dict[str, int]:
    """Tokens of all branches: ``drafted`` by the draft, ``wasted`` by both writers, ``cached`` of
    prompts.

    Takes a while for a long answer.

    Args:
        delivered: tokens that the client got.
    """
    counts = trace.tokens()
    cached = sum(counts[role]["cached"] for role in ("target", "draft", "judge"))
    wasted = max(0, counts["generated"] - delivered)
    return {"drafted": counts["draft"]["generated"], "wasted": wasted, "cached": cached}


@dataclass(frozen=True)
class Summary:
    """The end of an answer of which the client got ``text``; ``calls``: whether it ends with calls
    of tools.
    """

    options: RequestOptions
    trace: Trace
    text: StreamText
    costs: Mapping[str, int]
    degraded: bool
    calls: bool = False

    @property
    def finish(self) -> str:
        """OpenAI's finish_reason."""
        return "tool_calls" if self.calls else "stop" if self.text.stopped else self.trace.finish

    @property
    def matched(self) -> str | int | None:
        """The stop string or the token that ended the answer."""
        trace = self.trace
        ended = trace.ids and trace.steps and trace.steps[-1].ending == Ending.END
        return self.text.stopped or (trace.ids[-1] if ended else None)


def usage_of(prompt: int, written: int, thought: int) -> dict[str, Any]:
    """A usage in SGLang's form; it counts what was delivered.

    Args:
        prompt, written, thought: tokens of the prompt, of the answer, and of its reasoning.
    """
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": None,
        "completion_tokens_details": {"reasoning_tokens": thought} if thought else None,
        "reasoning_tokens": thought,
    }


def extension_of(ends: Sequence[Summary]) -> dict[str, Any]:
    """The ``lookahead`` object of such answers; ``alpha`` is the mean of theirs."""
    alphas = [end.trace.alpha for end in ends if end.trace.alpha is not None]
    why = ends[0].options.why
    return {
        "mode": ends[0].options.mode.name,
        **({"why": list(why)} if why else {}),
        "degraded": any(end.degraded for end in ends),
        "steps": sum(len(end.trace.steps) for end in ends),
        "alpha": sum(alphas) / len(alphas) if alphas else None,
        **{f"{kind}_tokens": sum(end.costs[kind] for end in ends) for kind in ends[0].costs},
        "seconds": max(round(end.trace.seconds, 4) for end in ends),
    }


@dataclass(frozen=True)
class ToolCalls:
    """The tool calls of an answer, in OpenAI's form."""

    calls: list[dict[str, Any]]


@dataclass(frozen=True)
class UsageSoFar:
    """The usage with the next pieces of the answer."""

    usage: dict[str, Any]


# The pieces of one step, an event that the client asked for, the calls of tools, or the end.
Item = list[Chunk] | UsageSoFar | Event | ToolCalls | Summary
# Those of several answers, each with the index of its answer.
Items = AsyncGenerator[tuple[int, Item], None]


class Reply:
    """The response to one request.

    Args:
        about: what the log says of the request, its id included; the summary is added.
    """

    def __init__(self, options: RequestOptions, model: str, about: dict[str, Any]) -> None:
        self.options, self.about = options, about
        self._head = {
            "id": ("chatcmpl-" if options.chat else "cmpl-") + about["id"],
            "object": "chat.completion" if options.chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"lr-sglang-{__version__}",
        }

    async def whole(self, items: Items) -> dict[str, Any]:
        """The response as one object."""
        texts: dict[tuple[int, str], list[str]] = defaultdict(list)
        trace: list[dict[str, Any]] = []
        ends, calls = dict[int, Summary](), dict[int, list[dict[str, Any]]]()
        async with aclosing(items):
            async for index, item in items:
                match item:
                    case Event():
                        trace.append(item.to_dict())
                    case ToolCalls():
                        calls[index] = item.calls
                    case Summary():
                        ends[index] = item
                    case list():
                        for kind, text in item:
                            texts[index, kind].append(text)
        choices = []
        for index in range(self.options.answers):
            text, thought = "".join(texts[index, "content"]), "".join(texts[index, "reasoning"])
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if index in calls:
                message |= {"content": text or None, "tool_calls": calls[index]}
            message["reasoning_content"] = thought or None
            form = {"message": message} if self.options.chat else {"text": text}
            choices.append(_choice(index, form, ends[index]))
        end = self._end(ends)
        end["lookahead"] |= {"trace": trace} if self.options.trace else {}
        return {**self._head, "choices": choices, **end}

    async def chunks(self, items: Items) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a stream; those with an event of the trace have no choices."""
        chat, usage = self.options.chat, self.options.usage
        head = (
            self._head
            | ({"object": "chat.completion.chunk"} if chat else {})
            | ({"usage": None} if usage else {})
        )

        def chunk(index: int, delta: dict[str, Any], end: Summary | None = None) -> dict[str, Any]:
            form = {"delta": delta} if chat else {"text": delta.get("content", "")}
            return {**head, "choices": [_choice(index, form, end)]}

        begun, ends = set[int](), dict[int, Summary]()
        so_far: dict[int, dict[str, Any]] = {}
        async with aclosing(items):
            async for index, item in items:
                if isinstance(item, Event):
                    yield {**head, "choices": [], "lookahead": {"event": item.to_dict()}}
                    continue
                if isinstance(item, UsageSoFar):
                    so_far[index] = {"usage": item.usage}
                    continue
                if chat and index not in begun:
                    begun.add(index)
                    yield chunk(index, {"role": "assistant", "content": ""})
                if isinstance(item, ToolCalls):
                    yield chunk(
                        index,
                        {"tool_calls": [{"index": n, **call} for n, call in enumerate(item.calls)]},
                    )
                elif isinstance(item, Summary):
                    ends[index] = item
                    is_last = len(ends) == self.options.answers and not usage
                    yield chunk(index, {}, item) | (
                        {"lookahead": self._end(ends)["lookahead"]} if is_last else {}
                    )
                else:
                    for kind, text in item:
                        yield chunk(index, {FIELDS[kind]: text}) | so_far.get(index, {})
        if usage:
            yield {**head, "choices": [], **self._end(ends)}

    def _end(self, ends: Mapping[int, Summary]) -> dict[str, Any]:
        """Usage and extension of all answers; the log gets them too."""
        each = list(ends.values())
        written, thought = (
            sum(getattr(end.text, name) for end in each) for name in ("tokens", "reasoning_tokens")
        )
        usage = usage_of(each[0].trace.prompt_tokens, written, thought)
        about = extension_of(each)
        self.about |= {
            "tokens": usage["completion_tokens"],
            "prompt_tokens": usage["prompt_tokens"],
        }
        self.about |= {key: about[key] for key in ("steps", "alpha", "degraded")}
        self.about["answer_seconds"] = about["seconds"]  # without the queue
        return {"usage": usage, "lookahead": about}


def _choice(index: int, form: dict[str, Any], end: Summary | None) -> dict[str, Any]:
    ended = {} if end is None else {"matched_stop": end.matched}
    return {"index": index, **form, "logprobs": None, "finish_reason": end and end.finish, **ended}
