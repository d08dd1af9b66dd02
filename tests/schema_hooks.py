"""Hooks for ``schemathesis run`` (SCHEMATHESIS_HOOKS=tests.schema_hooks)."""

from __future__ import annotations

from typing import Any

import schemathesis

LONGEST_NAME = 512  # a longer one is wrong by itself


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Most requests name the model that there is; otherwise hardly any would get past it."""
    name = body.get("model") if isinstance(body, dict) else None
    if isinstance(name, str) and len(name) <= LONGEST_NAME and len(name) % 4 != 3:
        return {**body, "model": "simulated"}
    return body


@schemathesis.check
def errors_as_openai_has_them(context: Any, response: Any, case: Any) -> None:
    """The schema says so too, but not of routes and methods that it does not know."""
    if response.status_code >= 400:
        body = response.json()
        assert list(body) == ["error"], f"not an error: {body}"
        assert set(body["error"]) == {"message", "type", "param", "code"}, f"not an error: {body}"
