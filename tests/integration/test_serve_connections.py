"""Clients that say nothing, or little, or take nothing; too many of them; and who else is answered
meanwhile.
"""

import asyncio
import io
import json
import logging
import os
import random
import socket
import threading
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import partial

import pytest
import uvicorn
from uvicorn.server import ServerState

from lr_sglang.serve import connections, logs, server
from lr_sglang.serve.connections import Connection, Connections
from lr_sglang.serve.keys import Keys
from lr_sglang.serve.metrics import Metrics
from lr_sglang.serve.middleware import Guard
from lr_sglang.serve.settings import Service
from tests.integration.test_serve import ASK, CHAT, SERVICE, serving, simulated, within

SHORT = SERVICE.replace(header_timeout=0.5, body_timeout=0.5, send_timeout=0.5)
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALF_CHUNKED = HEAD + "Transfer-Encoding: chunked\r\n\r\n"
HALF = HEAD + "Content-Length: 1000\r\n\r\n"
BODY = json.dumps(ASK)
WHOLE = f"{HEAD}Content-Length: {len(BODY)}\r\n\r\n{BODY}"
HEALTH = "GET /health HTTP/1.1\r\nHost: localhost\r\n"
FULL = os.environ.get("LR_SGLANG_FULL") == "1"


@pytest.fixture(scope="module")
def short():
    """An endpoint whose clients have half a second for everything, and its log."""
    told = io.StringIO()
    logs.set_up("info", told)
    with serving(simulated(steps=3, seconds=0.01), SHORT) as one:
        one.told = told
        yield one


def connect(one, text="", **options):
    sock = socket.socket()
    for name, value in options.items():
        sock.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    sock.settimeout(20)
    sock.connect(one.sock.getsockname())
    sock.sendall(text.encode())
    return sock


def rest(sock):
    """What comes until it is closed from there, within 20 s."""
    got = b""
    with suppress(ConnectionError):
        while piece := sock.recv(65536):
            got += piece
    return got.decode()


def open_now(one):
    return len(one.server.connections._open)


def closed(one):
    """Connections that were closed, by reason, as the metrics say."""
    name = "lr_sglang_connections_closed_total"
    return {s.labels["reason"]: s.value for m in one.app.state.metrics.registry.collect() for s in m.samples
            if s.name == name}  # fmt: skip


# -- who says nothing


@pytest.mark.parametrize(
    "said",
    [
        "",
        "P",
        HEAD,
        HEAD + "X-A: ",
        f"{HEALTH}\r\n{HEALTH}",  # the second request of a connection
        # answered, but for a body that nobody reads
        f"{HEALTH}\r\n{HEALTH}Content-Length: 1000\r\n\r\n",
    ],
    ids=[
        "nothing",
        "a byte",
        "half",
        "half a line",
        "half a second one",
        "a body that nobody reads",
    ],
)
def test_who_does_not_end_a_request_is_hung_up_on(said, short):
    before = closed(short)
    with closing(connect(short, said)) as sock:
        got = rest(sock)
    assert got.count("HTTP/1.1 200 OK") == said.count(HEALTH + "\r\n") + said.count("1000")
    reason = "body" if "1000" in said else "headers"
    within(10, lambda: closed(short).get(reason, 0) > before.get(reason, 0))


def test_the_log_and_the_metrics_say_how_many_were(short, monkeypatch):
    monkeypatch.setattr(connections, "TOLD_SECONDS", 0.0)
    before, size = closed(short).get("headers", 0), short.told.tell()
    with ExitStack() as stack:
        for number in range(40):
            stack.enter_context(closing(connect(short, HEAD if number % 2 else "")))
        within(20, lambda: closed(short).get("headers") == before + 40)

    def told():
        lines = [json.loads(line) for line in short.told.getvalue()[size:].splitlines()]
        return sum(line["count"] for line in lines if line["event"] == "connections closed")

    within(10, lambda: told() >= 40)
    assert "lr_sglang_connections " in short.http.get("/metrics").text


def test_a_body_that_is_rubbish_behind_its_answer_ends_the_connection(short, monkeypatch):
    """Here h11 refuses to say 400 a second time; the log would have its traceback."""
    logged = []
    monkeypatch.setattr(logging.getLogger("asyncio"), "handle", logged.append)
    with closing(connect(short, f"{HEALTH}Transfer-Encoding: chunked\r\n\r\n")) as sock:
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
        sock.sendall(b"no chunk\r\n")
        assert "HTTP/1.1" not in rest(sock)
    assert short.http.get("/health").status_code == 200
    assert not logged


