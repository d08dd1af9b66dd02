"""What an error status of a runtime means."""

from __future__ import annotations

from contextlib import suppress

import orjson

from lr_sglang.errors import PromptTooLong, RuntimeBusy, RuntimeRefused


class WorkerLost(RuntimeBusy):
    """The worker that a router sent the request to does not answer: another one may."""


def refusal(status: int, text: str, path: str, role: str, code: str = "") -> RuntimeRefused:
    """The named error for an error status."""
    with suppress(ValueError, AttributeError):  # not JSON: the text itself is the message
        parsed = orjson.loads(text)
        text = (parsed.get("error") or {}).get("message") or parsed.get("message") or text
    text = str(text).strip()[:500]
    if status == 500 and code.startswith(("call_upstream", "read_response")):
        hint = "are the router's workers still running?"
        return WorkerLost(f"{path}: the router has lost a worker: {text}", role=role, hint=hint)
    if status in (401, 403):
        return RuntimeRefused(f"{path}: {status} {text}", role=role, hint="set api_key_env in the deployment file")
    if status in (429, 502, 503, 504):
        return RuntimeBusy(f"{path}: {status} {text}", role=role, hint="ask for less at a time: --concurrency")
    if "context length" in text or "longer than the model" in text:
        return PromptTooLong(text, role=role, hint="shorten the prompt, or lower --max-tokens")
    return RuntimeRefused(f"{path}: {status} {text}", role=role)
