"""The real HTTP client against a small server that behaves, or does not."""

import asyncio
import json
import threading
from contextlib import contextmanager

import pytest

from lr_sglang.config import Deployment, Runtime
from lr_sglang.engine import client as module
from lr_sglang.engine import probes, router
from lr_sglang.engine.client import Client
from lr_sglang.engine.loop import background, call
from lr_sglang.engine.router import RouterClient, read_workers
from lr_sglang.engine.server_facts import FedLayer
from lr_sglang.engine.tokenizer import load_tokenizer
from lr_sglang.errors import (
    BadReply,
    Cancelled,
    ConfigError,
    LookaheadError,
    PromptTooLong,
    RuntimeBusy,
    RuntimeDown,
    RuntimeRefused,
    RuntimeTimeout,
)
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import DIFFERENT
from lr_sglang.runtimes import Fleet, connect
from lr_sglang.runtimes.attach import attach, faults
from lr_sglang.sglang_api.plugin_protocol import (
    LEFT_OUT,
    MAX_ID,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_LINES,
    MAX_TOKENS,
    RELAXED,
    Delivery,
)
from lr_sglang.steps.branch import Request
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend
from tests import fixture_of
from tests.serving import free_port, until
from tests.stub import MODEL, REPLY, Router, Stub, Worker, hung_up, served

server = fixture_of(lambda: served(Stub()), "function")


