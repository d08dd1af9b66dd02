"""The endpoint as an application: its routes, and every error in OpenAI's form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from lr_sglang import __version__, results
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.serve.engine import AnswerEngine, delivered
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.health import Health
from lr_sglang.serve.middleware import Guard, refuse
from lr_sglang.serve.monitoring import Metrics, request_line
from lr_sglang.serve.protocol import (
    CHAT,
    COMPLETIONS,
    TargetRoute,
    other_route,
)
from lr_sglang.serve.replies import Disconnected, EventStream, Reply, unless_gone, with_error
from lr_sglang.serve.requests import PassedRequest, RenderedPrompt
from lr_sglang.serve.settings import Keys, Service
from lr_sglang.serve.writers import PassedAnswer, passed_on, write_pieces

ABORT_SECONDS = 2.0  # that the shutdown waits for the runtimes to abort the stopped answers
# They render and tokenize prompts; asyncio's own default grows with the machine's cores.
PROMPT_THREADS = 4
# Names of this machine. Without keys no other may be asked for: a web page's domain can point here.
OWN_HOSTS = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
# The page's own files, and those that it shares with the HTML report.
PAGE = (Path(__file__).parent / "page", Path(results.__file__).parent / "page" / "shared")
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'; "
    "img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def create_app(
    roles: Mapping[str, RuntimeBackend],
    service: Service,
    keys: Keys | None = None,
) -> FastAPI:
    """The application over runtimes that are ready. ``app.state.engine`` makes its answers.

    Args:
        roles: backends by role; a ``Watch`` takes the place of each one's transport.

    Raises:
        ConfigError: a verifier lacks its runtime.
    """
    metrics = Metrics()
    health = Health(roles, service)
    engine = AnswerEngine(roles, service, metrics, health)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        rendering = ThreadPoolExecutor(PROMPT_THREADS, "lr-prompt")
        asyncio.get_running_loop().set_default_executor(rendering)
        tasks = [asyncio.create_task(work) for work in (health.run(), engine.prepare())]
        try:
            yield
        finally:
            engine.stop()
            await engine.ended(ABORT_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(
        title="lr-sglang",
        version=__version__,
        docs_url=None,  # its page would load scripts from another host
        redoc_url=None,
        redirect_slashes=False,  # a redirect would go to the host that the request names
        lifespan=lifespan,
    )
    app.state.engine = engine
    app.state.health = health
    app.state.metrics = metrics
    app.include_router(_answers(engine))
    app.include_router(_models(engine, service))
    app.include_router(_state(engine, health, metrics))
    # a route for each file hides no other route
    for path in (file for folder in PAGE for file in folder.iterdir()):
        fixed = _fixed(path.read_bytes(), guess_type(path)[0], PAGE_HEADERS)
        name = "/" if path.name == "index.html" else f"/page/{path.name}"
        app.add_api_route(name, fixed, methods=["GET"], include_in_schema=False)
    for kind in (HTTPException, Refusal):
        app.add_exception_handler(kind, _refused)
    if not service.hosts_are_open:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[service.host, *OWN_HOSTS])
    app.add_middleware(Guard, service=service, keys=keys or Keys(), metrics=metrics)
    if service.allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.allow_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,  # a page of a public site may ask an endpoint at home
            expose_headers=["x-request-id", "x-lookahead-mode", "x-lookahead-why", "retry-after"],
        )
    return app


async def read_body(request: Request) -> dict[str, Any]:
    """The body of a request, which is a JSON object.

    A web page elsewhere may send any other content type without asking (CORS), so none is taken.
    """
    headers = request.headers
    if headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "The body: send it without Content-Encoding")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refusal(400, "The body: send it with 'Content-Type: application/json'")
    try:
        # refuses NaN, half a surrogate and endless nesting
        body = orjson.loads(await request.body())
    except ClientDisconnect as error:
        raise Disconnected from error
    except ValueError as error:
        raise Refusal(400, f"The body: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(400, "The body: it must be a JSON object")
    return body


Body = Annotated[dict[str, Any], Depends(read_body)]


def _answers(engine: AnswerEngine) -> APIRouter:
    """The routes that generate."""
    router = APIRouter()

    @router.post(CHAT.path)
    async def chat(request: Request, body: Body) -> Response:
        """Answers a conversation."""
        return await _answer(engine, CHAT, request, body)

    @router.post(COMPLETIONS.path)
    async def completion(request: Request, body: Body) -> Response:
        """Continues a raw prompt."""
        return await _answer(engine, COMPLETIONS, request, body)

    if engine.service.passes:

        @router.post("/v1/{path:path}")
        async def other(request: Request, body: Body) -> Response:
            """Any other route of the target's."""
            route = other_route(request.scope["path"])
            if route is None:
                raise HTTPException(404)
            return await _answer(engine, route, request, body)

    return router