@pytest.mark.parametrize("key", ["", "Authorization: Bearer sk-right\r\n"])
def test_a_request_with_two_lengths_is_refused_and_what_follows_is_not_read(key):
    """A proxy that went by the other one would give its answer to somebody else."""
    with serving(simulated(), SERVICE, Keys(["sk-right"])) as one:
        follows = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{key}\r\n"
        both = (
            f"{HEAD}{key}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{follows}"
        )
        with closing(connect(one, both)) as sock:
            got = rest(sock)
    assert got.startswith("HTTP/1.1 400 ") and got.count("HTTP/1.1") == 1 and "not both" in got


@pytest.mark.parametrize(
    "head", [HALF, HEAD + "Transfer-Encoding: chunked\r\n\r\n"], ids=["length", "chunks"]
)
def test_a_body_has_its_time_as_a_whole(head, short):
    """Though there is always more of it, sooner than any limit."""
    ended = threading.Event()
    with closing(connect(short, head)) as sock:

        def dribble():
            with suppress(OSError):
                while not ended.wait(0.05):
                    sock.sendall(b"1\r\n \r\n" if "chunked" in head else b" ")

        thread = threading.Thread(target=dribble)
        thread.start()
        got = rest(sock)
        ended.set()
        thread.join()
    assert got.startswith("HTTP/1.1 408 ") and "did not come within 0.5 seconds" in got


def test_who_says_nothing_between_requests_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.3)
    with serving(simulated(), SERVICE) as one, closing(connect(one, HEALTH + "\r\n")) as sock:
        assert rest(sock).count("HTTP/1.1 200 OK") == 1
        within(5, lambda: open_now(one) == 0)


# -- who takes nothing


@pytest.mark.parametrize("last", ["", "Connection: close\r\n"], ids=["open", "closing"])
def test_who_takes_nothing_is_hung_up_on(last, short):
    """Answers, until no more can be sent; also where the last of them is the end of the
    connection.
    """
    before = closed(short).get("answer", 0)
    asked = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n"
    sock = connect(short, SO_RCVBUF=1024)
    with closing(sock), suppress(ConnectionError):
        sock.settimeout(0.5)
        with suppress(TimeoutError):
            for _ in range(400):
                sock.sendall((asked + "\r\n").encode() * 10)
            sock.sendall((asked + last + "\r\n").encode())
        within(20, lambda: closed(short).get("answer", 0) == before + 1)


def test_an_answer_that_nobody_takes_is_given_up():
    """A stream: what is written for it ends, too."""
    model = simulated(steps=400, tokens=400, seconds=0.001)
    with serving(model, SHORT.replace(concurrency=1)) as one:
        body = json.dumps(
            {**ASK, "stream": True, "lookahead": {"mode": "autoregressive", "trace": True}}
        )
        with closing(connect(one, SO_RCVBUF=1024)) as sock:
            sock.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert sock.recv(12) == b"HTTP/1.1 200"
            for connection in list(one.server.connections._open):
                connection.transport.set_write_buffer_limits(
                    1000
                )  # it is full sooner than the system's buffers
                connection.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
                )
            within(30, lambda: closed(one).get("answer") == 1 and one.engine.idle)


class Wire:
    """A transport that says what has not been taken."""

    left, shut = 0, False

    def get_extra_info(self, name):
        return None

    def get_write_buffer_size(self):
        return self.left

    def is_closing(self):
        return self.shut

    def pause_reading(self):
        pass

    def write(self, data):
        pass

    def close(self):
        self.shut = True

    abort = close


def made(among, host="127.0.0.1"):
    """A connection from an address."""

    async def app(scope, receive, send):
        pass

    class Loop:
        def time(self):
            return 0.0

    wire = Wire()
    wire.get_extra_info = {"peername": (host, 1)}.get
    one = Connection(
        among,
        config=uvicorn.Config(app, log_config=None),
        server_state=ServerState(),
        app_state={},
        _loop=Loop(),
    )
    one.connection_made(wire)
    return one


def test_a_client_that_takes_its_answer_slowly_is_waited_for_while_it_does():
    one = made(Connections(Service(), Metrics()))
    one.pause_writing()
    limits = {"answer": 10.0}
    for second in range(100):
        one.transport.left = 20 * connections.PART - second * 8000
        assert not one.late(float(second), limits), "64 KiB within 10 s"
    assert not any(one.late(99.0 + second, limits) for second in range(10))
    assert one.late(110.0, limits) == "answer"
    one.pause_writing()  # it has taken all, and then no more
    assert not one.late(111.0, limits) and not one.late(120.0, limits)
    assert one.late(122.0, limits) == "answer"


