"""Requests that lookahead reasoning cannot follow: the target's own routes answer them, through the
endpoint.
"""

import ast
import json
import socket
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from lr_sglang.engine.client import Client
from lr_sglang.serve.protocol import ChatRequest, CompletionRequest, other_route
from lr_sglang.serve.requests import STEERING, Common
from lr_sglang.serve.settings import Keys
from tests import fixture_of
from tests.endpoint import ASK, CHAT, COMPLETIONS, SERVICE, TOOL, is_documented, scripted, serving
from tests.serving import until
from tests.stub import Stub, hung_up, served

NAME = "org/target"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
# As SGLang writes them, with texts in which a careless reader would see more than texts.
TEXT = 'é "choices":[] "usage":{} "model":"org/target"\\n\\ndata: [DONE]'
PIECES = [
    {"choices": [{"index": 0, "delta": {"content": word}}], "usage": None}
    for word in (TEXT, "b", "c")
]
EVENTS = [
    {"id": "r1", "model": NAME, **piece} for piece in (*PIECES, {"choices": [], "usage": USAGE})
]
WHOLE = {
    "id": "r1",
    "model": NAME,
    "choices": [{"index": 0, "message": {"content": TEXT}}],
    "usage": USAGE,
}


def packed(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


STREAM = b"".join(b"data: " + packed(event) + b"\n\n" for event in EVENTS) + b"data: [DONE]\n\n"


# What SGLang answers under /v1/, besides both above; none of it changes the server.
OTHERS = (
    *("/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"),
    *("/v1/classify", "/v1/score", "/v1/rerank", "/v1/tokenize", "/v1/detokenize"),
    *("/v1/decisions", "/v1/systemone", "/v1/audio/transcriptions"),
)
# What concerns a request of another client.
NOT_PASSED = ("/v1/responses/{response_id}/cancel",)
# As FastAPI tells of a wrong field, with a place on the server's machine.
FIELD = "{'type': 'missing', 'loc': ('body', 'input'), 'msg': 'Field required', 'input': {}}"
PLACES = (
    f'1 validation error:\n  {FIELD}\n\n  File "/opt/s/http.py", line 7, in f\n    POST [{FIELD}]'
)
# What it replies with to some values of ``user``: body, status, kind.
REPLIES = {
    "places": (
        packed({"message": PLACES, "type": "Bad Request", "code": 400}),
        400,
        "application/json",
    ),
    "words": (packed({"error": "wrong: words"}), 400, "application/json"),
    "list": (packed([{"score": 1}]), 200, "application/json"),
    "nested": (
        packed({"error": {"message": "the context length is less", "param": "messages"}}),
        400,
        "application/json",
    ),
    "garbage": (b"<html>", 200, "text/html"),
    **{
        name: (
            b"data: " + packed({"error": {"message": "Unclosed '['", "code": code}}) + b"\n\n",
            200,
            "text/event-stream",
        )
        for name, code in (("late", 400), ("later", "internal"))
    },
}


class Upstream(Stub):
    """A server with SGLang's routes, which does what the field ``user`` says.

    Attributes:
        sent: path, headers and body of each request.
    """

    def __init__(self):
        super().__init__()
        self.sent, self.generate = [], self._answer
        self.documents = {"/health": b"", "/v1/models": {"data": [{"id": NAME}, {"id": "poet"}]}}

    def _answer(self, handler, body):
        self.sent.append((handler.path, handler.headers, body))
        what = str(body.get("user", ""))
        if what.isdecimal():
            error = {
                "object": "error",
                "message": f"wrong: {what}",
                "type": "BadRequest",
                "param": None,
                "code": 400,
            }
            handler.reply(error, int(what))
        elif what in REPLIES:
            content, status, kind = REPLIES[what]
            handler.reply(content, status, {"Content-Type": kind})
        elif body.get("stream"):
            handler.stream(self._pieces(handler, body, what))
        elif what == "slow":
            self.until_closed(handler, body)
        else:
            handler.reply(packed(WHOLE), headers={"Content-Type": "application/json"})

    def _pieces(self, handler, body, what):
        for at in range(0, len(STREAM), 7):  # that end within events, and within characters
            yield STREAM[at : at + 7]
            if at > 300 and what == "breaks":
                hung_up(handler, body)
            if at > 300 and what == "slow":
                self.until_closed(handler, body)


@contextmanager
def passing(service=SERVICE, keys=None):
    with served(Upstream()) as target:
        roles = scripted(["one", "two"])
        roles["target"].transport = Client(target.url, "target")
        with serving(roles, service, keys) as one:
            one.target = target
            yield one


one = fixture_of(passing)
locked = fixture_of(lambda: passing(keys=Keys(["sk-right"])))


def asked(path, **more):
    own = {"model": "lookahead", "prompt": "Once"} if path == COMPLETIONS else ASK
    return {**own, **more}


IMAGE = [
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}],
    }
]
CHATS = [
    (
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        "tools, tool_choice",
    ),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logprobs": True, "top_logprobs": 2}, "logprobs, top_logprobs"),
    ({"n": 50}, "n"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"messages": IMAGE}, "messages"),
    ({"regex": "a+"}, "regex"),
    ({"chat_template_kwargs": {"chat_template": "?"}}, "chat_template_kwargs"),
]
COMPLETED = [
    ({"echo": True}, "echo"),
    ({"logprobs": 0}, "logprobs"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"json_schema": "{}"}, "json_schema"),
]
PASSED = [*((CHAT, *case) for case in CHATS), *((COMPLETIONS, *case) for case in COMPLETED)]