async def _answer(
    engine: AnswerEngine, route: TargetRoute, request: Request, body: Body
) -> Response:
    """The response of a route that answers."""
    engine.check()  # before the work of a long prompt, and any request to the target
    asked = await engine.read(route, body)
    line = request_line(request.scope)
    line.mode = asked.mode_name
    line.stream = stream = bool(asked.request.stream)
    headers = {"X-Lookahead-Mode": asked.mode_name}
    if asked.why:
        line.why = asked.why
        headers["X-Lookahead-Why"] = ", ".join(asked.why)
    if isinstance(asked, PassedRequest):
        pieces = passed_on(delivered(engine, [PassedAnswer(engine, asked, line).write]))
    else:
        prompt = await asyncio.to_thread(
            RenderedPrompt, asked, engine.service, engine.roles["target"]
        )
        writers = [partial(write_pieces, engine, one, prompt) for one in asked.each()]
        reply = Reply(asked, engine.service.model, line)
        items = delivered(engine, writers)
        pieces = reply.events(items) if stream else reply.whole(items)
    if not stream:
        whole = await unless_gone(request.receive, _joined(pieces))
        return Response(whole, headers=headers, media_type="application/json")
    first = await unless_gone(request.receive, anext(pieces))
    events = with_error(first, pieces, line, route.path, named=route.reads is None)
    headers |= {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventStream(events, headers=headers, media_type="text/event-stream")


async def _joined(pieces: AsyncGenerator[bytes, None]) -> bytes:
    return b"".join([piece async for piece in pieces])


def _models(engine: AnswerEngine, service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/models")
    shared = {
        "object": "model",
        "created": int(time.time()),
        "owned_by": "lr-sglang",
        "root": service.model,
        "parent": None,
        "max_model_len": engine.roles["target"].facts.context,
        "lookahead": {
            "modes": service.modes,
            "verifiers": service.verifiers,
            "depth": service.lookahead.depth,
            "width": service.lookahead.width,
            "max_depth": service.deepest,
            "max_width": service.widest,
        },
    }

    served = {name: {"id": name, **shared} for name in service.names}

    @router.get("")
    async def models() -> dict[str, Any]:
        """The model that is served under each of its names, and what its requests may ask for."""
        return {"object": "list", "data": list(served.values())}

    @router.get("/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        """One model."""
        if model not in served:
            raise refusal("model_not_found", param="model", asked=model, known=service.model)
        return served[model]

    return router


def _state(engine: AnswerEngine, health: Health, metrics: Metrics) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def alive() -> dict[str, str]:
        """Whether the endpoint itself is alive."""
        return {"status": "ok"}

    @router.get("/ready")
    async def ready() -> Response:
        """Whether requests can be answered, and which runtimes are well."""
        state = "draining" if engine.admission.closed else health.state
        found = {"status": state, "roles": health.report()}
        return JSONResponse(found, 503 if state in ("down", "draining") else 200)

    @router.get("/metrics")
    async def exposed() -> Response:
        """What the endpoint counts, for Prometheus."""
        return Response(metrics.exposed(), media_type=CONTENT_TYPE_LATEST)

    return router


def _fixed(
    content: bytes, kind: str | None, headers: Mapping[str, str]
) -> Callable[[], Awaitable[Response]]:
    """A route whose response is always the same."""

    async def fixed() -> Response:
        return Response(content, headers=dict(headers), media_type=kind)

    return fixed


async def _refused(request: Request, error: Exception) -> Response:
    """The response for a ``Refusal``, or for starlette's own error (an unknown route, a wrong
    method).
    """
    if not isinstance(error, HTTPException):
        return refuse(refusal_of(error), request.scope)
    said = {
        404: "There is no such route; /v1/chat/completions, /v1/completions and /v1/models are "
        "there",
        405: f"This route does not take {request.method}",
    }.get(error.status_code, error.detail)
    response = refuse(Refusal(error.status_code, said), request.scope)
    response.headers.update(error.headers or {})
    return response
