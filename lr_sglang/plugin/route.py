"""The route of a server to which controllers post lines, in the process that speaks HTTP.

It asks for the key that ``/generate`` asks for, if any. A message is sent on to the scheduler by
SGLang's own path, which gives it to every rank of tensor parallelism before the same pass, and to
every replica of data parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from lr_sglang.plugin.feeding import MARK
from lr_sglang.sglang_api.plugin_protocol import MAX_MESSAGE_BYTES, ROUTE, Delivery, read_deliveries


def add_route(*_: Any, **__: Any) -> None:
    """Before http_server.launch_server."""
    from sglang.srt.entrypoints import http_server

    http_server.app.add_route(ROUTE, take, methods=["POST"])


async def take(request: Request) -> Response:
    """Answers a message: ``{"taken": number of lines, "refused": [[request id, reason], ...]}``."""
    from sglang.srt.entrypoints import http_server

    manager = http_server.get_global_state().tokenizer_manager
    if manager.server_args.speculative_algorithm != "NGRAM":
        return _refusal("this server has no n-gram layer (--speculative-algorithm NGRAM)")
    body = await _body(request)
    if body is None:
        return _refusal(f"the message has more than {MAX_MESSAGE_BYTES} bytes", 413)
    try:
        found = read_deliveries(orjson.loads(body), manager.model_config.vocab_size)
    except ValueError as error:  # orjson's is one too
        return _refusal(str(error))
    if found.taken:
        manager._dispatch_to_scheduler(carrier(found.taken))
    answer = {"taken": len(found.taken), "refused": found.refused}
    return Response(orjson.dumps(answer), media_type="application/json")


def carrier(deliveries: Sequence[Delivery]) -> Any:
    """SGLang's message that carries them; `feeding.Feeder.keep` reads it."""
    from sglang.srt.managers.io_struct import AddExternalCorpusReqInput

    return AddExternalCorpusReqInput(
        corpus_id=MARK,
        documents=[one.rid for one in deliveries],
        token_chunks=[[one.place, *one.ids] for one in deliveries],
    )


async def _body(request: Request) -> bytes | None:
    """The request's body; None if it is too large."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_MESSAGE_BYTES:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _refusal(reason: str, status: int = 400) -> Response:
    body = {"error": {"message": reason, "code": status}}
    return Response(orjson.dumps(body), status, media_type="application/json")
