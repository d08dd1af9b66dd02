"""Programs and a verifier of a user that fail, each in its way."""

import asyncio
import sys

import sglang as sgl


@sgl.function
async def exits_on_the_loop(s, messages):
    sys.exit(3)


@sgl.function
async def exits_in_a_task(s, messages):
    await asyncio.create_task(exits_on_the_loop.func(s, messages))


@sgl.function
async def interrupts(s, messages):
    raise KeyboardInterrupt


@sgl.function
def cancels(s, messages):
    raise asyncio.CancelledError


@sgl.function
async def waits(s, messages):
    await asyncio.Event().wait()


@sgl.function
async def reads_too_early(s, messages):
    s += sgl.user(messages[-1]["content"])
    s += sgl.assistant(sgl.gen("answer", max_tokens=100))
    s["answer"]
