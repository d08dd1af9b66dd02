"""Many workers behind SGLang's router. The router and its workers are small stand-ins here;
tests/e2e has real ones.
"""

import json
from contextlib import ExitStack, contextmanager

import pytest
import urllib3

from lr_sglang import pocket
from lr_sglang.config import Deployment, Runtime
from lr_sglang.engine import router
from lr_sglang.engine.loop import call
from lr_sglang.engine.request import Request
from lr_sglang.engine.router import RouterClient, read_workers
from lr_sglang.errors import (
    Cancelled,
    ConfigError,
    PromptTooLong,
    RuntimeBusy,
    RuntimeDown,
    RuntimeRefused,
)
from lr_sglang.runtimes import Fleet, connect
from lr_sglang.runtimes.attach import attach
from lr_sglang.runtimes.launching.server import Reservation
from tests.serving import until
from tests.unit.test_client import REPLY, Blocking, Handler, Running, Stub, served

MODEL = str(pocket.weights("target"))


class Answers(Handler):
    """Documents are the server's; every request leaves its path, key and authorization."""

    def do_GET(self):
        self.server.seen.append((self.path, self.headers["Authorization"]))
        body = self.server.documents.get(self.path)
        if callable(body):
            body = body()
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.reply(b"", 401)
        else:
            self.reply(b"", 404) if body is None else self.reply(body)


def drawn(handler, body):
    """Replies with tokens that are the request's seed, as far as it has one."""
    params = body.get("sampling_params", {})
    ids = [params["sampling_seed"]] * params["max_new_tokens"] if "sampling_seed" in params else []
    handler.reply({**REPLY, "output_ids": ids} if ids else REPLY)


class Worker(Stub):
    """Stands in for one SGLang server."""

    def __init__(self, slots=4, model=MODEL):
        super().__init__()
        self.RequestHandlerClass = Answers
        self.seen, self.key = [], ""
        self.generate = drawn
        self.documents = {
            "/model_info": {"model_path": model, "tokenizer_path": model, "is_generation": True},
            "/server_info": {
                "model_path": model,
                "device": "cpu",
                "context_length": 2048,
                "max_total_num_tokens": 1000 * slots,
                "internal_states": [{"effective_max_running_requests_per_dp": slots}],
            },
        }


class Passing(Answers):
    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        server, key = self.server, self.headers["X-SMG-Routing-Key"]
        if self.path != "/generate":
            return self.reply(b"", 404)
        server.keys.append(key)
        worker = server.urls[len(server.keys) % len(server.urls)]
        if key is not None:
            worker = server.kept.setdefault(key, server.urls[len(server.kept) % len(server.urls)])
        headers = {
            "Content-Type": "application/json",
            "Authorization": self.headers["Authorization"] or "",
        }
        try:
            reply = server.pool.request(
                "POST", worker + self.path, body=data, headers=headers, timeout=20
            )
        except urllib3.exceptions.HTTPError as error:
            text = json.dumps(
                {"error": {"code": "call_upstream_request_error", "message": str(error)}}
            ).encode()
            self.send_response(500)
            self.send_header("X-SMG-Error-Code", "call_upstream_request_error")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return None
        return self.reply(reply.data, reply.status)


class Router(Stub):
    """Stands in for SGLang's router with the policy ``manual``: a key stays on its worker, even on
    a dead one.

    Requests without a key take turns.
    """

    def __init__(self, workers):
        super().__init__()
        self.RequestHandlerClass = Passing
        self.seen, self.key, self.keys, self.kept = [], "", [], {}
        self.urls = [worker.url for worker in workers]
        self.listed = [{"url": url, "is_healthy": True} for url in self.urls]
        self.documents = {"/workers": lambda: {"workers": self.listed, "total": len(self.listed)}}
        self.pool = urllib3.PoolManager(maxsize=64, retries=False)


