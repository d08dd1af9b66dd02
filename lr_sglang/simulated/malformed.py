"""What a runtime that is out of its mind answers: with status 200, and never a generation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

Good = dict[str, Any]


def _meta(**wrong: Any) -> Callable[[Good], Response]:
    return lambda good: JSONResponse({**good, "meta_info": {**good["meta_info"], **wrong}})


# Each takes the answer that would have been right.
KINDS: tuple[Callable[[Good], Response], ...] = (
    lambda good: JSONResponse({"text": "garbage"}),
    lambda good: PlainTextResponse("<html>garbage</html>"),
    lambda good: JSONResponse([good]),
    lambda good: Response(),
    lambda good: JSONResponse({**good, "meta_info": None}),
    lambda good: JSONResponse({**good, "output_ids": ["a", "b"]}),
    lambda good: JSONResponse({**good, "output_ids": [-1, *good["output_ids"]]}),
    lambda good: JSONResponse({**good, "output_ids": None}),
    _meta(finish_reason=None),
    _meta(finish_reason={"type": "stop", "matched": 7}),  # a last token that is not there
    _meta(finish_reason={"type": "abort", "message": "aborted by nobody"}),
    lambda good: JSONResponse("garbage"),
)


def rubbish() -> Iterator[Callable[[Good], Response]]:
    """One kind after the other, without end."""
    return itertools.cycle(KINDS)
