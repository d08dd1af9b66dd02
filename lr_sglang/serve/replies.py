"""Answers in OpenAI's form, whole and as server-sent events, with their costs and what lookahead
reasoning did for them; the work ends at once when a client disconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lr_sglang import __version__
from lr_sglang.delivery.stream_text import Chunk, StreamText
from lr_sglang.engine.transport import DONE, event_of
from lr_sglang.serve.errors import Refusal
from lr_sglang.serve.monitoring import RequestLine
from lr_sglang.serve.protocol import StreamOptions
from lr_sglang.serve.requests import ClientRequest
from lr_sglang.steps.step import Ending
from lr_sglang.steps.trace import Event, Trace

T = TypeVar("T")
CHOICE_FIELDS = {"content": "content", "reasoning": "reasoning_content"}


class WrittenText(NamedTuple):
    """The next text of an answer, and the usage so far."""

    chunks: list[Chunk]
    usage: dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """The end of an answer.

    Attributes:
        text: what the client got.
        degraded: whether draft or judge was missing, at least for a while.
        calls: of tools, in OpenAI's form, with which the answer ends.
    """

    trace: Trace
    text: StreamText
    costs: Mapping[str, int]
    degraded: bool
    calls: Sequence[dict[str, Any]] = ()

    @property
    def finish(self) -> str:
        """OpenAI's finish_reason."""
        ended = "stop" if self.text.stopped else self.trace.finish
        return "tool_calls" if self.calls and ended == "stop" else ended

    @property
    def matched(self) -> str | int | None:
        """The stop string or the token that ended the answer."""
        trace = self.trace
        ended = trace.ids and trace.steps and trace.steps[-1].ending == Ending.END
        return self.text.stopped or (trace.ids[-1] if ended else None)


# What is written, an event that the client asked for, or the end.
Item = WrittenText | Event | Summary
# Those of several answers, each with the index of its answer.
Items = AsyncGenerator[tuple[int, Item], None]