@pytest.mark.parametrize(
    ("path", "more", "why"), PASSED, ids=[f"{path[4]} {why}" for path, _, why in PASSED]
)
def test_what_only_the_target_can_do_goes_there_as_it_is(one, path, more, why):
    body = asked(path, **more, stop=["x"], unheard_of=[1.5])
    response = one.http.post(path, json=body)
    assert response.status_code == 200, response.text
    went, headers, got = one.target.sent.pop()
    assert went == path and got.pop("rid") == headers["x-override-rid"]
    assert got == {**body, "model": NAME}, "unchanged but for the model's name"
    assert (
        response.headers["x-lookahead-mode"] == "target"
        and response.headers["x-lookahead-why"] == why
    )
    answer = response.json()
    assert answer.pop("lookahead") == {"mode": "target", "why": why.split(", ")}
    assert answer == {**WHOLE, "model": "lookahead"}


def test_the_targets_adapters_answer(one):
    for path, more, why in (
        (CHAT, {}, ["model"]),
        (CHAT.replace("c", "%63"), {}, ["model"]),
        (COMPLETIONS, {}, ["model"]),
        (CHAT, {"logprobs": True}, ["logprobs"]),
    ):
        answer = one.http.post(path, json=asked(path, model="lookahead:poet", **more)).json()
        assert (
            answer["lookahead"]["why"] == why
            and one.target.sent.pop()[2]["model"] == NAME + ":poet"
        )
    assert (
        one.http.post("/v1/embeddings", json={"model": "lookahead:poet", "input": "a"}).status_code
        == 200
    )
    for wrong in ("poet", "lookaheadpoet", "a:lookahead:poet", ":poet"):
        is_documented(one.ask(model=wrong), 404, "model_not_found")
        is_documented(one.ask(model=wrong, n=9), 404, "model_not_found")
    is_documented(one.http.get("/v1/models/lookahead:other"), 404, "model_not_found")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_is_the_targets_byte_for_byte_but_for_the_extension(one, path):
    body = asked(path, presence_penalty=1, stream=True, stream_options={"include_usage": True})
    with one.http.stream("POST", path, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-lookahead-why"] == "presence_penalty"
        got = b"".join(response.iter_raw())
    added = b',"lookahead":{"mode":"target","why":["presence_penalty"]}}\n\ndata: [DONE]'
    expected = STREAM.replace(b'"id":"r1","model":"org/target"', b'"id":"r1","model":"lookahead"')
    assert got == expected.replace(b"}\n\ndata: [DONE]", added)
    assert one.target.sent.pop()[2]["stream_options"] == {"include_usage": True}


def test_fields_that_steer_the_server_stay_here(one):
    steering = dict.fromkeys(STEERING - {"lookahead"}, "7")
    assert one.ask(tools=[TOOL], **steering, lookahead={"depth": 2}).status_code == 200
    got = one.target.sent.pop()[2]
    assert got.pop("rid") != "7" and not STEERING & got.keys()
    headers = {"authorization": "Bearer sk-mine", "x-override-rid": "7", "cookie": "a=b"}
    one.http.post(CHAT, json={**ASK, "tools": [TOOL]}, headers=headers)
    sent = one.target.sent.pop()[1]
    assert "authorization" not in sent and "cookie" not in sent and sent["x-override-rid"] != "7"
    for more in ({}, {"tools": [TOOL]}):
        is_documented(one.ask(**more, custom_logit_processor="code"), 400)


SHORT = SERVICE.replace(limits=SERVICE.limits.replace(max_tokens=50))


def test_the_operators_limits_hold():
    with passing(SHORT) as one:
        for given, sent in (({}, {"max_tokens": 50}), ({"max_tokens": 60}, {"max_tokens": 50}),
                            ({"max_completion_tokens": 99}, {"max_completion_tokens": 50}),
                            ({"max_tokens": 9}, {"max_tokens": 9})):  # fmt: skip
            assert one.ask(tools=[], n=9, **given).status_code == 200
            got = one.target.sent.pop()[2]
            assert {name: got[name] for name in got if name.startswith("max_")} == sent
        is_documented(one.ask(n=129), 400)
        is_documented(
            one.http.post(COMPLETIONS, json=asked(COMPLETIONS, n=65, prompt=["a", "b"])), 400
        )
        is_documented(one.ask(tools=[TOOL], model="gpt-9"), 404, "model_not_found")
        is_documented(one.ask(tools=[TOOL], stream="perhaps"), 400)
        for written in (60.0, "60"):
            assert one.ask(tools=[], n=9, max_tokens=written).status_code == 200
            assert one.target.sent.pop()[2]["max_tokens"] == 50
        assert not one.target.sent


FAR = 2**30
# By route: what would end SGLang's scheduler.
FATAL = [
    (CHAT, {"logprobs": True, "top_logprobs": FAR}),
    (CHAT, {"input_ids": [5, FAR]}),
    (CHAT, {"input_ids": [str(FAR)]}),
    (CHAT, {"stop_token_ids": [FAR], "min_tokens": 5}),
    (COMPLETIONS, {"logprobs": FAR}),
    (COMPLETIONS, {"prompt": [5, FAR]}),
    (COMPLETIONS, {"prompt": [-1], "echo": True}),
    (COMPLETIONS, {"prompt": [[5], [FAR]]}),
    (COMPLETIONS, {"prompt": [[str(FAR)]]}),
    (COMPLETIONS, {"prompt": [5, str(FAR)]}),
    (COMPLETIONS, {"prompt": [5.0, float(FAR)]}),
    (CHAT, {"stop_token_ids": [float(FAR)]}),
    ("/v1/embeddings", {"input": [5.0, str(FAR)]}),
    ("/v1/embeddings", {"input": [[FAR]]}),
    ("/v1/score", {"query": [FAR], "items": [[5]]}),
    ("/v1/score", {"query": "a", "items": [[FAR]]}),
    ("/v1/responses", {"top_logprobs": FAR}),
]


@pytest.mark.parametrize(("path", "more"), FATAL)
def test_no_client_ends_the_targets_scheduler(one, path, more):
    one.target.sent.clear()
    requests = one.roles["draft"].transport.inner.requests
    requests.clear()
    error = is_documented(one.http.post(path, json=asked(path, **more)), 400)
    assert error["param"] in more and not one.target.sent and not requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("what", "status", "code"),
    [("400", 400, None), ("words", 400, None), ("422", 400, None), ("nested", 400, "context_length_exceeded"),
     ("401", 502, "target_failed"),
     ("429", 503, "overloaded"), ("500", 502, "target_failed"), ("503", 503, "overloaded"),
     ("garbage", 502, "target_failed")],
)  # fmt: skip
def test_errors_of_the_target_come_in_our_form(one, what, status, code, stream):
    error = is_documented(one.ask(tools=[TOOL], user=what, stream=stream), status, code)
    assert ("wrong: " in error["message"]) == (status == 400 and what != "nested")
    assert one.ask(tools=[TOOL]).status_code == 200, (
        "a request that the target fails is no failure of the target"
    )


