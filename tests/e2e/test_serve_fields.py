"""Every field of SGLang's own schema, one request for each: the endpoint answers as the bare target does, at
temperature 0, whole and in a stream. The schema is what the target says of itself, so that no field is forgotten.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from lr_sglang.serve.passed_request import STEERING
from tests.e2e.conftest import Pocket, full
from tests.serving import Process, serving

QUESTION = "Sam has 3 pens. Ben brings 2 pens. How many pens are there?"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMAS = {CHAT: "ChatCompletionRequest", COMPLETIONS: "CompletionRequest"}
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8},
    COMPLETIONS: {"prompt": QUESTION, "max_tokens": 8},
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
FORM = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"type": "integer"}}}
# Where a type alone does not say what is legal, or what changes an answer.
VALUES: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    ],
    "prompt": [QUESTION, "Ann has 4 hats."],
    "model": "pocket",
    "max_tokens": 150,  # to the answer's own end
    "extra_key": "a",
    "cache_salt": "a",
    "watermark": {"enabled": True},
    "temperature": 0,
    "stop": ["pens", "5", "."],
    "logit_bias": {"5": 1.0},
    "response_format": FORM,
    "json_schema": '{"type": "integer"}',
    "regex": "[0-9]{2}",
    "ebnf": 'root ::= "yes" | "no"',
    "stop_token_ids": [5],
    "stop_regex": "[0-9]",
    "input_ids": [5, 6, 7, 8],
    "tools": [TOOL],
    "tool_choice": "none",
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "min_tokens": 4,
}
# Only the bare target takes it: it is code.
REFUSED = {"custom_logit_processor"}
LEFT_OUT = object()
# Of each reply its own; and what only a server knows of itself.
OWN = {"id", "created", "model", "object", "metadata", "lookahead", "system_fingerprint"}
TIMES = re.compile(r"time|latency|_ts$|throughput|^id$")  # of ``meta_info``


@pytest.fixture(scope="module")
def endpoint(pocket: Pocket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("fields")
    options = ("--mode", "lossless", "--verifier", "exact", "--model-name", "pocket")
    with serving(folder, pocket.fleet.urls, *options) as process:
        yield process


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
            return {}
    return "a"


def fields(target: str, route: str) -> dict[str, Any]:
    """Each with a legal value."""
    schemas = httpx.get(f"{target}/openapi.json", timeout=60).json()["components"]["schemas"]
    named = schemas[SCHEMAS[route]]["properties"]
    return {name: VALUES.get(name, legal(schema, schemas)) for name, schema in named.items() if name != "stream"}


def ask(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The status and the answer; of a stream, what its chunks come to."""
    reply = httpx.post(url, json=body, timeout=120)
    if reply.status_code != 200:
        return reply.status_code, reply.text
    if not body["stream"]:
        return 200, {name: value for name, value in reply.json().items() if name not in OWN}
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return 200, summed([json.loads(line) for line in lines])


def summed(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Chunks as one answer: how much text is in one of them is the server's affair."""
    choices: dict[int, dict[str, Any]] = {}
    found: dict[str, Any] = {"choices": choices}
    for chunk in chunks:
        if chunk.get("usage"):
            found |= {"usage": chunk["usage"], "usages": "usage" in found}
        for choice in chunk["choices"]:
            said = choices.setdefault(choice["index"], {})
            for name, value in {**choice, **choice.get("delta", {})}.items():
                if name in ("delta", "index") or value is None:
                    continue
                text = isinstance(value, str) and name in ("text", "content", "reasoning_content")
                said[name] = said.get(name, "") + value if text else value
    return found


def difference(direct: Any, through: Any, path: str = "") -> str:
    """Where the endpoint's answer lacks what is in the target's, or has something else; more is allowed."""
    if isinstance(direct, dict) and isinstance(through, dict):
        own = TIMES if path.endswith("meta_info") else re.compile("$^")
        same = {name: value for name, value in direct.items() if not own.search(str(name))}
        found = (difference(value, through.get(name, "?"), f"{path}.{name}") for name, value in same.items())
        return "; ".join(filter(None, found))
    if isinstance(direct, list) and isinstance(through, list) and len(direct) == len(through):
        pairs = enumerate(zip(direct, through, strict=True))
        return "; ".join(filter(None, (difference(*pair, f"{path}.{number}") for number, pair in pairs)))
    # batches of other sizes add up in another order
    close = isinstance(direct, float) and isinstance(through, float) and math.isclose(direct, through, rel_tol=1e-3)
    return "" if direct == through or close else f"{path}: {direct!r} but {through!r}"


def differences(route: str, stream: bool, target: str, endpoint: str) -> dict[str, str]:
    """The fields that are answered otherwise, with what is not the same."""
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}
    base = {"model": "pocket", "temperature": 0, **PROMPTS[route], **options}

    def compared(field: tuple[str, Any]) -> str:
        name, value = field
        body = {**base, name: value}
        if value is LEFT_OUT:
            del body[name]
        # a field that steers the server is left out by the endpoint
        direct = ask(target + route, base if name in STEERING else body)
        through = ask(endpoint + route, body)
        if direct[0] != through[0]:
            return f"{direct} but {through}"
        return difference(direct[1], through[1]) if direct[0] == 200 else ""

    known = [(name, value) for name, value in fields(target, route).items() if name not in REFUSED]
    assert len(known) > 40
    known.append(("max_tokens", LEFT_OUT))
    with ThreadPoolExecutor(2) as threads:
        found = zip(known, threads.map(compared, known), strict=True)
        return {f"{name}={value}": wrong for (name, value), wrong in found if wrong}


@pytest.mark.parametrize(
    ("route", "stream"), [(CHAT, True), (COMPLETIONS, False), *([(CHAT, False), (COMPLETIONS, True)] if full else ())]
)
def test_every_field_is_answered_as_by_the_target(route, stream, pocket, endpoint):
    assert not differences(route, stream, pocket.fleet.urls["target"], endpoint.url)