class Reply:
    """The response to one request.

    Args:
        line: of the request in the log; the summary is added.
    """

    def __init__(self, asked: ClientRequest, model: str, line: RequestLine) -> None:
        self._asked = asked
        self._line = line
        self._head = {
            "id": ("chatcmpl-" if asked.chat else "cmpl-") + line.id,
            "object": "chat.completion" if asked.chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"lr-sglang-{__version__}",
        }

    async def whole(self, items: Items) -> AsyncGenerator[bytes, None]:
        """The response as one object."""
        texts: dict[tuple[int, str], list[str]] = defaultdict(list)
        trace: list[dict[str, Any]] = []
        ends: dict[int, Summary] = {}
        async with aclosing(items):
            async for index, item in items:
                match item:
                    case WrittenText():
                        for kind, text in item.chunks:
                            texts[index, kind].append(text)
                    case Event():
                        trace.append(item.to_dict())
                    case Summary():
                        ends[index] = item
        choices = []
        for index, one in sorted(ends.items()):
            text = "".join(texts[index, "content"])
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if one.calls:
                message |= {"content": text or None, "tool_calls": one.calls}
            message["reasoning_content"] = "".join(texts[index, "reasoning"]) or None
            form = {"message": message} if self._asked.chat else {"text": text}
            choices.append(_choice(index, form, one))
        end = self._end(list(ends.values()))
        end["lookahead"] |= {"trace": trace} if self._asked.request.wish.trace else {}
        yield orjson.dumps({**self._head, "choices": choices, **end})

    async def events(self, items: Items) -> AsyncGenerator[bytes, None]:
        """The response as the events of a stream; those of the trace have no choices."""
        request = self._asked.request
        shown = request.stream_options or StreamOptions()
        usage = request.wish.trace or bool(shown.include_usage)
        form = {"object": "chat.completion.chunk"} if self._asked.chat else {}
        head = {**self._head, **form, **({"usage": None} if usage else {})}

        def chunk(
            index: int,
            delta: dict[str, Any],
            more: dict[str, Any] | None = None,
            end: Summary | None = None,
        ) -> bytes:
            form = {"delta": delta} if self._asked.chat else {"text": delta.get("content", "")}
            return event_of({**head, "choices": [_choice(index, form, end)], **(more or {})})

        begun = set[int]()
        ends = list[Summary]()
        async with aclosing(items):
            async for index, item in items:
                if isinstance(item, Event):
                    event = {"event": item.to_dict()}
                    yield event_of({**head, "choices": [], "lookahead": event})
                    continue
                if self._asked.chat and index not in begun:
                    begun.add(index)
                    yield chunk(index, {"role": "assistant", "content": ""})
                if isinstance(item, WrittenText):
                    so_far = {"usage": item.usage} if shown.continuous_usage_stats else None
                    for kind, text in item.chunks:
                        yield chunk(index, {CHOICE_FIELDS[kind]: text}, so_far)
                    continue
                ends.append(item)
                if item.calls:
                    calls = [{"index": n, **call} for n, call in enumerate(item.calls)]
                    yield chunk(index, {"tool_calls": calls})
                is_last = len(ends) == request.answers and not usage
                about = {"lookahead": self._end(ends)["lookahead"]} if is_last else None
                yield chunk(index, {}, about, end=item)
        if usage:
            yield event_of({**head, "choices": [], **self._end(ends)})
        yield DONE

    def _end(self, ends: list[Summary]) -> dict[str, Any]:
        """Usage, metrics and ``lookahead`` object of all answers; the log gets them too."""
        alphas = [end.trace.alpha for end in ends if end.trace.alpha is not None]
        why = self._asked.why
        traces = [end.trace for end in ends]
        cached = [tokens for trace in traces if (tokens := cached_of(trace)) is not None]
        usage = usage_of(
            traces[0].prompt_tokens,
            sum(end.text.tokens for end in ends),
            sum(end.text.reasoning_tokens for end in ends),
            min(cached, default=None),  # the other answers find the prompt of the first one
        )
        metrics: dict[str, Any] | None = None
        if len(traces) == 1:  # as vLLM: of one answer
            steps = of_steps(traces[0])
            metrics = {"speculative_decoding": of_tokens(traces[0]), "lookahead": steps}
        about: dict[str, Any] = {
            "mode": self._asked.mode_name,
            **({"why": why} if why else {}),
            "degraded": any(end.degraded for end in ends),
            "steps": sum(len(end.trace.steps) for end in ends),
            "alpha": sum(alphas) / len(alphas) if alphas else None,
            **{f"{kind}_tokens": sum(end.costs[kind] for end in ends) for kind in ends[0].costs},
            "seconds": max(round(end.trace.seconds, 4) for end in ends),
        }
        line = self._line
        line.tokens = usage["completion_tokens"]
        line.prompt_tokens = usage["prompt_tokens"]
        line.steps = about["steps"]
        line.alpha = about["alpha"]
        line.degraded = about["degraded"]
        line.answer_seconds = about["seconds"]
        causes = {role: why for trace in traces for role, why in trace.causes.items()}
        line.causes = causes or None
        return {"usage": usage, "metrics": metrics, "lookahead": about}


def _choice(index: int, form: dict[str, Any], end: Summary | None) -> dict[str, Any]:
    ended = {} if end is None else {"matched_stop": end.matched}
    return {"index": index, **form, "logprobs": None, "finish_reason": end and end.finish, **ended}


class Disconnected(Exception):
    """The client has hung up."""


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``; if the client hangs up first, that is cancelled, and ``Disconnected``
    raised.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Disconnected
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)  # both end before this returns


