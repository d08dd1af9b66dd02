"""What a bare target and an endpoint before it answer to the same request, and what is not the same
in it.
"""

import json
import math
import re
from typing import Any

from tests.serving import HTTP

# Of each reply its own; and what only a server knows of itself.
OWN = {
    "id",
    "created",
    "created_at",
    "completed_at",
    "model",
    "object",
    "metadata",
    "lookahead",
    "system_fingerprint",
}
OWN |= {"item_id", "call_id", "sequence_number", "cached_tokens"}
# SGLang leaves out those of a usage that count nothing, and of the cache unless it is asked to.
OWN |= {"prompt_tokens_details", "completion_tokens_details"}
TIMES = re.compile(r"time|latency|_ts$|throughput|^id$")  # of ``meta_info``
TEXTS = ("text", "content", "reasoning_content")


def legal(schema: dict[str, Any], all_of_them: dict[str, Any]) -> Any:
    """A value other than the default, by its JSON schema."""
    if "$ref" in schema:
        return legal(all_of_them[schema["$ref"].rpartition("/")[2]], all_of_them)
    if "anyOf" in schema:
        return legal(next(one for one in schema["anyOf"] if one.get("type") != "null"), all_of_them)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "boolean":
            return schema.get("default") is not True
        case "integer":
            return 1
        case "number":
            return 0.5
        case "array":
            return [legal(schema["items"], all_of_them)]
        case "object":
            needed = {name: schema["properties"][name] for name in schema.get("required", ())}
            return {name: legal(one, all_of_them) for name, one in needed.items()}
    return schema.get("const", "a")


def ask(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The status and the answer; of a stream, what its events come to."""
    reply = HTTP.post(url, json=body, timeout=120)
    if reply.status_code != 200:
        return reply.status_code, reply.text
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return 200, reply.json()
    events = [
        line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")
    ]
    ended = events[-1] == "[DONE]"
    told = [json.loads(event) for event in events[: -1 if ended else None]]
    return 200, summed(told) if "choices" in told[0] else {"events": merged(told), "ended": ended}


def summed(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Chunks, or a whole answer, as one: how much text is in one of them is the server's affair."""
    choices: dict[int, dict[str, Any]] = {}
    found: dict[str, Any] = {"choices": choices}
    for chunk in chunks:
        if chunk.get("usage"):
            found |= {"usage": chunk["usage"], "usages": "usage" in found}
        if "lookahead" in chunk:
            found["lookahead"] = chunk["lookahead"]
        for choice in chunk["choices"]:
            said = choices.setdefault(choice["index"], {})
            delta = choice.get("delta") or choice.get("message", {})
            for call in delta.get("tool_calls") or ():
                calls, part = said.setdefault("tool_calls", []), call["function"]
                if part.get("name"):
                    calls.append({**call, "function": {**part, "arguments": ""}})
                calls[-1]["function"]["arguments"] += part.get("arguments") or ""
            for name, value in {**choice, **delta}.items():
                if name in ("delta", "message", "index", "tool_calls") or value is None:
                    continue
                text = isinstance(value, str) and name in TEXTS
                said[name] = said.get(name, "") + value if text else value
    return found


def merged(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events that have names, each piece of a text with the one before it."""
    found: list[dict[str, Any]] = []
    for event in events:
        delta = event.get("delta")
        said = (
            delta
            if isinstance(delta, str)
            else (delta or {}).get("text")
            if isinstance(delta, dict)
            else None
        )
        if said is None:
            found.append(event)
        elif found and found[-1]["type"] == event["type"]:
            found[-1]["said"] += said
        else:
            found.append({"type": event["type"], "said": said})
    return found


def difference(direct: Any, through: Any, path: str = "") -> str:
    """Where the endpoint's answer lacks what is in the target's, or has something else; more is
    allowed.
    """
    if isinstance(direct, dict) and isinstance(through, dict):
        own = TIMES if path.endswith("meta_info") else re.compile("$^")
        same = {
            name: value
            for name, value in direct.items()
            if name not in OWN and not own.search(str(name))
        }
        found = (
            difference(value, through.get(name, "?"), f"{path}.{name}")
            for name, value in same.items()
        )
        return "; ".join(filter(None, found))
    if isinstance(direct, list) and isinstance(through, list) and len(direct) == len(through):
        pairs = enumerate(zip(direct, through, strict=True))
        return "; ".join(
            filter(None, (difference(*pair, f"{path}.{number}") for number, pair in pairs))
        )
    # batches of other sizes add up in another order
    close = (
        isinstance(direct, float)
        and isinstance(through, float)
        and math.isclose(direct, through, rel_tol=1e-3)
    )
    return "" if direct == through or close else f"{path}: {direct!r} but {through!r}"
