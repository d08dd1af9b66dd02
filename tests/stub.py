"""A server in a thread that answers as a test says: one of SGLang's, a worker, or its router."""

import json
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import urllib3

from lr_sglang import pocket

REPLY = {"text": "x", "output_ids": [1], "meta_info": {}}


class Handler(BaseHTTPRequestHandler):
    """Documents are the server's; every request of one leaves its path and authorization."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.ports.append(self.client_address[1])
        if self.path == "/abort_request":
            self.server.aborts.append(body["rid"])
            self.server.abort(self, body)
        elif self.path in ("/tokenize", "/detokenize"):
            answer = self.server.documents.get(self.path)
            self.reply(b"", 404) if answer is None else self.reply(answer(body))
        else:
            self.server.requests.append(body | {"authorization": self.headers["Authorization"]})
            self.server.generate(self, body)

    def do_GET(self):
        self.server.seen.append((self.path, self.headers["Authorization"]))
        body = self.server.documents.get(self.path)
        if callable(body):
            body = body()
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.reply(b"", 401)
        else:
            self.reply(b"", 404) if body is None else self.reply(body)

    def reply(self, body, status=200, headers=None):
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        kind = {} if isinstance(body, bytes) else {"Content-Type": "application/json"}
        self._begin(status, {"Content-Length": str(len(data)), **kind, **(headers or {})})
        self.wfile.write(b"" if self.command == "HEAD" else data)

    def stream(self, pieces):
        """Replies with server-sent events, piece by piece."""
        self._begin(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _begin(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args):
        pass


def hung_up(handler, body):
    """Breaks the connection with nothing answered."""
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


class Stub(ThreadingHTTPServer):
    """Answers with what ``generate(handler, body)`` does; remembers requests, connections and
    aborts.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler=Handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.generate = lambda handler, body: handler.reply(REPLY)
        self.abort = lambda handler, body: self.stop(body["rid"]) or handler.reply(None)
        self.requests, self.aborts, self.ports, self.seen = [], [], [], []
        self.documents, self.key = {}, ""
        self.arrived, self.closed = threading.Event(), threading.Event()
        self.stopped: dict[str, threading.Event] = {}
        self.abort_failed = 0
        self.connections: list[socket.socket] = []

    def process_request(self, request, client_address):
        self.connections.append(request)
        super().process_request(request, client_address)

    def die(self):
        """Ends as a killed server: nobody listens, and all connections are closed."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def stop(self, rid):
        if len(self.aborts) > self.abort_failed and rid in self.stopped:
            self.stopped[rid].set()

    def until_aborted(self, handler, body):
        """A generation that goes on until it is aborted."""
        self.stopped[body["rid"]] = event = threading.Event()
        self.arrived.set()
        assert event.wait(10)
        handler.reply(REPLY)

    def until_closed(self, handler, body):
        """A generation that goes on until its client closes the connection."""
        handler.connection.settimeout(10)
        self.arrived.set()
        if not handler.connection.recv(1):
            self.closed.set()
        hung_up(handler, body)

    def handle_error(self, request, client_address):
        pass  # the client hung up: what these tests are about


@contextmanager
def served(stub):
    """While it serves, in a thread."""
    thread = threading.Thread(
        target=stub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield stub
    finally:
        stub.shutdown()
        stub.server_close()
        thread.join()


MODEL = str(pocket.weights("target"))


def drawn(handler, body):
    """Replies with tokens that are the request's seed, as far as it has one."""
    params = body.get("sampling_params", {})
    ids = [params["sampling_seed"]] * params["max_new_tokens"] if "sampling_seed" in params else []
    handler.reply({**REPLY, "output_ids": ids} if ids else REPLY)


class Worker(Stub):
    """Stands in for one SGLang server."""

    def __init__(self, slots=4, model=MODEL):
        super().__init__()
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


class Passing(Handler):
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
            code = "call_upstream_request_error"
            said = {"error": {"code": code, "message": str(error)}}
            return self.reply(said, 500, {"X-SMG-Error-Code": code})
        return self.reply(reply.data, reply.status)


class Router(Stub):
    """Stands in for SGLang's router with the policy ``manual``: a key stays on its worker, even on
    a dead one.

    Requests without a key take turns.
    """

    def __init__(self, workers):
        super().__init__(Passing)
        self.keys, self.kept = [], {}
        self.urls = [worker.url for worker in workers]
        self.listed = [{"url": url, "is_healthy": True} for url in self.urls]
        self.documents = {"/workers": lambda: {"workers": self.listed, "total": len(self.listed)}}
        self.pool = urllib3.PoolManager(maxsize=64, retries=False)