class EventStream(StreamingResponse):
    """Server-sent events, until the client disconnects."""

    body_iterator: AsyncGenerator[bytes, None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await unless_gone(receive, self.stream_response(send))


async def with_error(
    first: bytes,
    events: AsyncGenerator[bytes, None],
    line: RequestLine,
    path: str,
    named: bool,
) -> AsyncGenerator[bytes, None]:
    """The events of a stream, of which the first is there already: before that, an error still has
    its own status. An error after it is the last event.

    Args:
        line: of the request in the log; an error is added.
        path: of the route, which decides on the error's form.
        named: whether clients expect named events, as Anthropic's do, and OpenAI's on
            /v1/responses.
    """
    try:
        async with aclosing(events):
            yield first
            async for event in events:
                yield event
    except Refusal as error:
        error.note(line)
        body = error.body(path)
        if named:
            yield b"event: error\n" + event_of({"type": "error", **body})
        else:
            yield event_of(body) + DONE


def usage_of(prompt: int, written: int, thought: int, cached: int | None) -> dict[str, Any]:
    """A usage in OpenAI's form, with SGLang's ``reasoning_tokens``; it counts what was delivered.

    Args:
        prompt, written, thought: tokens of the prompt, of the answer, and of its reasoning.
        cached: tokens of the prompt that the target had in its cache; None where it does not say.
    """
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
        "reasoning_tokens": thought,
    }


def cached_of(trace: Trace) -> int | None:
    """Tokens of the question's prompt that the target had in its cache; None where that is not
    known (yet).
    """
    first = next((branch for branch in trace.branches if branch.role == "target"), None)
    cached = None if first is None else first.cached_tokens
    return None if cached is None else min(cached, trace.prompt_tokens)


def costs_of(trace: Trace, delivered: int) -> dict[str, int]:
    """Tokens of all branches: ``drafted`` by the draft, ``wasted`` by both writers, ``cached`` of
    prompts; and of the answer ``judged``, which a verifier accepted in place of the target's
    ``own``.

    Takes a while for a long answer.

    Args:
        delivered: tokens that the client got.
    """
    counts = trace.tokens()
    cached = sum(counts[role]["cached"] for role in ("target", "draft", "judge"))
    wasted = max(0, counts["generated"] - delivered)
    return {
        "drafted": counts["draft"]["generated"],
        "wasted": wasted,
        "cached": cached,
        "judged": counts["judged"],
        "own": counts["own"],
    }


def of_tokens(trace: Trace) -> dict[str, Any] | None:
    """vLLM's ``speculative_decoding`` (its pull request 48915) for all requests to the target: what
    its token layer has verified, and the pieces of the draft that it has read.
    """
    accepted = Counter[int]()
    drafted = longest = 0
    is_complete = True
    for branch in trace.of("target"):
        verified, proposed, _ = branch.sd
        if verified:
            is_complete = is_complete and sum(branch.sd_accepted) == verified
            accepted.update(dict(enumerate(branch.sd_accepted)))
            drafted += proposed
            longest = max(longest, -(-proposed // verified))
    for (tokens, same), times in trace.reads.items():
        accepted[same] += times
        drafted += tokens * times
        longest = max(longest, tokens)
    steps = sum(accepted.values())
    if not steps or not is_complete:  # an older server does not say how many each step accepted
        return None
    kept = sum(tokens * times for tokens, times in accepted.items())
    return {
        **_shares(accepted, kept, drafted, longest),
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": kept,
        "num_draft_tokens": drafted,
        "num_spec_tokens": max(longest, *accepted),
    }


def of_steps(trace: Trace) -> dict[str, Any] | None:
    """The same of steps: a cycle is what follows a step of the target's, up to its next one."""
    accepted = Counter[int]()
    run = 0
    for step in trace.before_conclusion:
        if step.source == "draft":
            run += 1
        elif run or step.judged:
            accepted[run] += 1
            run = 0
    if run:
        accepted[run] += 1
    if not accepted:
        return None
    return {
        **_shares(accepted, trace.accepted, trace.judged, max(accepted)),
        "num_cycles": sum(accepted.values()),
        "num_accepted_draft_steps": trace.accepted,
        "num_draft_steps": trace.judged,
        "num_steps": len(trace.steps),
    }


def _shares(accepted: Mapping[int, int], kept: int, drafted: int, longest: int) -> dict[str, Any]:
    """The means, and how often how many were accepted.

    Args:
        accepted: number of rounds by how many were accepted in them.
        longest: the most that are drafted in a round.
    """
    return {
        "mean_acceptance_length": 1 + kept / sum(accepted.values()),
        "draft_acceptance_rate": kept / drafted if drafted else 0.0,
        "acceptance_histogram": [
            accepted.get(number, 0) for number in range(max(longest, *accepted) + 1)
        ],
    }