def test_what_the_target_refuses_in_a_stream_has_its_status(one):
    """SGLang begins a stream with status 200 before it compiles a grammar."""
    for what, status, code in (("late", 400, None), ("later", 502, "target_failed")):
        error = is_documented(one.ask(regex="[0-9", user=what, stream=True), status, code)
        assert ("Unclosed" in error["message"]) == (status == 400)


def test_a_stream_that_breaks_off_ends_with_an_error_and_the_end(one):
    *_, error, end = one.stream(tools=[TOOL], user="breaks")
    assert error["error"]["code"] == "target_down" and end == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_left_on_the_target_when_a_client_hangs_up(stream):
    with passing(SERVICE.replace(concurrency=1)) as one:
        body = {**ASK, "tools": [TOOL], "user": "slow", "stream": stream}
        with (
            pytest.raises(httpx.ReadTimeout),
            one.http.stream("POST", CHAT, json=body, timeout=0.5) as response,
        ):
            for _ in response.iter_bytes():
                pass
        until(lambda: one.target.closed.is_set() and one.target.aborts, 10)
        assert one.target.aborts[0] == one.target.sent[0][2]["rid"]
        until(lambda: one.engine.idle and not one.engine.answers, 10)
        assert one.ask(tools=[TOOL]).status_code == 200, "its place is free"
        until(lambda: "lr_sglang_disconnects_total 1.0" in one.http.get("/metrics").text, 10)


