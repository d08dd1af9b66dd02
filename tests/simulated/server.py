"""A simulated runtime over HTTP: the routes of a SGLang server that lr-sglang uses, and
``/faults``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lr_sglang.errors import LookaheadError
from tests.simulated.faults import Fault
from tests.simulated.runtime import NEVER, Cache, SimulatedRuntime
from tests.simulated.words import tokenizer_path

Handler = Callable[[Request], Awaitable[Response]]
INFO = ("/model_info", "/get_model_info", "/server_info", "/get_server_info")
# The errors that an invalid request body may raise.
_UNREADABLE = (TypeError, ValueError, AttributeError, LookupError, OverflowError, LookaheadError)


def _meta(**wrong: Any) -> Callable[[dict[str, Any]], Response]:
    return lambda good: JSONResponse({**good, "meta_info": {**good["meta_info"], **wrong}})


# Functions that turn a correct reply into one with status 200 that is no generation.
MALFORMED: tuple[Callable[[dict[str, Any]], Response], ...] = (
    lambda good: JSONResponse({"text": "garbage"}),
    lambda good: PlainTextResponse("<html>garbage</html>"),
    lambda good: JSONResponse([good]),
    lambda good: Response(),
    lambda good: JSONResponse({**good, "meta_info": None}),
    lambda good: JSONResponse({**good, "output_ids": ["a", "b"]}),
    lambda good: JSONResponse({**good, "output_ids": [-1, *good["output_ids"]]}),
    lambda good: JSONResponse({**good, "output_ids": None}),
    _meta(finish_reason=None),
    _meta(
        finish_reason={"type": "stop", "matched": 7}
    ),  # a matched token that is not among the ids
    _meta(finish_reason={"type": "abort", "message": "not asked for"}),
    lambda good: JSONResponse("garbage"),
)


class SimulatedServer:
    """The routes of one runtime.

    Args:
        die: ends the server at once, like a crash.
    """

    def __init__(self, runtime: SimulatedRuntime, die: Callable[[], None]) -> None:
        self.runtime, self._die = runtime, die
        self.name = f"simulated-{runtime.role}"
        self._cache, self._malformed = Cache(), itertools.cycle(MALFORMED)

    def app(self) -> Starlette:
        about = self._info()
        routes: list[tuple[str, str, Handler]] = [
            ("POST", "/generate", self._generate),
            ("POST", "/abort_request", self._abort),
            ("POST", "/v1/chat/completions", self._chat),
            *(
                ("GET", path, _says(lambda: PlainTextResponse("")))
                for path in ("/health", "/health_generate")
            ),
            *(("GET", path, _says(lambda: JSONResponse(about))) for path in INFO),
            ("GET", "/v1/models", _says(lambda: JSONResponse(self._models()))),
            ("GET", "/v1/loads", _says(lambda: JSONResponse(self._loads()))),
            ("GET", "/flush_cache", _says(self._flush)),
            ("POST", "/flush_cache", _says(self._flush)),
            ("POST", "/faults", self._order),
            ("DELETE", "/faults", _says(self._recover)),
        ]
        return Starlette(
            routes=[Route(path, handler, methods=[method]) for method, path, handler in routes]
        )

    async def _generate(self, request: Request) -> Response:
        asked = await _json(request)
        if not isinstance(asked.get("text", ""), str) or not asked.keys() & {"text", "input_ids"}:
            return _refusal(400, "give a JSON object with input_ids, or text")
        if asked.get("stream"):
            return _refusal(400, "a simulated runtime does not stream /generate")
        try:
            if "input_ids" not in asked:
                asked["input_ids"] = list(self.runtime.writer.words.tokenizer.encode(asked["text"]))
            return await self._answer(request, asked, str(asked.get("rid") or uuid.uuid4().hex))
        except _UNREADABLE as error:
            return _refusal(400, f"the request cannot be understood: {error}")

    async def _answer(self, request: Request, asked: dict[str, Any], rid: str) -> Response:
        fault = self.runtime.faults.next()
        kind = fault.kind if fault is not None else ""
        if kind == "die":
            self._die()
        if kind in ("hang", "die"):
            return await _unless_gone(request, asyncio.sleep(NEVER)) or _refusal(500, "")
        late = fault.seconds if fault and kind == "late" else 0.0
        answer = await _unless_gone(request, self.runtime.answer(asked, rid, late, self._cache))
        if kind in ("fail", "busy") or answer is None:
            return _refusal(503 if kind == "busy" else 500, "a fault was ordered")
        return next(self._malformed)(answer) if kind == "garbage" else JSONResponse(answer)

    async def _abort(self, request: Request) -> Response:
        asked = await _json(request)
        self.runtime.abort(str(asked.get("rid") or ""), bool(asked.get("abort_all")))
        return PlainTextResponse("")

    async def _order(self, request: Request) -> Response:
        try:
            self.runtime.faults.order(Fault(**await _json(request)))
        except TypeError as error:
            return _refusal(400, str(error))
        return JSONResponse({})

    def _recover(self) -> Response:
        self.runtime.faults.clear()
        return JSONResponse({})

    def _flush(self) -> Response:
        self._cache.clear()
        return PlainTextResponse("Cache flushed.\n")

    async def _chat(self, request: Request) -> Response:
        asked, runtime = await _json(request), self.runtime
        words, writer = runtime.writer.words, runtime.writer
        try:
            prompt = words.tokenizer.chat(asked["messages"], True).ids
            most = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 2**20)
        except _UNREADABLE as error:
            return _refusal(400, f"messages: {error!r}")
        if most < 1:
            return _refusal(400, "max_tokens: must be at least 1")
        head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.name,
        }

        async def steps() -> AsyncIterator[tuple[str, int, str | None]]:
            place, left, why = writer.place(prompt), most, None
            while not why:
                written = writer.write(
                    place, writer.model.version(runtime.role), left, one_step=True
                )
                await runtime.serve(
                    runtime.simulation.work(runtime.role, len(written.ids)), uuid.uuid4().hex
                )
                place, left = written.place, left - len(written.ids)
                why = {"end": "stop", "length": "length"}.get(written.finish) or (
                    None if left else "length"
                )
                yield words.tokenizer.decode(written.ids), len(written.ids), why

        if asked.get("stream"):
            return StreamingResponse(_events(head, steps()), media_type="text/event-stream")
        said = [step async for step in steps()]
        text, tokens, why = (
            "".join(step[0] for step in said),
            sum(step[1] for step in said),
            said[-1][2],
        )
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": tokens,
            "total_tokens": len(prompt) + tokens,
        }
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": why,
        }
        return JSONResponse(
            {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        )

    def _info(self) -> dict[str, Any]:
        return {
            "model_path": f"simulated/{self.runtime.role}",
            "tokenizer_path": tokenizer_path(),
            "is_generation": True,
            "device": "simulated",
            "context_length": 2**20,
            "enable_deterministic_inference": True,
            "speculative_algorithm": None,
            "internal_states": [
                {"effective_max_running_requests_per_dp": self.runtime.simulation.slots}
            ],
        }

    def _models(self) -> dict[str, Any]:
        return {
            "object": "list",
            "data": [{"id": self.name, "object": "model", "owned_by": "lr-sglang"}],
        }

    def _loads(self) -> dict[str, Any]:
        slots, running = self.runtime.simulation.slots, self.runtime.running
        served = running if slots is None else min(running, slots)
        load = {"dp_rank": 0, "num_running_reqs": served, "num_waiting_reqs": running - served}
        return {"timestamp": time.time(), "loads": [{**load, "num_total_reqs": running}]}


def _says(make: Callable[[], Response]) -> Handler:
    async def handler(request: Request) -> Response:
        return make()

    return handler


async def _json(request: Request) -> dict[str, Any]:
    """The body of a request; empty if it is no JSON object."""
    try:
        asked = json.loads(await request.body())
    except ValueError:
        return {}
    return asked if isinstance(asked, dict) else {}


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)


async def _unless_gone(request: Request, work: Awaitable[Any]) -> Any:
    """The result of ``work``, or None, and ``work`` is cancelled, if the client closes the
    connection first.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        leaving.cancel()


async def _events(
    head: dict[str, Any], steps: AsyncIterator[tuple[str, int, str | None]]
) -> AsyncIterator[str]:
    async for text, _, why in steps:
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": why}
        yield f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"