class Blocking:
    """A client on the process's event loop, used from the test's thread."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        return lambda *given: call(getattr(self.client, name)(*given))


@pytest.fixture
def http(server):
    blocking = Blocking(Client(server.url, "target", api_key="secret"))
    yield blocking
    blocking.close()


@pytest.fixture
def impatient(monkeypatch):
    """The client gives up on aborts sooner."""
    monkeypatch.setattr(module, "ABORT_AGAIN_SECONDS", (0.0, 0.01, 0.02, 0.05))


def on_loop(work):
    """Does it on the event loop, and waits for it."""

    async def run():
        return work()

    return call(run())


class Running:
    """A generation that has reached its server, as the backend runs it."""

    def __init__(self, http, server, generate=None):
        server.arrived.clear()
        server.generate = generate or server.until_aborted
        self.request = Request()
        self.task = asyncio.run_coroutine_threadsafe(self.generation(http), background())
        assert server.arrived.wait(5)

    async def generation(self, http):
        try:
            return await http.client.generate({"input_ids": [1]}, self.request, 10.0)
        except Cancelled:
            waits = asyncio.current_task()
            assert not waits.cancelling(), "only its request is cancelled, not who waits for it"
            raise

    def cancel(self):
        on_loop(self.request.cancel)

    def end(self, seconds=5.0):
        try:
            return self.task.result(seconds)
        except LookaheadError as error:
            return error


def test_a_generation_is_posted_with_an_id_and_a_key(server, http):
    assert http.generate({"input_ids": [1]}, request := Request(), 5) == REPLY
    (posted,) = server.requests
    assert posted == {"input_ids": [1], "rid": request.rid, "authorization": "Bearer secret"}


def streaming(*events, until=None):
    """A generation that is sent in pieces of five bytes, which end anywhere; the last event is
    sent when ``until`` is set. An event is a table, or bytes as they are sent.
    """
    *early, last = [
        event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n"
        for event in events
    ]

    def generate(handler, body):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        for data in (b"".join(early), last + b"data: [DONE]\n\n"):
            if data.startswith(last) and until is not None:
                assert until.wait(10)
            for at in range(0, len(data), 5):
                handler.wfile.write(data[at : at + 5])

    return generate


def part(*ids, finish=None):
    return {"text": "x\n\n", "output_ids": ids, "meta_info": {"finish_reason": finish}}


def test_a_streamed_generation_tells_its_tokens_and_its_last_event_is_the_reply(server, http):
    end = {"type": "stop", "matched": 2}
    told, heard, request = [], threading.Event(), Request()
    server.generate = streaming(
        part(), part(1), part(1, 5, 7), part(1, 5, 7, 2, finish=end), until=heard
    )

    def hear(ids):
        told.append(ids)
        if len(ids) == 3:
            heard.set()

    request.on_tokens = hear
    reply = http.generate({"input_ids": [1], "stream": True}, request, 5)
    assert reply == {**part(1, 5, 7, 2, finish=end), "output_ids": [1, 5, 7, 2]}
    # Events that arrive together are told as one; the last is not told, it is the reply.
    assert told in ([[1], [1, 5, 7]], [[1, 5, 7]])


def test_an_error_in_a_stream_is_a_named_error(server, http):
    about = {"message": "the input is longer than the model's context length", "code": 400}
    server.generate = streaming({"error": about})
    request = Request()
    request.on_tokens = lambda ids: None
    with pytest.raises(PromptTooLong, match="longer than the model") as raised:
        http.generate({"input_ids": [1], "stream": True}, request, 5)
    assert raised.value.status == 400


HALF = b'data: {"output_ids": [1], "text": "a"'


@pytest.mark.parametrize("increments", [False, True])
@pytest.mark.parametrize(
    ("events", "error", "said"),
    [
        ([{"error": "overloaded"}], RuntimeRefused, "400 .*overloaded"),
        ([{"error": {"code": "busy", "message": "overloaded"}}], RuntimeRefused, "400 overloaded"),
        ([{"output_ids": [1], "text": "a"}], BadReply, "malformed.*meta_info"),
        ([{"output_ids": 1, "text": "a", "meta_info": {}}], BadReply, "malformed"),
        ([{"output_ids": [1], "text": "a", "meta_info": None}], BadReply, "malformed"),
        ([HALF + b"\n\n"], BadReply, "malformed"),
        ([HALF + b", nonsense}\n\n"], BadReply, "malformed"),
        ([part(1)], RuntimeDown, "broke off"),
        ([part(1), HALF], BadReply, "malformed"),
        ([b""], RuntimeDown, "broke off"),
        ([b"<html>\n\n"], RuntimeDown, "broke off"),
    ],
)
def test_a_stream_that_breaks_off_or_is_malformed_is_a_named_error(
    server, http, events, error, said, increments
):
    server.generate = streaming(*events)
    request = Request()
    request.on_tokens = lambda ids: None
    request.increments = increments
    with pytest.raises(error, match=f"^target: .*{said}") as caught:
        http.generate({"input_ids": [1], "stream": True}, request, 5)
    assert type(caught.value) is error


def test_a_slow_answer_is_a_timeout_and_is_not_asked_for_again(server, http):
    came, gate = threading.Event(), threading.Event()
    server.generate = lambda handler, body: came.set() or gate.wait(5)
    with pytest.raises(RuntimeTimeout, match=r"^target: no answer"):
        http.generate({}, Request(), 0.05)
    assert came.wait(20)  # the server may read it after the time is up
    gate.set()
    assert len(server.requests) == 1


def test_nobody_listening_is_a_runtime_that_is_down():
    alone = Blocking(Client(nobody(), "draft"))
    with pytest.raises(RuntimeDown, match=r"^draft: .* does not answer.*\nHint: "):
        alone.generate({}, Request(), 1)
    alone.close()


def test_a_stale_connection_is_tried_again_once_with_a_new_id(server, http):
    http.generate({}, Request(), 5)
    rids = []

    def broken_once(handler, body):
        rids.append(body["rid"])
        hung_up(handler, body) if len(rids) == 1 else handler.reply(REPLY)

    server.generate = broken_once
    assert http.generate({}, request := Request(), 5) == REPLY
    assert len(set(rids)) == 2
    assert request.rid == rids[1]
    server.generate = lambda handler, body: rids.append(body["rid"]) or hung_up(handler, body)
    with pytest.raises(RuntimeDown):
        http.generate({}, Request(), 5)
    assert len(set(rids)) == len(rids) == 4


@pytest.mark.parametrize(
    "begins",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"SSH-2.0\r\n\r\n",
    ],
)
def test_nothing_is_tried_again_after_the_first_byte(server, http, begins):
    def half(handler, body):
        handler.wfile.write(begins)
        hung_up(handler, body)

    server.generate = half
    with pytest.raises(RuntimeDown):
        http.generate({}, Request(), 5)
    assert len(server.requests) == 1


TOO_LONG = "The input (9 tokens) is longer than the model's context length (8 tokens)."


@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (400, {"error": {"message": TOO_LONG}}, PromptTooLong, "9 tokens"),
        (400, {"object": "error", "message": TOO_LONG}, PromptTooLong, "9 tokens"),
        (400, {"error": {"message": "bad top_k"}}, RuntimeRefused, "400 bad top_k"),
        (400, {"message": {"odd": 1}}, RuntimeRefused, "odd"),
        (400, {"error": "just text"}, RuntimeRefused, "just text"),
        (401, b"Unauthorized", RuntimeRefused, "401 Unauthorized"),
        (404, {"detail": "Not Found"}, RuntimeRefused, "404"),
        (500, b"Internal Server Error", RuntimeRefused, "500 Internal"),
        (503, b"", RuntimeBusy, "503"),
        (429, b"slow down", RuntimeBusy, "429"),
        (500, [1, 2], RuntimeRefused, "500"),
        (200, b"<html>", BadReply, "JSON"),
    ],
)
def test_an_error_status_or_no_json_is_a_named_error(server, http, status, body, error, said):
    server.generate = lambda handler, _: handler.reply(body, status)
    with pytest.raises(error, match=f"^target: .*{said}") as caught:
        http.generate({}, Request(), 5)
    assert type(caught.value) is error
    assert len(server.requests) == 1


def test_a_server_whose_aborts_stop_nothing_gets_its_connection_closed(server, http, impatient):
    server.abort = lambda handler, body: handler.reply(None)
    running = Running(http, server)
    running.cancel()
    assert isinstance(running.end(), Cancelled) and running.request.unheard


def test_a_request_cancelled_before_it_is_sent_is_not_sent(server, http):
    request = Request()
    request.cancel()
    with pytest.raises(Cancelled):
        http.generate({}, request, 5)
    assert server.requests == server.aborts == []


def test_cancelling_or_hanging_up_late_does_not_break_the_connections_next_request(server, http):
    first = Request()
    http.generate({}, first, 5)
    second = Running(http, server)
    assert len(set(server.ports)) == 1, "the connection was used again"
    on_loop(first.cancel)
    on_loop(first.close_connection)
    assert first.done and not first.cancelled and server.aborts == []
    second.cancel()
    assert second.end() == REPLY


def test_cancelling_who_waits_closes_the_connection_and_tells_the_server(server, http):
    """Once: the server is told although nobody waits, and closing the client waits for it."""
    running = Running(http, server, server.until_closed)
    running.task.cancel()
    assert server.closed.wait(5)
    http.close()
    assert server.aborts == [running.request.rid]
    assert running.request.done and not running.request.cancelled


def test_a_server_that_hears_no_abort_is_hung_up_on(server, http):
    """At once, not after the last of many aborts: it took none, and nobody else could."""
    server.abort = lambda handler, body: handler.reply(None, 500)
    running = Running(http, server, server.until_closed)
    running.cancel()
    assert isinstance(running.end(), Cancelled)
    assert server.closed.wait(5)
    assert running.request.connection_closed and http.client.abort_failed
    assert len(server.aborts) <= 2
    server.abort = lambda handler, body: server.stop(body["rid"]) or handler.reply(None)
    another = Running(http, server)
    another.cancel()
    assert another.end() == REPLY and not http.client.abort_failed


def test_whether_a_server_takes_aborts_is_found_out(server, http, impatient, monkeypatch):
    monkeypatch.setattr(probes, "BEGUN_SECONDS", 0.05)

    def generate(handler, body):
        server.stopped[body["rid"]] = event = threading.Event()
        assert event.wait(10)
        handler.reply({**REPLY, "meta_info": {"finish_reason": {"type": "abort"}}})

    found = lambda: call(probes.measure_abort(http.client, [1, 2, 3]))
    assert found() is None, "the answer was complete"
    server.generate = generate
    assert found().taken
    server.abort = lambda handler, body: handler.reply(None)
    assert not found().taken


def test_an_abort_that_overtakes_its_request_is_repeated(server, http):
    """Until it has ended; closing the client waits for that."""
    server.abort_failed = 2
    running = Running(http, server)
    running.cancel()
    http.close()
    assert running.end(0) == REPLY
    assert len(server.aborts) == 3 and not http.client._aborts
    http.close()


# -- many workers behind a router


@pytest.fixture
def workers(serving):
    return [serving(Worker()), serving(Worker(slots=8))]


@pytest.fixture
def front(serving, workers):
    return serving(Router(workers))


@pytest.fixture
def routed(front):
    routed = Blocking(RouterClient(front.url, "target", "secret"))
    routed.refresh()
    yield routed
    routed.close()


def nobody():
    """An address where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize(
    ("reply", "workers"),
    [
        ({"workers": []}, []),
        ({"workers": [{"url": "http://a:1@0"}, {"url": "http://a:1@1"}]}, ["http://a:1"]),
        ({"workers": [{"url": "grpc://a:1"}, {"id": 3}, None, "http://b:2"]}, []),
        ({"model_path": "x"}, None),
        ({"workers": 3}, None),
        ("text", None),
    ],
)
def test_a_list_of_workers_is_read(reply, workers):
    assert read_workers(reply) == workers