# -- too many


def test_who_waits_longest_makes_room(monkeypatch):
    with (
        serving(simulated(steps=3, seconds=0.01), SERVICE.replace(max_connections=10)) as one,
        ExitStack() as stack,
    ):
        for number in range(60):
            stack.enter_context(closing(connect(one, ("", HEAD, HALF)[number % 3])))
            if number % 10 == 9:
                with closing(connect(one, f"{HEALTH}Connection: close\r\n\r\n")) as sock:
                    assert rest(sock).startswith("HTTP/1.1 200 OK")
        assert one.ask().status_code == 200
        assert closed(one)["crowded"] >= 50 and "refused" not in closed(one) and open_now(one) <= 10


def test_who_is_being_answered_is_left_alone_and_who_comes_then_is_told():
    with (
        serving(simulated(steps=40, seconds=0.1), SERVICE.replace(max_connections=3)) as one,
        ExitStack() as stack,
    ):
        busy = [stack.enter_context(closing(connect(one, WHOLE))) for _ in range(3)]
        within(10, lambda: one.engine.admission.running == 3)
        with closing(connect(one)) as sock:
            got = rest(sock)
        head, _, body = got.partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 503 ") and "\r\nRetry-After: 1" in head
        assert (
            json.loads(body)["error"]["code"] == "overloaded"
            and f"Content-Length: {len(body)}" in head
        )
        assert closed(one) == {"refused": 1} and one.engine.admission.running == 3
        busy[0].close()
        within(10, lambda: open_now(one) == 2)
        assert one.http.get("/health").status_code == 200


def test_of_one_address_there_are_no_more_than_its_share():
    service = Service(max_connections=8, max_connections_per_address=3)
    among = Connections(service, Metrics())
    mine = [made(among, "10.0.0.7") for _ in range(5)]
    assert [one.transport.shut for one in mine] == [True, True, False, False, False]
    other = made(among, "::ffff:10.0.0.8")
    networks = [made(among, f"2001:db8::{number}") for number in range(4)]
    assert not other.transport.shut and [one.transport.shut for one in networks] == [
        True,
        False,
        False,
        False,
    ]
    local = [made(among, host) for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "127.0.0.1")]
    assert [one.transport.shut for one in mine] == [True, True, True, True, True], (
        "a proxy's are not counted"
    )
    assert not any(one.transport.shut for one in local) and len(among._open) == 8
    for one in list(among._open):
        among.leave(one)
        among.leave(one)
    assert not among._of


def test_files_are_asked_for_and_no_more_connections_taken_than_half_of_them(monkeypatch):
    limits = {"soft": 256, "hard": 400}
    monkeypatch.setattr(
        connections.resource, "getrlimit", lambda which: (limits["soft"], limits["hard"])
    )
    monkeypatch.setattr(
        connections.resource, "setrlimit", lambda which, new: limits.update(soft=new[0])
    )
    assert Connections(Service(), Metrics()).most == 200 and limits["soft"] == 400
    limits["hard"] = connections.resource.RLIM_INFINITY
    assert Connections(Service(), Metrics()).most == 1024 and limits["soft"] == connections.FILES


def test_bodies_that_are_held_are_bounded_in_all():
    with serving(simulated(), SERVICE.replace(concurrency=1, queue=0, max_body_bytes=1000)) as one:
        with ExitStack() as stack:
            half = [stack.enter_context(closing(connect(one, HALF + " " * 990))) for _ in range(2)]
            guard = one.app.middleware_stack
            while not isinstance(guard, Guard):
                guard = guard.app
            within(10, lambda: guard.held == 1980)
            response = one.ask()
            assert response.status_code == 503 and response.json()["error"]["code"] == "overloaded"
            assert response.headers["retry-after"] == "1"
            assert all(sock.fileno() > 0 for sock in half)
        within(10, lambda: guard.held == 0)
        assert one.ask().status_code == 200
        within(10, lambda: guard.held == 0)


# -- who sends much at once


