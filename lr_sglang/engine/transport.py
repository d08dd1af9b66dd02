"""The interface of a backend to its runtime, and what goes through it to the routes that the runtime alone knows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lr_sglang.engine.request import Request

INFO_SECONDS = 10.0  # for a document of the runtime


@dataclass(frozen=True)
class Post:
    """A request to any route.

    Attributes:
        rid: the request's id, which the payload has as well if it has a field for it.
        batch: parts of the payload; SGLang gives each an id that ends with _0, _1 and so on.
    """

    path: str
    payload: Mapping[str, Any]
    rid: str
    batch: int = 0


@dataclass(frozen=True)
class Head:
    """The beginning of a reply."""

    status: int
    content_type: str


class Transport(Protocol):
    """How a backend reaches its runtime: ``Client`` over HTTP, or a simulated runtime."""

    async def generate(self, payload: dict[str, Any], request: Request, timeout: float) -> dict[str, Any]:
        """Posts one /generate and returns its reply."""

    async def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        """Reads a JSON document of the runtime."""

    async def post(self, path: str, body: dict[str, Any], timeout: float = INFO_SECONDS) -> dict[str, Any]:
        """Posts JSON to a route that computes nothing, such as ``/tokenize``, and reads its JSON."""

    def forward(self, post: Post, request: Request, timeout: float) -> AsyncGenerator[Head | bytes, None]:
        """Posts to any route and gives its reply as it comes: the head, then the bytes of the body."""

    async def close(self) -> None:
        """Closes the connections."""