# --- generating
# ------------------------------------------------------------------------------------------------------


def test_a_lost_worker_is_passed_over_under_another_key(front, workers, routed):
    front.urls[0] = nobody()
    request = Request(key="q")
    assert routed.generate({}, request, 5) == REPLY
    assert len(workers[1].requests) == 1
    assert front.keys[0] == "q"
    assert len(set(front.keys)) == len(front.keys) == 2
    assert request.rid == workers[1].requests[0]["rid"]


def test_workers_that_are_all_lost_are_an_error_that_another_try_may_mend(front, routed):
    front.urls[:] = [nobody(), nobody()]
    with pytest.raises(RuntimeBusy, match=r"target: .*lost a worker") as caught:
        routed.generate({}, Request(key="q"), 5)
    assert caught.value.retryable
    assert not isinstance(caught.value, RuntimeDown), (
        "the router is there: other questions may go on"
    )
    assert front.keys == ["q", "q-again"]


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (
            503,
            {"error": {"message": "No available workers", "code": "no_available_workers"}},
            RuntimeBusy,
        ),
        (502, {}, RuntimeBusy),
        (504, {}, RuntimeBusy),
        (429, {}, RuntimeBusy),
        (500, {"error": {"message": "the worker's own"}}, RuntimeRefused),
        (400, {"error": {"message": "longer than the model's context length"}}, PromptTooLong),
    ],
)
def test_other_failures_are_not_tried_again(front, workers, routed, status, text, error):
    for worker in workers:
        worker.generate = lambda handler, body: handler.reply(text, status)
    with pytest.raises(error) as caught:
        routed.generate({}, Request(key="q"), 5)
    assert type(caught.value) is error
    assert len(front.keys) == 1