def test_who_is_passed_on_waits_as_any_other_and_is_counted():
    with passing(SERVICE.replace(concurrency=1, queue=0)) as one:
        with one.http.stream(
            "POST", CHAT, json={**ASK, "n": 2, "user": "slow", "stream": True}
        ) as response:
            pieces = response.iter_bytes()  # which hangs up when it is forgotten
            next(pieces)
            is_documented(one.ask(n=2), 429, "queue_full")
            is_documented(one.ask(), 429, "queue_full")
            assert "lr_sglang_answers_running 1.0" in one.http.get("/metrics").text
            pieces.close()
        until(lambda: one.engine.idle, 2)
        assert one.ask(n=2).status_code == 200
        text = one.http.get("/metrics").text
        assert f'lr_sglang_requests_total{{mode="target",route="{CHAT}",status="200"}} 1.0' in text
        assert (
            'lr_sglang_tokens_total{kind="delivered"} 3.0' in text
            and "lr_sglang_answer_seconds_count 1.0" in text
        )


def test_a_target_that_is_down_is_told():
    with passing() as one:
        assert one.ask(tools=[TOOL]).status_code == 200
        one.target.die()
        is_documented(one.ask(tools=[TOOL]), 503, "target_down")
        until(lambda: one.health.watches["target"].down, 5)
        assert one.http.get("/ready").status_code == 503
        assert one.http.get("/health").status_code == 200, "the endpoint itself is well"
        is_documented(one.ask(tools=[TOOL]), 503, "target_down")


def test_when_the_endpoint_stops_so_does_what_was_passed_on():
    with passing() as one:
        events = one.stream(tools=[TOOL], user="slow")
        next(events)
        one.server.end()
        one.server.end()
        assert [event.get("error", {}).get("code") for event in list(events)[-2:-1]] == [
            "shutting_down"
        ]
        until(one.target.closed.is_set, 2)


def test_an_operator_can_have_them_refused():
    with passing(SERVICE.replace(refuse=True)) as one:
        is_documented(one.ask(tools=[TOOL]), 400)
        assert not one.target.sent


# -- other routes


