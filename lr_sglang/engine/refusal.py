"""Named errors for the error statuses of a runtime."""

from __future__ import annotations

from contextlib import suppress

import orjson

from lr_sglang.errors import PromptTooLong, RuntimeBusy, RuntimeRefused


class WorkerLost(RuntimeBusy):
    """The router's worker for the request does not answer; another worker may."""


def refusal(status: int, text: str, path: str, role: str, code: str = "") -> RuntimeRefused:
    """The named error for an error status, which it has as ``status``."""
    made = _named(status, text, path, role, code)
    made.status = status
    return made


def _named(status: int, text: str, path: str, role: str, code: str) -> RuntimeRefused:
    with suppress(ValueError, AttributeError):  # if it is not JSON, the text is the message
        parsed = orjson.loads(text)
        text = (parsed.get("error") or {}).get("message") or parsed.get("message") or text
    text = str(text).strip()[:500]
    if status == 500 and code.startswith(("call_upstream", "read_response")):
        hint = "check that the router's workers are running"
        return WorkerLost(f"{path}: the router has lost a worker: {text}", role=role, hint=hint)
    if status in (401, 403):
        return RuntimeRefused(
            f"{path}: {status} {text}", role=role, hint="set api_key_env in the deployment file"
        )
    if status in (429, 502, 503, 504):
        return RuntimeBusy(
            f"{path}: {status} {text}", role=role, hint="ask for less at a time: --concurrency"
        )
    if "context length" in text or "longer than the model" in text:
        return PromptTooLong(text, role=role, hint="shorten the prompt, or lower --max-tokens")
    return RuntimeRefused(f"{path}: {status} {text}", role=role)