@pytest.fixture
def serving():
    """Serves what it is given until the test ends."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(served(server))


@pytest.fixture
def workers(serving):
    return [serving(Worker()), serving(Worker(slots=8))]


@pytest.fixture
def front(serving, workers):
    return serving(Router(workers))


@pytest.fixture
def http(front):
    routed = Blocking(RouterClient(front.url, "target", "secret"))
    call(routed.client.refresh())
    yield routed
    routed.close()


def nobody():
    """An address where nobody listens."""
    reservation = Reservation()
    reservation.release()
    return f"http://127.0.0.1:{reservation.port}"


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


def test_a_lost_worker_is_passed_over_under_another_key(front, workers, http):
    front.urls[0] = nobody()
    request = Request(key="q")
    assert http.generate({}, request, 5) == REPLY
    assert len(workers[1].requests) == 1
    assert front.keys[0] == "q"
    assert len(set(front.keys)) == len(front.keys) == 2
    assert request.rid == workers[1].requests[0]["rid"]


def test_workers_that_are_all_lost_are_an_error_that_another_try_may_mend(front, http):
    front.urls[:] = [nobody(), nobody()]
    with pytest.raises(RuntimeBusy, match=r"target: .*lost a worker") as caught:
        http.generate({}, Request(key="q"), 5)
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
def test_other_failures_are_not_tried_again(front, workers, http, status, text, error):
    for worker in workers:
        worker.generate = lambda handler, body: handler.reply(text, status)
    with pytest.raises(error) as caught:
        http.generate({}, Request(key="q"), 5)
    assert type(caught.value) is error
    assert len(front.keys) == 1


# --- cancelling
# ------------------------------------------------------------------------------------------------------


def test_a_dead_worker_does_not_keep_an_abort_from_the_others(front, workers, http):
    front.listed.insert(0, {"url": nobody(), "is_healthy": True})
    call(http.client.refresh())
    assert len(http.client.workers) == 3
    front.urls[:] = [workers[0].url]
    workers[0].generate = workers[0].until_aborted
    workers[0].abort_failed = 2  # it takes a while, and meanwhile the dead one is found deaf
    running = Running(http)
    assert workers[0].arrived.wait(5)
    running.cancel()
    assert running.end() == REPLY


@pytest.mark.parametrize("listed", [[], [{"url": "http://127.0.0.1:9", "is_healthy": True}]])
def test_where_no_worker_can_be_told_the_connection_is_closed(front, workers, http, listed):
    front.listed = listed
    call(http.client.refresh())
    front.urls[:] = [workers[0].url]
    workers[0].generate = workers[0].until_aborted
    running = Running(http)
    assert workers[0].arrived.wait(5)
    running.cancel()
    assert isinstance(running.end(2.0), Cancelled)


# --- what the workers are
# --------------------------------------------------------------------------------------------


def test_workers_that_come_and_go_are_noticed(front, workers, http, serving, monkeypatch):
    third = serving(Worker())
    front.listed[0] = {"url": third.url, "is_healthy": True}
    monkeypatch.setattr(router, "REFRESH_SECONDS", 0.0)
    http.generate({}, Request(key="q"), 5)
    until(lambda: http.client.workers == [workers[1].url, third.url], 5)


def test_documents_are_the_workers(workers, http):
    assert http.get("/model_info")["model_path"] == MODEL
    for worker in workers:
        worker.documents["/flush_cache"] = b"Cache flushed."
    http.get("/flush_cache")
    assert all(("/flush_cache", "Bearer secret") in worker.seen for worker in workers)
    del workers[0].documents["/model_info"]
    assert http.get("/model_info")["model_path"] == MODEL
    with pytest.raises(RuntimeRefused, match="404"):
        http.get("/nothing")


@contextmanager
def connected(url, **keys):
    fleet = Fleet(
        Deployment("routed", {"target": Runtime(url=url)}), {"target": url}, {"target": MODEL}
    )
    fleet.keys.update(keys)
    with connect.connected(fleet) as roles:
        yield roles["target"]


def test_a_backend_knows_of_all_workers_what_it_knows_of_one_server(front, workers):
    with connected(front.url) as backend:
        assert isinstance(backend.transport, RouterClient)
        assert (backend.max_running_requests, backend.kv_tokens, backend.context) == (
            12,
            12_000,
            2048,
        )
        assert (backend.seeded, backend.token_layer) == (True, "")
        assert backend.get_model_name() == MODEL


def test_workers_need_not_be_alike(front, workers):
    workers[0].documents["/server_info"] |= {
        "context_length": 1024,
        "speculative_algorithm": "NGRAM",
        "device": "cuda",
    }
    del workers[1].documents["/server_info"]["internal_states"]
    with connected(front.url) as backend:
        assert (
            backend.context,
            backend.token_layer,
            backend.seeded,
            backend.max_running_requests,
        ) == (
            1024,
            None,
            False,
            None,
        )


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
        assert backend.max_running_requests == 12
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