@pytest.mark.parametrize("path", OTHERS)
def test_the_targets_other_routes_are_reached_through_the_endpoint(one, path):
    body = {"model": "lookahead", "input": "a", "max_tokens": 5, "extra": [None], "rid": "mine"}
    response = one.http.post(path, json=body)
    assert response.status_code == 200 and response.headers["x-lookahead-why"] == "route"
    assert response.content == packed({**WHOLE, "model": "lookahead"}), "the reply is as it is"
    got, _, sent = one.target.sent.pop()
    assert got == path
    assert sent == {"model": NAME, "input": "a", "max_tokens": 5, "extra": [None]}
    assert one.http.post(path, json={"user": "list"}).json() == [{"score": 1}]
    assert "model" not in one.target.sent.pop()[2]
    is_documented(one.http.post(path, json={"model": "gpt-9"}), 404, "model_not_found")
    is_documented(one.http.post(path, json={"background": True}), 400)
    is_documented(one.http.post(path, json=[body]), 400)
    is_documented(one.http.post(path, json={"user": "500"}), 502, "target_failed")
    is_documented(one.http.get(path), 405)
    one.target.sent.clear()


def test_a_stream_of_another_route_is_passed_on_and_an_error_has_a_name(one):
    path, asked = "/v1/messages", {"model": "lookahead", "stream": True}
    with one.http.stream("POST", path, json=asked) as response:
        got = b"".join(response.iter_raw())
    ours, theirs = b'"id":"r1","model":"lookahead"', b'"id":"r1","model":"org/target"'
    assert got == STREAM.replace(theirs, ours)
    messages, responses = (
        one.http.post(broken, json={**asked, "user": "breaks"}).text.split("\n\n")[-2]
        for broken in (path, "/v1/responses")
    )
    said = json.loads(messages.removeprefix("event: error\ndata: "))
    assert said["type"] == "error" and said["error"].keys() == {"type", "message"}
    assert said["error"]["type"] == "overloaded_error"
    said = json.loads(responses.removeprefix("event: error\ndata: "))
    assert said["error"]["code"] == "target_down"


def test_a_request_without_a_name_or_with_another_one_of_the_models_is_passed_on():
    with passing(SERVICE.replace(aliases=("gpt-4o",))) as one:
        for given, sent in (("gpt-4o", NAME), ("gpt-4o:poet", f"{NAME}:poet")):
            for path in (CHAT, "/v1/embeddings"):
                asked = {"model": given, "messages": ASK["messages"], "logprobs": True}
                assert one.http.post(path, json=asked).json()["model"] == "lookahead"
                assert one.target.sent.pop()[2]["model"] == sent
        nameless = {"messages": ASK["messages"], "logprobs": True}
        assert one.http.post(CHAT, json=nameless).status_code == 200
        assert "model" not in one.target.sent.pop()[2]


def test_what_the_target_refuses_says_nothing_of_its_machine(one):
    for path in ("/v1/embeddings", "/v1/score", "/v1/rerank", "/v1/messages", CHAT):
        error = is_documented(one.http.post(path, json={**ASK, "user": "places", "n": 9}), 400)
        assert error["message"] == "input: Field required"
        assert error.get("param", "input") == "input"


def test_limits_and_keys_hold_on_other_routes():
    wrong = ({}, {"x-api-key": "sk-wrong"}, {"authorization": "Bearer x", "x-api-key": "sk-right"})
    with passing(SHORT, Keys(["sk-right"])) as one:
        for path in OTHERS:
            for header in wrong:
                is_documented(one.http.post(path, json={}, headers=header), 401, "invalid_api_key")
        one.http.headers["x-api-key"] = "sk-right"
        for path in OTHERS:
            named = dict.fromkeys(("max_tokens", "max_output_tokens"), 99)
            assert one.http.post(path, json=named).status_code == 200
            assert [one.target.sent[-1][2][name] for name in named] == [50, 50]
        assert one.http.post("/v1/responses", json={}).status_code == 200
        assert one.target.sent[-1][2]["max_output_tokens"] == 50


def sglangs():
    """The routes that SGLang's server answers POST requests on."""
    file = Path(find_spec("sglang").origin).parent / "srt/entrypoints/http_server.py"
    for node in ast.walk(ast.parse(file.read_text())):
        for mark in getattr(node, "decorator_list", ()):
            match mark:
                case ast.Call(ast.Attribute(ast.Name("app"), kind), [ast.Constant(path), *_]) if (
                    kind in ("post", "api_route")
                ):
                    yield path


