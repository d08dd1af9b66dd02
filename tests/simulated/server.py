"""A simulated runtime over HTTP: the routes of a SGLang server that lr-sglang uses, and
``/faults``.
"""

import asyncio
import itertools
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lr_sglang.errors import LookaheadError
from tests.simulated.model import Simulation, Writer
from tests.simulated.runtime import NEVER, Fault, SimulatedRuntime
from tests.simulated.words import tokenizer_path

Handler = Callable[[Request], Awaitable[Response]]
# The errors that an invalid request body may raise.
_UNREADABLE = (TypeError, ValueError, AttributeError, LookupError, OverflowError, LookaheadError)


def _meta(**wrong: Any) -> Callable[[dict[str, Any]], Response]:
    return lambda good: JSONResponse({**good, "meta_info": {**good["meta_info"], **wrong}})


# Functions that turn a correct reply into one with status 200 that is no generation.
# a matched token that is not among the ids
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
    _meta(finish_reason={"type": "stop", "matched": 7}),
    _meta(finish_reason={"type": "abort", "message": "not asked for"}),
    lambda good: JSONResponse("garbage"),
)


class SimulatedServer:
    """The routes of one runtime."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.runtime = runtime
        self.name = f"simulated-{runtime.role}"
        self._malformed = itertools.cycle(MALFORMED)

    def app(self) -> Starlette:
        about = self._info()
        routes: list[tuple[str, str, Handler]] = [
            ("POST", "/generate", self._generate),
            ("POST", "/abort_request", self._abort),
            ("GET", "/health", _says(lambda: PlainTextResponse(""))),
            ("GET", "/model_info", _says(lambda: JSONResponse(about))),
            ("GET", "/server_info", _says(lambda: JSONResponse(about))),
            ("GET", "/v1/models", _says(lambda: JSONResponse(self._models()))),
            ("GET", "/v1/loads", _says(lambda: JSONResponse(self._loads()))),
            ("GET", "/flush_cache", _says(lambda: PlainTextResponse("Cache flushed.\n"))),
            ("POST", "/faults", self._order),
            ("DELETE", "/faults", _says(self._recover)),
        ]
        return Starlette(
            routes=[Route(path, handler, methods=[method]) for method, path, handler in routes]
        )

    async def _generate(self, request: Request) -> Response:
        asked = await _json(request)
        try:
            if "input_ids" not in asked:
                asked["input_ids"] = list(self.runtime.writer.words.tokenizer.encode(asked["text"]))
            return await self._answer(request, asked, str(asked.get("rid") or uuid.uuid4().hex))
        except _UNREADABLE as error:
            return _refusal(400, f"the request cannot be understood: {error}")

    async def _answer(self, request: Request, asked: dict[str, Any], rid: str) -> Response:
        fault = self.runtime.faults.next()
        kind = fault.kind if fault is not None else ""
        if kind == "hang":
            return await _unless_gone(request, asyncio.sleep(NEVER)) or _refusal(500, "")
        late = fault.seconds if fault and kind == "late" else 0.0
        answer = await _unless_gone(request, self.runtime.answer(asked, rid, late))
        if kind in ("fail", "busy") or answer is None:
            return _refusal(503 if kind == "busy" else 500, "a fault was ordered")
        return next(self._malformed)(answer) if kind == "garbage" else JSONResponse(answer)

    async def _abort(self, request: Request) -> Response:
        asked = await _json(request)
        self.runtime.abort(str(asked.get("rid") or ""), bool(asked.get("abort_all")))
        return PlainTextResponse("")

    async def _order(self, request: Request) -> Response:
        self.runtime.faults.order(Fault(**await _json(request)))
        return JSONResponse({})

    def _recover(self) -> Response:
        self.runtime.faults.clear()
        return JSONResponse({})

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
    return dict(await request.json())


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


# -- on ports


HOST = "127.0.0.1"


class _Server(uvicorn.Server):
    """Serves all roles; the port of a request decides the role.

    Args:
        apps: by port.
        ready: called when all roles can answer.
    """

    def __init__(self, apps: Mapping[int, Any], ready: Callable[[], None]) -> None:
        self._apps, self._ready = apps, ready
        config = uvicorn.Config(
            self._route, interface="asgi3", log_level="warning", access_log=False, lifespan="off"
        )
        config.timeout_keep_alive = 60
        super().__init__(config)

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        await self._apps[scope["server"][1]](scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes all connections without waiting for requests, which may hang."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


def serve(
    simulation: Simulation, ports: Mapping[str, int], ready: Callable[[dict[str, str]], None]
) -> None:
    """Serves on 127.0.0.1 until it is interrupted.

    Args:
        ports: by role; 0 for any free port.
        ready: called with the URLs by role, when all roles can answer.
    """
    sockets = {role: listen(port) for role, port in ports.items()}
    taken = {role: sock.getsockname()[1] for role, sock in sockets.items()}
    writer = Writer(simulation.model)
    apps = {
        port: SimulatedServer(SimulatedRuntime(role, simulation, writer)).app()
        for role, port in taken.items()
    }
    urls = {role: f"http://{HOST}:{port}" for role, port in taken.items()}
    asyncio.run(_Server(apps, lambda: ready(urls)).serve(list(sockets.values())))


def listen(port: int = 0) -> socket.socket:
    """A socket that listens on this machine."""
    sock = socket.create_server((HOST, port))
    # Connections inherit it. asyncio sets it on its own sockets only; without it, a reply in two
    # parts takes 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
