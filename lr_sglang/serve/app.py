"""The endpoint as an application: its routes, and every error in OpenAI's form."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse

from lr_sglang import __version__, results
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.serve.engine import AnswerEngine
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.health import Health
from lr_sglang.serve.keys import Keys
from lr_sglang.serve.logs import log
from lr_sglang.serve.metrics import CONTENT_TYPE, Metrics
from lr_sglang.serve.middleware import Guard, response_of
from lr_sglang.serve.passed_request import MODE, PassedRequest, passed_request, why_headers
from lr_sglang.serve.processes.board import Board
from lr_sglang.serve.protocol import ChatRequest, CompletionRequest, target_only
from lr_sglang.serve.reading import CLIENT_GONE, StrictRoute, message_of
from lr_sglang.serve.replies import Reply
from lr_sglang.serve.request_options import Conclusion, options_of
from lr_sglang.serve.schema import ANSWERS, ERRORS, REPLIES, described
from lr_sglang.serve.settings import Service
from lr_sglang.serve.streaming import Disconnected, EventStream, begun, events_of, named_error, together, unless_gone
from lr_sglang.serve.target_routes import CHAT, COMPLETIONS, OTHERS, TargetRoute

ABORT_SECONDS = 2.0  # at the end, for the runtimes to be rid of the answers that were stopped
PROMPT_THREADS = 4  # they render and tokenize prompts; asyncio's own default grows with the machine's cores
ANSWERED: dict[str, tuple[TargetRoute, type[ChatRequest | CompletionRequest]]] = {
    CHAT.path: (CHAT, ChatRequest),
    COMPLETIONS.path: (COMPLETIONS, CompletionRequest),
}
STAND_IN = [{"role": "user", "content": "?"}]
# The page's own files, and those that the HTML report has too.
PAGE = (Path(__file__).parent / "page", Path(results.__file__).parent / "page" / "shared")


def create_app(
    roles: Mapping[str, RuntimeBackend],
    service: Service,
    keys: Keys | None = None,
    metrics: Metrics | None = None,
    board: Board | None = None,
) -> FastAPI:
    """The application over runtimes that are ready. ``app.state.engine`` makes its answers.

    Args:
        roles: backends by role; from now on their transports are watched.
        metrics, board: of a process that is not the endpoint's only one.

    Raises:
        ConfigError: a verifier lacks its runtime.
    """
    metrics, board = metrics or Metrics(), board or Board()
    health = Health(roles, service, _changed)
    engine = AnswerEngine(roles, service, metrics, health, board)

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        health.start()
        engine.lateness.start()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(PROMPT_THREADS, "lr-prompt"))
        beside = [asyncio.create_task(work) for work in (engine.sharing.run(), engine.check_judge())]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
            engine.stop()
            await engine.ended(ABORT_SECONDS)
            await health.stop()
            engine.lateness.stop()

    app = FastAPI(
        title="lr-sglang",
        version=__version__,
        openapi_url=None,  # ours is made once
        redirect_slashes=False,  # a redirect would go to the host that the request names
        lifespan=living,
    )
    app.state.engine, app.state.health, app.state.metrics, app.state.board = engine, health, metrics, board
    app.include_router(_answers(engine, service, roles["target"]))
    app.include_router(_others(engine, service))
    app.include_router(_state(engine, health, metrics))
    _page(app)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(Refusal, _refused)
    app.add_middleware(Guard, service=service, keys=keys or Keys(), metrics=metrics, board=board)
    app.add_api_route("/openapi.json", _fixed(described(app, bool(keys)), "application/json"), include_in_schema=False)
    return app


def _answers(engine: AnswerEngine, service: Service, target: RuntimeBackend) -> APIRouter:
    class AnswerRoute(StrictRoute):
        """Where the target answers alone what the route's own form of a request has no place for."""

        async def invalid(self, request: Request, error: RequestValidationError) -> Response:
            if self.path not in ANSWERED or not service.passes or not isinstance(error.body, dict):
                raise error
            route, kind = ANSWERED[self.path]
            why = target_only(kind, error.body, error.errors())
            if not why:
                raise error
            if kind is ChatRequest and (found := await engine.thinking.conclusion(error.body, why)) is not None:
                kept = {name: value for name, value in error.body.items() if name not in why}
                body = ChatRequest.model_validate({**kept, "messages": STAND_IN})  # the prompt is rendered already
                return await _respond(engine, service, body, request, found)
            return await _pass_on(engine, passed_request(route, error.body, why, service), request)

    router = APIRouter(prefix="/v1", route_class=AnswerRoute)

    @router.post("/chat/completions", responses=ANSWERS)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answers a conversation."""
        return await _respond(engine, service, body, request)

    @router.post("/completions", responses=ANSWERS)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Goes on with a raw prompt."""
        return await _respond(engine, service, body, request)

    about = {"object": "model", "created": int(time.time()), "owned_by": "lr-sglang", "root": service.model}
    allowed = {
        "modes": service.modes,
        "verifiers": service.verifiers,
        "depth": service.lookahead.depth,
        "width": service.lookahead.width,
        "max_depth": service.deepest,
        "max_width": service.widest,
    }

    def named(name: str) -> dict[str, Any]:
        """As SGLang lists them; of our own also what its requests may ask for."""
        own = {"parent": None, "lookahead": allowed} if name == service.model else {"parent": service.model}
        return {"id": name, **about, "max_model_len": target.context, **own}

    @router.get("/models", responses={status: ERRORS[status] for status in (401, 403)})
    async def models() -> dict[str, Any]:
        """The model that is served and what its requests may ask for, and the target's LoRA adapters."""
        return {"object": "list", "data": [named(name) for name in (service.model, *await engine.passing.adapters())]}

    @router.get("/models/{model:path}", responses={status: ERRORS[status] for status in (401, 403, 404)})
    async def model(model: str) -> dict[str, Any]:
        """One model."""
        if model != service.model and model not in await engine.passing.adapters():
            raise refusal("model_not_found", param="model", asked=model, known=service.model)
        return named(model)

    return router


