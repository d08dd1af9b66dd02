"""An endpoint that replays events as the real one tells them: what the page's tests can order
about.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles

PAGE = files("lr_sglang") / "serve" / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


@dataclass
class Endpoint:
    """What it shall say, and what it was asked.

    Attributes:
        pace: how many times quicker than recorded; infinite is at once.
        refusals: statuses, with headers and messages, that come before any answer.
        broken_at: the stream ends with no word after so many events; ``error_at`` with an error.
        held_at: nothing more comes after so many events.
        stopped: how often a client was gone before the end.
    """

    events: list[dict[str, Any]] = field(default_factory=list)
    pace: float = 4.0
    refusals: list[tuple[int, dict[str, str], str]] = field(default_factory=list)
    broken_at: int | None = None
    error_at: int | None = None
    held_at: int | None = None
    ready: dict[str, Any] = field(default_factory=lambda: {"status": "ready", "roles": up()})
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    stopped: int = 0

    async def chunks(self) -> AsyncIterator[str]:
        began, done = time.monotonic(), False
        try:
            yield line(
                {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]}
            )
            for number, event in enumerate(self.events):
                if number == self.held_at:
                    await asyncio.Event().wait()
                if number == self.broken_at:
                    done = True
                    return
                if number == self.error_at:
                    yield line(
                        {
                            "error": {
                                "message": "the target is gone",
                                "type": "server_error",
                                "code": None,
                            }
                        }
                    )
                    done = True
                    return
                await asyncio.sleep(
                    max(0.0, event["seconds"] / self.pace - (time.monotonic() - began))
                )
                yield line({"choices": [], "lookahead": {"event": event}})
                if event["kind"] in ("accepted", "corrected", "bonus"):
                    last = event["position"] >= self.events[-1]["position"] - 1
                    delta = {"content" if last else "reasoning_content": event["text"]}
                    yield line({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            yield line({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            summary = {
                "mode": "lookahead",
                "degraded": False,
                "drafted_tokens": 420,
                "wasted_tokens": 130,
            }
            yield line({"choices": [], "usage": {"completion_tokens": 290}, "lookahead": summary})
            done = True
            yield "data: [DONE]\n\n"
        finally:
            self.stopped += not done


def up(**others: str) -> dict[str, str]:
    return {"target": "up", "draft": "up", "judge": "up"} | others


def line(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def application(endpoint: Endpoint) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def policy(request: Request, call: Any) -> Response:
        response: Response = await call(request)
        response.headers["content-security-policy"] = POLICY
        response.headers["x-content-type-options"] = "nosniff"
        return response

    @app.get("/")
    async def index() -> FileResponse:
        return FileResponse(str(PAGE / "index.html"))

    @app.get("/ready")
    async def ready() -> JSONResponse:
        return JSONResponse(endpoint.ready, 503 if endpoint.ready["status"] == "down" else 200)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        modes = ["lookahead", "lookahead+sd", "lossless", "sd", "autoregressive"]
        allowed = {"modes": modes, "verifiers": ["judge", "exact"], "depth": 6, "max_depth": 16}
        return {
            "object": "list",
            "data": [{"id": "pocket-target", "object": "model", "lookahead": allowed}],
        }

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        endpoint.asked.append(await request.json())
        endpoint.keys.append(request.headers.get("authorization"))
        if endpoint.refusals:
            status, headers, message = endpoint.refusals.pop(0)
            return JSONResponse({"error": {"message": message, "type": "error"}}, status, headers)
        return StreamingResponse(endpoint.chunks(), media_type="text/event-stream")

    app.mount(
        "/page", StaticFiles(directory=str(PAGE), packages=[("lr_sglang", "results/page/shared")])
    )
    return app


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[Endpoint]:
    """Serves it on a free port of this machine."""
    config = uvicorn.Config(
        application(endpoint), log_level="warning", lifespan="off", timeout_graceful_shutdown=1
    )
    with running(uvicorn.Server(config)) as endpoint.url:
        yield endpoint


@contextmanager
def running(server: uvicorn.Server) -> Iterator[str]:
    """Runs a server in a thread, and gives its address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join(10)