async def app_that_counts(seen, scope, receive, send):
    """Reads a body to its end, and says how large its pieces were."""
    seen[scope["path"]] = seen.get(scope["path"], 0) + 1
    more = scope["method"] == "POST"
    while more:
        message = await receive()
        seen["most"] = max(seen.get("most", 0), len(message.get("body", b"")))
        more = message.get("more_body", False)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def listening():
    """Connections to ``app_that_counts`` on the running loop: what it has seen, and how
    to connect.
    """
    seen = {}
    config = uvicorn.Config(
        partial(app_that_counts, seen), interface="asgi3", log_config=None, ws="none"
    )
    config.load()
    among, state = Connections(Service(), Metrics()), ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(among, config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield seen, partial(asyncio.open_connection, *server.sockets[0].getsockname())
    finally:
        for one in list(among._open):
            one.transport.abort()
        server.close()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - other clients have a turn of the event loop each time
            await asyncio.sleep(0)


def test_many_requests_behind_each_other_let_others_come_between():
    async def attack():
        async with listening() as (seen, connect):
            reader, writer = await connect()
            deaf = [await connect() for _ in range(40)]
            for _, out in deaf:
                out.write(b"GET /deaf HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
            await until(lambda: seen.get("/deaf", 0) >= len(deaf))
            before = seen["/deaf"]
            writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await reader.read(65536)).startswith(b"HTTP/1.1 200")
            meanwhile = seen["/deaf"] - before
            await until(lambda: seen["/deaf"] == 100 * len(deaf))
            return meanwhile

    assert asyncio.run(attack()) < 40, "each of them had a turn, and more"


@pytest.mark.parametrize("behind", [False, True])
def test_a_body_of_tiny_chunks_is_read_a_little_at_a_time(behind):
    body = HALF_CHUNKED + "1\r\n \r\n" * 50_000 + "0\r\n\r\n"

    async def attack():
        async with listening() as (seen, connect):
            reader, writer = await connect()
            writer.write(((f"{HEALTH}\r\n" if behind else "") + body).encode())
            for _ in range(1 + behind):
                await reader.readuntil(b"ok")
            writer.write(f"{HEALTH}\r\n".encode())
            assert (await reader.read(65536)).startswith(b"HTTP/1.1 200")
            return seen["most"]

    assert 0 < asyncio.run(attack()) <= connections.TURN


def test_who_hangs_up_behind_something_more_is_noticed():
    with serving(simulated(steps=1000, seconds=0.5)) as one:
        with closing(connect(one, WHOLE * 2)):
            within(20, lambda: one.running())
        within(20, lambda: one.engine.idle)


def test_what_comes_behind_the_last_request_does_not_spoil_its_answer(short):
    with closing(connect(short, WHOLE.replace("\r\n", "\r\nConnection: close\r\n", 1))) as sock:
        within(20, lambda: not short.engine.idle)
        sock.sendall(b"rubbish\r\n\r\n")
        assert rest(sock).startswith("HTTP/1.1 200 OK")


# -- all at once


def behave(one, seed, ended):
    """A client of some kind, until the endpoint or the test ends it."""
    rng = random.Random(seed)
    said = rng.choice(
        [
            WHOLE,
            WHOLE * 3,
            HALF,
            HEAD,
            HEALTH + "\r\n",
            f"{HEALTH}\r\n" * 50,
            HEALTH + "A: b\r\n" * 3000,
        ]
    )
    said = said[: rng.choice([None, rng.randrange(len(said))])]
    with suppress(OSError), closing(connect(one, SO_RCVBUF=rng.choice([1024, 2**17]))) as sock:
        sock.settimeout(2)
        size = rng.choice([1, 7, 100, 10**6])
        for at in range(0, len(said), size):
            sock.sendall(said[at : at + size].encode())
            if ended.wait(rng.choice([0, 0, 0.001, 0.05])):
                return
        match rng.choice(["wait", "read", "half", "reset"]):
            case "wait":
                ended.wait(2)
            case "read":
                rest(sock)
            case "half":
                sock.shutdown(socket.SHUT_WR)
                rest(sock)
            case "reset":
                sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
                )


def test_clients_of_every_kind_at_once_disturb_nobody(short):
    ended = threading.Event()
    strange = [
        threading.Thread(target=behave, args=(short, seed, ended))
        for seed in range(800 if FULL else 120)
    ]
    for number, thread in enumerate(strange):
        thread.start()
        if number % 20 == 0:
            assert short.http.get("/health").status_code == 200
    for _ in range(10):
        within(20, lambda: short.ask().status_code == 200)  # a full queue says 429
    ended.set()
    for thread in strange:
        thread.join(30)
        assert not thread.is_alive()
    short.http.close()
    within(20, lambda: short.engine.idle and open_now(short) == 0)
    assert (
        '"internal error"' not in short.told.getvalue()
        and '"level": "error"' not in short.told.getvalue()
    )
