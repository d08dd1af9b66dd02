"""The endpoint as an application: its routes, and every error in OpenAI's form."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from lr_sglang import __version__, results
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.serve.engine import AnswerEngine
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.health import Health
from lr_sglang.serve.keys import Keys
from lr_sglang.serve.logs import log
from lr_sglang.serve.lookahead_answer import LookaheadAnswer
from lr_sglang.serve.metrics import CONTENT_TYPE, Metrics
from lr_sglang.serve.middleware import Guard, refuse
from lr_sglang.serve.passed_answer import PassedAnswer
from lr_sglang.serve.passed_request import PassedRequest
from lr_sglang.serve.reading import read_json
from lr_sglang.serve.replies import Reply
from lr_sglang.serve.schema import ERRORS, body_of, described, responses_of
from lr_sglang.serve.settings import Service
from lr_sglang.serve.streaming import EventStream, begun, events_of, together, unless_gone
from lr_sglang.serve.target_routes import ANSWERED, OTHERS, TargetRoute

ABORT_SECONDS = 2.0  # that the shutdown waits for the runtimes to abort the stopped answers
PROMPT_THREADS = (
    4  # they render and tokenize prompts; asyncio's own default grows with the machine's cores
)
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
        roles: backends by role; each one's transport gets a circuit breaker in front.

    Raises:
        ConfigError: a verifier lacks its runtime.
    """
    metrics = Metrics()
    health = Health(roles, service, _changed)
    engine = AnswerEngine(roles, service, metrics, health)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        health.start()
        engine.lateness.start()
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(PROMPT_THREADS, "lr-prompt")
        )
        preparing = asyncio.create_task(engine.prepare())
        try:
            yield
        finally:
            preparing.cancel()
            engine.stop()
            await engine.ended(ABORT_SECONDS)
            await health.stop()
            engine.lateness.stop()

    app = FastAPI(
        title="lr-sglang",
        version=__version__,
        openapi_url=None,  # our own route serves a schema that is made once
        redirect_slashes=False,  # a redirect would go to the host that the request names
        lifespan=lifespan,
    )
    app.state.engine, app.state.health, app.state.metrics = engine, health, metrics
    for route in (*ANSWERED, *(OTHERS if service.passes else ())):
        about: Any = {
            "responses": responses_of(route),
            "openapi_extra": body_of(route),
            "summary": route.path,
        }
        app.add_api_route(
            route.path, _answer(engine, route), methods=["POST"], description=route.about, **about
        )
    app.include_router(_models(engine, service))
    app.include_router(_state(engine, health, metrics))
    for path in (
        file for folder in PAGE for file in folder.iterdir()
    ):  # a route for each file hides no other route
        fixed = _fixed(path.read_bytes(), guess_type(path)[0], PAGE_HEADERS)
        name = "/" if path.name == "index.html" else f"/page/{path.name}"
        app.add_api_route(name, fixed, methods=["GET"], include_in_schema=False)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Refusal, _refused)
    app.add_middleware(Guard, service=service, keys=keys or Keys(), metrics=metrics)
    schema = _fixed(described(app, bool(keys)), "application/json", {})
    app.add_api_route("/openapi.json", schema, include_in_schema=False)
    return app


def _answer(engine: AnswerEngine, route: TargetRoute) -> Callable[[Request], Awaitable[Response]]:
    """The handler of a route that answers."""

    async def answer(request: Request) -> Response:
        plan = await engine.plan(route, await read_json(request, engine.service.body_timeout))
        about = request.scope["state"]["about"]
        about |= {"mode": plan.mode_name, "stream": plan.stream} | (
            {"why": plan.why} if plan.why else {}
        )
        headers = (
            {"X-Lookahead-Mode": plan.mode_name, "X-Lookahead-Why": ", ".join(plan.why)}
            if plan.why
            else {}
        )

        def stream(events: AsyncGenerator[bytes, None]) -> EventStream:
            return EventStream(events, headers, about, named=route.reads is None)

        if isinstance(plan, PassedRequest):
            pieces = await begun(request.receive, PassedAnswer(engine, plan, about).pieces())
            if plan.stream:
                return stream(pieces)
            body = b"".join(
                [piece async for piece in pieces]
            )  # a reply that is not streamed is one piece
            return Response(body, headers=headers, media_type="application/json")
        reply = Reply(plan, engine.service.model, about)
        items = together([LookaheadAnswer(engine, one).pieces() for one in plan.each()])
        if plan.stream:
            return stream(await begun(request.receive, events_of(reply.chunks(items))))
        return JSONResponse(await unless_gone(request.receive, reply.whole(items)), headers=headers)

    return answer


def _models(engine: AnswerEngine, service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/models")
    about = {
        "object": "model",
        "created": int(time.time()),
        "owned_by": "lr-sglang",
        "root": service.model,
    }
    allowed = {
        "modes": service.modes,
        "verifiers": service.verifiers,
        "depth": service.lookahead.depth,
        "width": service.lookahead.width,
        "max_depth": service.deepest,
        "max_width": service.widest,
    }

    def named(name: str) -> dict[str, Any]:
        """A model's entry in SGLang's form; that of our own model also has what its requests may
        ask for.
        """
        own = (
            {"parent": None, "lookahead": allowed}
            if name == service.model
            else {"parent": service.model}
        )
        return {"id": name, **about, "max_model_len": engine.roles["target"].context, **own}

    @router.get("", responses={status: ERRORS[status] for status in (401, 403)})
    async def models() -> dict[str, Any]:
        """The model that is served and what its requests may ask for, and the target's LoRA
        adapters.
        """
        return {
            "object": "list",
            "data": [named(name) for name in (service.model, *await engine.adapters())],
        }

    @router.get("/{model:path}", responses={status: ERRORS[status] for status in (401, 403, 404)})
    async def model(model: str) -> dict[str, Any]:
        """One model."""
        if model != service.model and model not in await engine.adapters():
            raise refusal("model_not_found", param="model", asked=model, known=service.model)
        return named(model)

    return router


def _state(engine: AnswerEngine, health: Health, metrics: Metrics) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def alive() -> dict[str, str]:
        """Whether the endpoint itself is alive."""
        return {"status": "ok"}

    @router.get(
        "/ready",
        responses={503: {"description": "The target is down, or the endpoint is shutting down."}},
    )
    async def ready() -> Response:
        """Whether requests can be answered, and which runtimes are well."""
        state = "draining" if engine.admission.closed else health.state
        found = {"status": state, "roles": health.report()}
        return JSONResponse(found, 503 if state in ("down", "draining") else 200)

    @router.get("/metrics", responses={401: ERRORS[401], 200: {"content": {"text/plain": {}}}})
    async def exposed() -> Response:
        """What the endpoint counts, for Prometheus."""
        return Response(metrics.exposed(), media_type=CONTENT_TYPE)

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


def _changed(role: str, reason: str) -> None:
    """Logs that a runtime went down or came back."""
    log("runtime down" if reason else "runtime back", logging.WARNING, role=role, reason=reason)
