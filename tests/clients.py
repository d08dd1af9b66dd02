"""Many streaming clients in a process of their own: ``python -m tests.clients < plan.json``, a line
for each answer.

A plan has the endpoint's ``url`` and ``model``, the ``seconds`` in which clients ask, and of every
client its ``name``, ``after`` so many seconds from the beginning (and ``until`` then, if not to the
end), and what ``lookahead`` it wants. Each asks one question after the other. A client that is
refused comes again when it is told to.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp  # httpx takes more of a processor for a thousand streams than the endpoint itself


@dataclass
class Answer:
    """What one request came to.

    Attributes:
        asked: seconds of the monotonic clock, which all processes share.
        times: of the pieces, in seconds since then.
        error: whatever is not as it should be: a status other than 200, an error in the stream, no
            end.
    """

    client: str
    question: str
    asked: float
    status: int = 0
    text: str = ""
    times: list[float] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""
    again: float | None = None
    usage: dict[str, Any] | None = None
    about: dict[str, Any] | None = None


async def ask(
    client: aiohttp.ClientSession, plan: dict[str, Any], name: str, question: str, wish: Any
) -> Answer:
    """Streams one answer."""
    answer = Answer(name, question, time.monotonic())
    body = {"model": plan["model"], "messages": [{"role": "user", "content": question}], "stream": True,
            "stream_options": {"include_usage": True}, "lookahead": wish, "temperature": 0}  # fmt: skip
    try:
        async with client.post(f"{plan['url']}/v1/chat/completions", json=body) as response:
            answer.status = response.status
            if response.status != 200:
                answer.again = float(response.headers.get("retry-after", "nan"))
                answer.error = str((await response.json())["error"]["code"])
            else:
                await _read(response, answer)
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        answer.error = repr(error)
    answer.seconds = time.monotonic() - answer.asked
    return answer


async def _read(response: aiohttp.ClientResponse, answer: Answer) -> None:
    finish, done, pieces = None, False, []
    async for read in response.content:
        line = read.decode().strip()
        if line == "data: [DONE]":
            done = True
        elif line:
            chunk = json.loads(line.removeprefix("data: "))
            answer.error = str(chunk["error"]["code"]) if "error" in chunk else answer.error
            for choice in chunk.get("choices", ()):
                finish = choice["finish_reason"] or finish
                if text := choice["delta"].get("content"):
                    pieces.append(text)
                    answer.times.append(time.monotonic() - answer.asked)
            answer.usage, answer.about = (
                chunk.get("usage") or answer.usage,
                chunk.get("lookahead") or answer.about,
            )
    answer.text = "".join(pieces)
    if not answer.error and not (done and finish == "stop"):
        answer.error = f"ended with {finish}, {'and' if done else 'without'} [DONE]"


async def one(
    client: aiohttp.ClientSession, plan: dict[str, Any], who: dict[str, Any], began: float
) -> None:
    """One client, until its time is up."""
    await asyncio.sleep(who.get("after", 0.0))
    number, end = 0, began + who.get("until", plan["seconds"])
    while time.monotonic() < end and number < plan.get("questions", 10**9):
        answer = await ask(
            client, plan, who["name"], f"{who['name']} asks: {number}?", who.get("lookahead")
        )
        sys.stdout.write(json.dumps(asdict(answer)) + "\n")
        number += 1
        if answer.again is not None and answer.again == answer.again:
            await asyncio.sleep(min(answer.again, max(0.0, end - time.monotonic())))


async def run(plan: dict[str, Any]) -> None:
    """All of them."""
    seconds = plan.get("timeout", 120.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as client:
        began = time.monotonic()
        await asyncio.gather(*(one(client, plan, who, began) for who in plan["clients"]))


if __name__ == "__main__":
    asyncio.run(run(json.load(sys.stdin)))