async def _respond(
    engine: AnswerEngine,
    service: Service,
    body: ChatRequest | CompletionRequest,
    request: Request,
    conclusion: Conclusion | None = None,
) -> Response:
    alone: tuple[str, ...] = ()
    if service.passes and body.model.startswith(f"{service.model}:"):  # an adapter of the target's, which has no draft
        alone = ("model",)
    elif service.passes and body.n and body.n > service.concurrency:  # more than can be made here at a time
        alone = ("n",)
    options = None if alone else replace(options_of(body, service), conclusion=conclusion)
    if options is None or (conclusion is not None and not options.mode.ahead):
        route, _ = ANSWERED[request.scope["path"]]
        why = alone or (conclusion.why if conclusion is not None else ())
        return await _pass_on(engine, passed_request(route, await request.json(), why, service), request)
    about = request.scope["state"]["about"]
    about["mode"], about["stream"] = options.mode.name, options.stream
    about |= {} if conclusion is None else {"why": conclusion.why}
    reply = Reply(options, service.model, about["id"], about)
    items = together([engine.answer(one) for one in options.each()])
    headers = {} if conclusion is None else why_headers(options.mode.name, conclusion.why)
    if options.stream:
        chunks = await begun(request.receive, events_of(reply.chunks(items)))
        return EventStream(chunks, lambda error: about.update(error.log_fields()), headers)
    return JSONResponse(await unless_gone(request.receive, reply.whole(items)), headers=headers)


async def _pass_on(engine: AnswerEngine, asked: PassedRequest, request: Request) -> Response:
    about = request.scope["state"]["about"]
    about |= {"mode": MODE, "stream": asked.stream, "why": asked.why}
    pieces = await begun(request.receive, engine.passing.answer(asked, about))
    if asked.stream:
        last = {} if asked.route.extended else {"last": named_error}
        return EventStream(pieces, lambda error: about.update(error.log_fields()), asked.headers, **last)
    body = b"".join([piece async for piece in pieces])  # all of it is there when it begins
    return Response(body, headers=asked.headers, media_type="application/json")


def _others(engine: AnswerEngine, service: Service) -> APIRouter:
    """The routes that the target answers, whatever a request says."""
    router = APIRouter(route_class=StrictRoute)

    def answers(route: TargetRoute) -> Callable[..., Awaitable[Response]]:
        async def answer(body: dict[str, Any], request: Request) -> Response:
            return await _pass_on(engine, passed_request(route, body, ("route",), service), request)

        return answer

    for route in OTHERS if service.passes else ():
        about: Any = {"methods": ["POST"], "responses": REPLIES, "description": route.about, "summary": route.path}
        router.add_api_route(route.path, answers(route), **about)
    return router


def _state(engine: AnswerEngine, health: Health, metrics: Metrics) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def alive() -> dict[str, str]:
        """Whether the endpoint itself is alive."""
        return {"status": "ok"}

    @router.get("/ready", responses={503: {"description": "The target is down, or the endpoint is shutting down."}})
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


def _page(app: FastAPI) -> None:
    """Every file of the page by its own name, so that no route is hidden by it."""
    policy = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'; img-src 'self' data:"
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    for path in (file for folder in PAGE for file in folder.iterdir()):
        route = "/" if path.name == "index.html" else f"/page/{path.name}"
        file = _fixed(path.read_bytes(), guess_type(path)[0], **headers, **{"Cache-Control": "no-cache"})
        app.add_api_route(route, file, methods=["GET"], include_in_schema=False)


def _fixed(content: bytes, kind: str | None, **headers: str) -> Any:
    """A route that always says the same, and costs next to nothing."""

    async def fixed() -> Response:
        return Response(content, headers=headers, media_type=kind)

    return fixed


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    message, param = message_of(error.errors())
    response = response_of(Refusal(400, message, param=param), request.scope)
    if param:
        request.scope["state"]["about"]["param"] = param.partition(".")[0]  # what follows may be a word of the client's
    return response


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, StarletteHTTPException):
        if error.status_code == CLIENT_GONE:
            raise Disconnected from error
        if error.status_code == 413:
            refused = refusal("request_too_large", limit=request.app.state.engine.service.max_body_bytes)
        elif error.status_code == 503:
            refused = refusal("overloaded")
        else:
            refused = Refusal(error.status_code, _said(error, request))
        response = response_of(refused, request.scope)
        response.headers.update(error.headers or {})
        return response
    return response_of(refusal_of(error), request.scope)


def _said(error: StarletteHTTPException, request: Request) -> str:
    if error.status_code == 404:
        return "There is no such route; /v1/chat/completions, /v1/completions and /v1/models are there"
    if error.status_code == 405:
        return f"This route does not take {request.method}"
    return str(error.detail)


def _changed(role: str, reason: str) -> None:
    """A runtime went down, or came back."""
    log("runtime down" if reason else "runtime back", logging.WARNING, role=role, reason=reason)
