"""A target that thinks, on real servers: it thinks by lookahead reasoning, and then calls a tool or
answers in JSON, by SGLang's own parsers and grammar, as the bare target does.
"""

import ast
import json
import socket
from typing import Any

import httpx
import pytest

from lr_sglang.engine.tokenizer import load_tokenizer
from lr_sglang.pocket import weights
from lr_sglang.tasks import Question, load
from tests import FULL
from tests.compared import ask
from tests.serving import HTTP, in_flight, until, until_idle
from tools.pocket.thinking import AS_JSON, SCHEMA, TOOL, TOOLS

PATH = "/v1/chat/completions"
EXACT = {"mode": "lossless"}
SAMPLES = load("pocket", limit=6 if FULL else 2)
WHY = {"tool": ["tools"], "json": ["response_format"], "result": ["tools"]}


def answered(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The only choice, with the message's fields, and what the endpoint says of it; a stream is put
    together.
    """
    status, whole = ask(url + PATH, {"temperature": 0, "max_tokens": 300, **body})
    assert status == 200, whole
    (choice,) = whole["choices"].values() if body["stream"] else whole["choices"]
    said = choice.get("message", choice)
    calls = [call["function"] for call in said.get("tool_calls") or ()]
    told = {
        "thought": said["reasoning_content"],
        "content": (said.get("content") or "").strip(),
        "calls": [(call["name"], json.loads(call["arguments"])) for call in calls],
        "finish": choice["finish_reason"],
    }
    return {**told, "tokens": whole["usage"]["completion_tokens"], "about": whole.get("lookahead")}


def asked(sample: Question, way: str, stream: bool) -> dict[str, Any]:
    """For a call of the tool, for JSON, or for the answer after the tool has said its result."""
    question = {"role": "user", "content": sample.question}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    body = {"model": "thinker", "messages": [question], "stream": stream, **options}
    if way == "json":
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        return {
            **body,
            "messages": [{**question, "content": f"{sample.question}\n{AS_JSON}"}],
            "response_format": form,
        }
    if way == "result":
        function = {"name": TOOL, "arguments": json.dumps({"expression": "1 + 1"})}
        called = [{"id": "c", "type": "function", "function": function}]
        said = {"role": "tool", "tool_call_id": "c", "content": sample.answer}
        body["messages"] = [
            question,
            {"role": "assistant", "content": None, "tool_calls": called},
            said,
        ]
    return {**body, "tools": TOOLS}


def value(expression: str) -> int:
    """Of one operation."""
    tree = ast.parse(expression, mode="eval").body
    assert isinstance(tree, ast.BinOp)
    a, b = (ast.literal_eval(side) for side in (tree.left, tree.right))
    return {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b}[type(tree.op)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", ["tool", "json", "result"])
def test_it_thinks_by_lookahead_and_concludes_as_the_bare_target(way, stream, thinking):
    """By the exact verifier, so that not a word of it may differ."""
    right, drafted = 0, 0
    samples = SAMPLES if FULL else SAMPLES[stream:][:1]
    for sample in samples:
        body = asked(sample, way, stream)
        direct = answered(thinking.fleet.urls["target"], body)
        through = answered(thinking.endpoint.url, {**body, "lookahead": EXACT})
        about = through.pop("about")
        assert {**through, "about": None} == direct
        assert about["mode"] == "lossless" and sorted(about["why"]) == WHY[way]
        drafted += about["drafted_tokens"]
        right += concluded(way, through) == sample.answer
    assert drafted and right >= len(samples) // 2
    until_idle(thinking.fleet.urls)


@pytest.mark.parametrize("way", ["tool", "json", "result"] if FULL else ["tool"])
def test_with_a_seed_it_thinks_and_concludes_as_the_bare_target_draws(way, thinking):
    """Above temperature 0: one seed for all, and places from the first token of the thinking."""
    body = {**asked(SAMPLES[0], way, False), "temperature": 0.8, "seed": 11}
    direct = answered(thinking.fleet.urls["target"], body)
    through = answered(thinking.endpoint.url, {**body, "lookahead": EXACT})
    about = through.pop("about")
    assert {**through, "about": None} == direct and about["mode"] == "lossless"
    if way != "result":  # in which hardly anything is left to think about
        other = answered(thinking.endpoint.url, {**body, "seed": 12, "lookahead": EXACT})
        assert other["thought"] != direct["thought"]


@pytest.mark.parametrize("most", [3, 10, 95])
def test_an_answer_that_is_cut_is_cut_as_on_the_bare_target(most, thinking):
    """In the thinking, and within a call of a tool, which is no content."""
    body = {**asked(SAMPLES[0], "tool", False), "max_tokens": most, "temperature": 0}
    made = []
    for url, more in (
        (thinking.fleet.urls["target"], {}),
        (thinking.endpoint.url, {"lookahead": EXACT}),
    ):
        whole = HTTP.post(url + PATH, json={**body, **more}, timeout=120).json()
        message = whole["choices"][0]["message"]
        said = [message["content"] or "", message["reasoning_content"], message.get("tool_calls")]
        counts = [whole["usage"][name] for name in ("completion_tokens", "reasoning_tokens")]
        # of a thought without an end, SGLang counts tokens that it does not deliver
        counts = counts[: 1 if most < 95 else 2]
        made.append((said, whole["choices"][0]["finish_reason"], counts))
    assert made[0] == made[1] and made[0][2][0] == most


NO_FORMS = {
    "regex": {"regex": "[0-9"},
    "pattern": {"type": "string", "pattern": "[0-9"},
    "reference": {"$ref": "#/$defs/nowhere"},
    "type": {"response_format": {"type": "json_scheme"}},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", NO_FORMS)
def test_a_form_that_is_none_is_refused_before_the_first_thought(name, stream, thinking):
    form = NO_FORMS[name]
    if name in ("pattern", "reference"):
        schema = {"name": "answer", "schema": form}
        form = {"response_format": {"type": "json_schema", "json_schema": schema}}
    for mode in ("lossless", "autoregressive"):
        body = {"model": "thinker", "messages": [{"role": "user", "content": "?"}], **form}
        body |= {"stream": stream, "lookahead": {"mode": mode}}
        reply = HTTP.post(thinking.endpoint.url + PATH, json=body, timeout=120)
        if name == "type" and mode == "lossless":
            assert reply.json()["error"]["param"] == "response_format"  # which it cannot follow
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error" and error["message"]


def concluded(way: str, said: dict[str, Any]) -> str:
    """The answer that it comes to; it has the form that was asked for."""
    assert said["thought"] and "<think>" not in said["thought"] + said["content"]
    if way == "tool":
        ((name, arguments),) = said["calls"]
        assert name == TOOL and set(arguments) == {"expression"} and said["finish"] == "tool_calls"
        return str(value(arguments["expression"]))
    assert said["finish"] == "stop" and not said["calls"]
    if way == "json":
        made = json.loads(said["content"])
        assert set(made) == {"answer"} and isinstance(made["answer"], int)
        return str(made["answer"])
    return said["content"].partition("boxed{")[2].partition("}")[0]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_who_hangs_up_while_it_thinks_leaves_nothing_on_the_servers(stream, thinking):
    closes, *_ = load_tokenizer(str(weights("target-thinks"))).encode("</think>")
    endless = {"temperature": 0, "ignore_eos": True, "logit_bias": {str(closes): -100}}
    body = json.dumps({**asked(SAMPLES[1], "tool", stream), **endless}).encode()
    before = thinking.endpoint.disconnected()
    url = httpx.URL(thinking.endpoint.url)
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
        f"application/json\r\ncontent-length: {len(body)}"
    )
    with socket.create_connection((url.host, url.port), 10) as client:
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        until(lambda: in_flight(thinking.fleet.urls)["target"], 10, every=0.01)
    until(lambda: thinking.endpoint.disconnected() > before, 10)
    until_idle(thinking.fleet.urls)