# --- cancelling
# ------------------------------------------------------------------------------------------------------


def test_a_dead_worker_does_not_keep_an_abort_from_the_others(front, workers, routed):
    front.listed.insert(0, {"url": nobody(), "is_healthy": True})
    routed.refresh()
    assert len(routed.client.workers) == 3
    front.urls[:] = [workers[0].url]
    workers[0].abort_failed = 2  # it takes a while, and meanwhile the dead one is found deaf
    running = Running(routed, workers[0])
    running.cancel()
    assert running.end() == REPLY


@pytest.mark.parametrize("listed", [[], [{"url": "http://127.0.0.1:9", "is_healthy": True}]])
def test_where_no_worker_can_be_told_the_connection_is_closed(front, workers, routed, listed):
    front.listed = listed
    routed.refresh()
    front.urls[:] = [workers[0].url]
    running = Running(routed, workers[0])
    running.cancel()
    assert isinstance(running.end(2.0), Cancelled)


# --- what the workers are
# --------------------------------------------------------------------------------------------


def test_workers_that_come_and_go_are_noticed(front, workers, routed, serving, monkeypatch):
    third = serving(Worker())
    front.listed[0] = {"url": third.url, "is_healthy": True}
    monkeypatch.setattr(router, "REFRESH_SECONDS", 0.0)
    routed.generate({}, Request(key="q"), 5)
    until(lambda: routed.client.workers == [workers[1].url, third.url], 5)


def test_documents_are_the_workers(workers, routed):
    assert routed.get("/model_info")["model_path"] == MODEL
    del workers[0].documents["/model_info"]
    assert routed.get("/model_info")["model_path"] == MODEL
    with pytest.raises(RuntimeRefused, match="404"):
        routed.get("/nothing")


def test_the_caches_of_all_workers_are_emptied_when_they_are_idle(workers, routed):
    """SGLang refuses at once to empty the cache of a server that runs a request, and one that was
    just answered still counts; it waits where it is told how long.
    """
    backend = RuntimeBackend("target", routed.client, load_tokenizer(MODEL))
    everything = LookaheadBackend({"target": backend}, judge_prompt="", ahead=False)
    path = "/flush_cache?timeout=5"
    for worker in workers:
        worker.documents[path] = b"Cache flushed."
    everything.flush_cache()
    assert all((path, "Bearer secret") in worker.seen for worker in workers)
    del workers[0].documents[path]
    with pytest.raises(RuntimeRefused):
        everything.flush_cache()