def test_what_sglang_answers_under_v1_is_passed_on_but_for_what_concerns_others():
    """A new route of SGLang's is looked at: does it change the server?"""
    known = set(sglangs())
    under = {path for path in known if path.startswith("/v1/")}
    assert under == {CHAT, COMPLETIONS, *OTHERS, *NOT_PASSED}
    passed = {path for path in known if other_route(path.replace("{response_id}", "resp_1"))}
    assert passed == {CHAT, COMPLETIONS, *OTHERS}
    for path in ("/v1/models", "/v1/models/a", "/v1/../abort_request", "/v1/a/b/c", "/v1/A"):
        assert other_route(path) is None


TRICKS = (
    *(
        "/v1//chat/completions",
        "//v1/chat/completions",
        "/V1/chat/completions",
        "/v1/Embeddings",
    ),
    *(
        "/v1/chat/../../flush_cache",
        "/v1/embeddings/..%2f..%2fabort_request",
        "/%2e%2e/abort_request",
    ),
    *(
        "/v1%2Fembeddings%2F..%2F..%2Fabort_request",
        "/v1/embeddings%00",
        "/v1/embeddings;/../abort_request",
    ),
    *(
        "/v1/models/..%2f..%2fabort_request",
        "/v1/models/../../abort_request",
        "/tokenize/../abort_request",
    ),
    *(
        "http://127.0.0.1/abort_request",
        "http://127.0.0.1//v1/embeddings",
        "@127.0.0.1/abort_request",
    ),
    *(
        "/abort_request%3f/v1/embeddings",
        "/v1/embeddings%3f",
        "/v1/embeddings%23",
        "/v1\\embeddings",
        "/abort_request",
    ),
    # what SGLang has outside of /v1/, also where the same is under it
    *("/tokenize", "/detokenize", "/generate", "/flush_cache"),
)
ENCODED = ("/v1/embeddings/", "/v1/%65mbeddings", "/%76%31/embeddings", "/v1%2fembeddings")


@pytest.mark.parametrize("path", [*TRICKS, *ENCODED])
def test_no_spelling_of_a_path_reaches_another_route(locked, path):
    """Nor a route that is there without a key."""
    locked.target.sent.clear()
    for key, expected in (
        ("", (400, 401, 404)),
        ("sk-right", (200,) if path in ENCODED else (400, 404, 405)),
    ):
        with socket.create_connection(locked.sock.getsockname(), 10) as raw:
            lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
            lines += [
                f"authorization: Bearer {key}",
                "content-length: 2",
                "connection: close",
                "",
                "{}",
            ]
            raw.sendall("\r\n".join(lines).encode())
            assert int(raw.makefile("rb").readline().split()[1]) in expected
        assert key or not locked.target.sent
    assert not locked.target.aborts and {sent[0] for sent in locked.target.sent} <= set(OTHERS)


# -- SGLang's schema

# They only say how another field is meant, or nothing that is in an answer.
MINOR = {
    *("user", "parallel_tool_calls", "routed_experts_start_len"),
    "return_flat_raw_top_logprobs_b64",
}


def schema(name):
    """The fields of a class of SGLang's, whose module is slow to import."""
    file = Path(find_spec("sglang").origin).parent / "srt/entrypoints/openai/protocol.py"
    classes = {
        node.name: node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    }

    def fields(one):
        for base in one.bases:
            yield from fields(classes[base.id]) if base.id in classes else ()
        named = (line.target.id for line in one.body if isinstance(line, ast.AnnAssign))
        yield from (name for name in named if not name.startswith("_"))

    return set(fields(classes[name]))


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_no_field_of_sglangs_is_forgotten(model):
    """A new one is lookahead's, the target's, or of no matter: that is to be decided in
    ``serve/protocol``.
    """
    known = (
        set(model.model_fields)
        | set(model.target_only)
        | set(Common.model_fields)
        | STEERING
        | MINOR
    )
    assert not schema(model.__name__.replace("ChatRequest", "ChatCompletionRequest")) - known
