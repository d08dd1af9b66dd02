"""The endpoint in this process, over scripted or simulated runtimes, and what its errors must be."""

import json
import socket
import threading
from contextlib import contextmanager

import httpx

from lr_sglang.config import Lookahead
from lr_sglang.serve.app import create_app
from lr_sglang.serve.server import EndpointServer
from lr_sglang.serve.settings import Service
from tests.compared import summed
from tests.scripted import ScriptedTransport, chapters, deployment
from tests.simulated.model import Model, Simulation
from tests.simulated.transport import simulated_roles

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


SERVICE = Service(
    modes=("lookahead", "autoregressive", "lossless"),
    verifiers=("judge", "exact"),
    lookahead=Lookahead(depth=4),
    concurrency=4,
    queue=8,
    drain=5.0,
)


ASK = {
    "model": "lookahead",
    "messages": [{"role": "user", "content": "How long is a step?"}],
    "seed": 1,
}


TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


class Endpoint:
    """One that serves in a thread."""

    def __init__(self, roles, service, keys):
        self.roles, self.app = roles, create_app(roles, service, keys)
        self.engine, self.health = self.app.state.engine, self.app.state.health
        self.ready = threading.Event()
        self.server = EndpointServer(self.app, service, self.ready.set)
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"
        self.thread = threading.Thread(target=self.server.run, args=([self.sock],), daemon=True)
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def ask(self, path=CHAT, **more):
        return self.http.post(path, json={**ASK, **more})

    def stream(self, **more):
        """The JSON of every event, as it comes."""
        with self.http.stream(
            "POST", more.pop("path", CHAT), json={**ASK, "stream": True, **more}
        ) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line:
                    data = line.removeprefix("data: ")
                    assert data != line
                    yield "[DONE]" if data == "[DONE]" else json.loads(data)

    def chunks(self, stream, **more):
        """The objects of a reply, whole or streamed, with the usage."""
        if not stream:
            return [self.ask(**more).json()]
        *found, done = self.stream(**more, stream_options={"include_usage": True})
        assert done == "[DONE]"
        return found

    def answer(self, stream, **more):
        """The last answer to a request, sent whole or put together from its stream: its choice, the
        usage, and what is said of it.
        """
        chunks = self.chunks(stream, **more)
        choice = summed(chunks)["choices"][more.get("n", 1) - 1]
        return choice, chunks[-1]["usage"], chunks[-1]["lookahead"]

    def running(self):
        return sum(watch.running() for watch in self.health.watches.values())


def pieces(events):
    """The texts of a reply's first choice, in the order in which its objects bring them."""
    choices = [event["choices"][0] for event in events if event.get("choices")]
    said = [choice.get("delta") or choice.get("message", {}) for choice in choices]
    return [one["content"] for one in said if one.get("content")]


@contextmanager
def serving(roles, service=SERVICE, keys=None):
    one = Endpoint(roles, service, keys)
    one.thread.start()
    try:
        assert one.ready.wait(10)
        yield one
    finally:
        one.server.end()
        one.server.end()  # at once
        one.http.close()
        one.thread.join(20)
        assert not one.thread.is_alive()


def simulated(steps=8, seconds=0.04, **more):
    return simulated_roles(
        Simulation(Model(steps=steps, **more), step_seconds=seconds, judge_seconds=0.005)
    )


def scripted(steps, seconds=0.0, **more):
    judge = ScriptedTransport(lambda text, sampling: "a")
    writers = [ScriptedTransport(chapters(steps), lambda text: seconds, **more) for _ in range(2)]
    return deployment(target=writers[0], draft=writers[1], judge=judge).roles


def is_documented(response, status, code=None):
    assert response.status_code == status, response.text
    body = response.json()
    error = body["error"]
    assert error["message"] and response.headers["x-request-id"]
    if response.request.url.path.startswith("/v1/messages"):  # Anthropic's
        assert body.keys() == {"type", "error"} and body["type"] == "error"
        assert error.keys() == {"type", "message"}
    else:
        assert error.keys() == {"message", "type", "param", "code"} and error["code"] == code
    return error