@contextmanager
def connected(url, **keys):
    fleet = Fleet(
        Deployment("routed", {"target": Runtime(url=url)}), {"target": url}, {"target": MODEL}
    )
    fleet.keys.update(keys)
    with connect.connected(fleet) as roles:
        yield roles["target"]


NGRAM = {"device": "cuda", "speculative_algorithm": "NGRAM"}
SEEDED = NGRAM | {"internal_states": [{"lr_sglang_seeds": True}]}
ALIKE = {"max_running_requests": 12, "kv_tokens": 12_000, "context": 2048, "relaxed": {}}


@pytest.mark.parametrize(
    ("told", "facts"),
    [
        (({}, {}), ALIKE | {"seeded": True, "token_layer": ""}),
        (
            ({**NGRAM, "context_length": 1024}, {"internal_states": None}),
            {
                "context": 1024,
                "token_layer": DIFFERENT,
                "seeded": False,
                "max_running_requests": None,
            },
        ),
        # a token layer draws coins of its own, unless our plugin is told to
        ((SEEDED, SEEDED), {"seeded": True, "places": "answer"}),
        ((SEEDED, NGRAM), {"seeded": False, "places": "prompt"}),
        # what it does not apply exactly
        (({}, {"device": "cuda"}), {"relaxed": {}}),
        (({}, {"speculative_algorithm": "NGRAM"}), {"relaxed": {}}),  # our plugin for a CPU does
        (({}, {**NGRAM, "speculative_algorithm": "EAGLE3"}), {"relaxed": RELAXED | LEFT_OUT}),
        (({}, SEEDED), {"relaxed": RELAXED}),
    ],
    ids=str,
)
def test_a_backend_knows_of_all_workers_what_it_knows_of_one_server(front, workers, told, facts):
    """They need not be alike."""
    for worker, more in zip(workers, told, strict=True):
        document = worker.documents["/server_info"] | more
        known = {name: value for name, value in document.items() if value is not None}
        worker.documents["/server_info"] = known
    with connected(front.url) as backend:
        assert isinstance(backend.transport, RouterClient)
        assert {name: getattr(backend.facts, name) for name in facts} == facts


@pytest.mark.parametrize(("wanted", "said"), [(4, 0), (9, 1)])
def test_a_server_with_fewer_slots_than_it_was_started_for_is_told(workers, wanted, said):
    """SGLang caps them where its memory is short, with a line in its log."""
    workers[0].documents["/server_info"]["max_running_requests"] = wanted
    with connected(workers[0].url) as backend:
        assert list(backend.doubts.found) == ["slots"] * said
        told = list(faults({"target": backend}))
    assert len(told) == said and all("4 requests at a time of 9" in text for text in told)


@pytest.mark.parametrize(
    ("template", "parser", "forced"),
    [
        ("{% if enable_thinking is false %}<think>\n\n</think>{% endif %}", "qwen3", True),
        ("{% if enable_thinking is false %}<think>\n\n</think>{% endif %}", None, False),
        ("<think>", "deepseek-r1", False),
        ("{% set way = 'thinking in <think>' %}{{ way }}", "qwen3", False),
        ("{% if thinking %}", "qwen3", False),
    ],
)
def test_a_server_that_takes_an_answer_for_thinking_is_known(
    workers, monkeypatch, template, parser, forced
):
    monkeypatch.setattr(load_tokenizer(MODEL, ""), "template", template)
    workers[0].documents["/server_info"]["reasoning_parser"] = parser
    with connected(workers[0].url) as backend:
        assert backend.facts.forces_reasoning is forced


FED = {"protocol": 1, "width": 13, "draws": "seeds", "lines": 0}


@pytest.mark.parametrize(
    ("told", "fed", "said"),
    [
        ([FED, FED], FedLayer(13, "seeds"), ""),
        ([FED, {**FED, "width": 9, "draws": "coins"}], FedLayer(9, "coins"), ""),
        ([None, None], None, ""),
        ([FED, None], None, "only some of its servers have"),
        ([FED, {**FED, "protocol": 2}], None, "version 2 of the protocol, and this is version 1"),
        ([{"protocol": 1, "refused": "SGLang 9 is not tested"}, FED], None, "9 is not tested"),
        (["yes", "yes"], None, "only some"),
    ],
    ids=str,
)
def test_a_runtime_takes_lines_if_all_of_its_servers_do(front, workers, told, fed, said):
    for worker, one in zip(workers, told, strict=True):
        worker.documents["/server_info"]["internal_states"][0]["lr_sglang_fed"] = one
    with connected(front.url) as backend:
        assert backend.facts.fed == fed
        assert backend.facts.seeded == (fed is None or fed.draws == "seeds")
        assert said in backend.doubts.found.get("fed", "")
        assert bool(backend.doubts.found.get("fed")) == bool(said)


