"""The route of a server to which controllers post lines, in the process that speaks HTTP.

It asks for the key that ``/generate`` asks for, if any. A message is sent on to the scheduler by
SGLang's own path, which gives it to every rank of tensor parallelism before the same pass, and to
every replica of data parallelism.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from lr_sglang.plugin.feeding import MARK
from lr_sglang.sglang_api.lines import MAX_MESSAGE_BYTES, ROUTE, Message, read_message


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
        message = read_message(orjson.loads(body), manager.model_config.vocab_size)
    except ValueError as error:  # orjson's is one too
        return _refusal(str(error))
    if message.lines:
        manager._dispatch_to_scheduler(carrier(message))
    answer = {"taken": len(message.lines), "refused": message.refused}
    return Response(orjson.dumps(answer), media_type="application/json")


def carrier(message: Message) -> Any:
    """SGLang's message that carries the lines; `feeding.FedLayer.keep` reads it."""
    from sglang.srt.managers.io_struct import AddExternalCorpusReqInput

    return AddExternalCorpusReqInput(
        corpus_id=MARK,
        documents=[line.rid for line in message.lines],
        token_chunks=[[line.place, *line.ids] for line in message.lines],
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
