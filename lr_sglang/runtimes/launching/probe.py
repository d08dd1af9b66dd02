"""Requests that find out whether a runtime is up, and which model it runs.

They do not use ``/health``, which may generate a token and takes a second at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lr_sglang.engine.client import Client
from lr_sglang.engine.loop import call
from lr_sglang.errors import BadReply

PROBED_SAMPLING = MappingProxyType({"temperature": 0.6, "top_p": 0.95, "top_k": 20})


@dataclass(frozen=True)
class ModelInfo:
    """The model that a server reports; paths are those of its machine.

    Attributes:
        generates: False for a reward model, which only scores texts.
    """

    model: str
    tokenizer: str
    generates: bool = True


def model_info(
    url: str, *, api_key: str = "", timeout: float = 5.0, role: str | None = None
) -> ModelInfo:
    """Asks a server what it runs.

    Raises:
        RuntimeDown: no server answers.
        RuntimeTimeout: the answer takes longer than ``timeout`` seconds.
        RuntimeRefused: it answers with an error status (a wrong API key, for example).
        BadReply: it answers with something else.
    """
    reply = document(url, "/model_info", api_key=api_key, timeout=timeout, role=role)
    return info_of(reply, url, role)


def info_of(reply: Mapping[str, Any], url: str, role: str | None) -> ModelInfo:
    """A server's ``/model_info``; raises ``BadReply`` if it is none."""
    try:
        model = str(reply["model_path"])
        tokenizer = str(reply.get("tokenizer_path") or model)
        return ModelInfo(model, tokenizer, bool(reply.get("is_generation", True)))
    except (TypeError, KeyError, AttributeError):
        raise BadReply(
            f"{url}/model_info answers with something that is not SGLang's", role=role
        ) from None


def warm(
    url: str,
    *,
    timeout: float,
    role: str,
    sampled: Mapping[str, Any] | None,
    generates: bool,
) -> None:
    """Generates a few tokens, greedy and sampled, so that no question waits for code that is
    compiled on first use; a reward model scores a text.

    Raises: as ``model_info``.
    """
    if not generates:
        document(url, "/classify", {"text": "1 + 1 ="}, timeout=timeout, role=role)
        return
    # a client may ask for another temperature
    drawn = sampled if sampled and sampled.get("temperature") else PROBED_SAMPLING
    for sampling in ({"temperature": 0}, drawn):
        body = {
            "text": "1 + 1 =",
            "sampling_params": {"max_new_tokens": 4, "ignore_eos": True, **sampling},
        }
        document(url, "/generate", body, timeout=timeout, role=role)


def document(
    url: str,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    api_key: str = "",
    timeout: float = 5.0,
    role: str | None = None,
) -> dict[str, Any]:
    """The JSON document at a URL, or the JSON reply to a body that is posted there.

    Raises: as ``model_info``.
    """
    client = Client(url, role or "", api_key)

    async def asked() -> dict[str, Any]:
        try:
            return await (
                client.get(path, timeout) if body is None else client.post(path, body, timeout)
            )
        finally:
            await client.close()

    return call(asked())