# --- delivering lines
#


def taking(*refused):
    return lambda handler, body: handler.reply({"taken": 1, "refused": refused})


def test_lines_are_posted_to_the_route_of_the_plugin(server, http):
    server.generate = taking(["b", "too long"])
    lines = [Delivery("a", 0, [1, 2]), Delivery("b", 3, [])]
    assert http.deliver(lines) == [("b", "too long")]
    (posted,) = server.requests
    assert posted == {"lines": [["a", 0, [1, 2]], ["b", 3, []]], "authorization": "Bearer secret"}
    assert http.deliver([]) == [] and len(server.requests) == 1


def test_many_lines_are_several_messages_each_as_large_as_a_server_takes(server, http):
    server.generate = taking()
    long = [Delivery(f"{i}".rjust(MAX_ID, "0"), 0, [2**31 - 1] * MAX_TOKENS) for i in range(40)]
    short = [Delivery(f"s{i}", i, [i]) for i in range(3 * MAX_MESSAGE_LINES)]
    http.deliver([*long, *short])
    sent = [line for one in server.requests for line in one["lines"]]
    assert sent == [[rid, place, [*ids]] for rid, place, ids in (*long, *short)]
    for one in server.requests:
        assert 0 < len(one["lines"]) <= MAX_MESSAGE_LINES
        assert len(json.dumps({"lines": one["lines"]}, separators=(",", ":"))) <= MAX_MESSAGE_BYTES
    assert len(server.requests) <= 10


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        ({"error": {"message": "no lines"}}, 400, RuntimeRefused),
        ({}, 200, BadReply),
        ([], 200, BadReply),
    ],
)
def test_a_delivery_that_fails_is_a_named_error(server, http, answer, status, error):
    server.generate = lambda handler, body: handler.reply(answer, status)
    with pytest.raises(error, match="lr_sglang/lines"):
        http.deliver([Delivery("a", 0, [1])])


def test_lines_go_to_every_worker_of_a_router_and_one_that_is_gone_keeps_none_back(
    front, workers, routed
):
    for worker in workers:
        worker.generate = taking()
    front.listed.insert(0, {"url": nobody(), "is_healthy": True})
    routed.refresh()
    workers[1].generate = taking(["a", "full"])
    assert routed.deliver([Delivery("a", 0, [1])]) == [("a", "full")]
    assert [len(worker.requests) for worker in workers] == [1, 1]
    assert not front.keys
    for worker in workers:
        worker.generate = lambda handler, body: handler.reply({}, 404)
    with pytest.raises(LookaheadError, match=r"404|does not answer"):
        routed.deliver([Delivery("a", 0, [1])])


# --- attaching
# -------------------------------------------------------------------------------------------------------


def test_attaching_to_a_router_asks_its_workers_by_one_key(front, workers, monkeypatch):
    found = attach("target", Runtime(url=front.url + "/"))
    assert (found.url, found.tokenizer) == (front.url, MODEL)
    front.key = workers[0].key = workers[1].key = "ours"
    monkeypatch.setenv("OURS", "ours")
    found = attach("target", Runtime(url=front.url, api_key_env="OURS"))
    assert (found.tokenizer, found.api_key) == (MODEL, "ours")
    assert "'ours'" not in repr(found)
    with connected(front.url, target="ours") as backend:
        assert backend.facts.max_running_requests == 12
    with pytest.raises(RuntimeRefused, match="API key"):
        attach("target", Runtime(url=front.url))


def test_attaching_to_something_else_that_passes_requests_on(serving):
    server = serving(Worker())
    server.documents = {"/workers": b"<html>"}
    with pytest.raises(ConfigError, match="does not say what it runs"):
        attach("target", Runtime(url=server.url))
    assert attach("target", Runtime(url=server.url, tokenizer=MODEL)).tokenizer == MODEL


def test_attaching_to_a_router_that_will_not_do(front):
    front.listed = []
    with pytest.raises(RuntimeDown, match="no workers"):
        attach("target", Runtime(url=front.url))
