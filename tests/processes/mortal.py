"""Simulated runtimes that can be killed, stopped and started again, and clients that tell what they
got and when.
"""

import json
import multiprocessing
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from lr_sglang.config import ROLES
from tests.serving import HTTP, PATIENCE, answers, free_port, until

# Runtimes are forks of a process that has imported everything: one is there again in a fraction of
# a second.
NURSERY = multiprocessing.get_context("forkserver")
NURSERY.set_forkserver_preload(["tests.processes.nursery"])
MODEL = "m"


def simulate(arguments: list[str], log: str) -> None:
    """Simulated runtimes in a fork of the nursery, which has imported them."""
    from tests.simulated.__main__ import main

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    main(arguments)


class Mortal:
    """A simulated runtime of one role, in a process of its own, on a port that it keeps over
    its lives.
    """

    def __init__(self, role: str, options: Sequence[str], log: Path, port: int = 0) -> None:
        self.role, self.options, self.log = role, tuple(options), log
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.live()

    def live(self) -> None:
        """Begins a life; returns when it answers."""
        arguments = ["--role", self.role, "--port", str(self.port), *self.options]
        self.process = NURSERY.Process(
            target=simulate, args=(arguments, str(self.log)), daemon=True
        )
        self.process.start()
        until(self.up, PATIENCE)

    def up(self) -> bool:
        """Whether it can be reached."""
        return answers(f"{self.url}/health")

    def running(self) -> int:
        """Requests that it works on, as it says itself."""
        return int(HTTP.get(f"{self.url}/v1/loads", timeout=5).json()["loads"][0]["num_total_reqs"])

    def fault(self, **order: Any) -> None:
        """Orders one."""
        HTTP.post(f"{self.url}/faults", json=order, timeout=5).raise_for_status()

    def well(self) -> None:
        """Ends all that were ordered."""
        HTTP.delete(f"{self.url}/faults", timeout=5).raise_for_status()

    def send(self, number: int) -> None:
        """A signal; what kills it is waited for."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.join(10)

    def ended(self) -> bool:
        return not self.process.is_alive()

    def sweep(self) -> None:
        """Ends it for good; it has started nothing."""
        if not self.ended():
            self.send(signal.SIGKILL)


@contextmanager
def mortals(folder: Path, *options: str) -> Iterator[dict[str, Mortal]]:
    """One for each role."""
    found: dict[str, Mortal] = {}
    try:
        for role in ROLES:
            found[role] = Mortal(role, options, folder / f"{role}.log")
        yield found
    finally:
        for one in found.values():
            one.sweep()


@dataclass
class Client:
    """One request in a thread of its own, and what came of it.

    Attributes:
        text: all that was delivered, in order.
        error: OpenAI's error object, of a refusal or of the last event of a stream.
        finish: why the answer ended; empty if it did not.
        about: the ``lookahead`` extension.
        broken: what the connection died of; empty if it did not.
        first, seconds: from asking to the first text, and to the end.
    """

    url: str
    question: str
    stream: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    error: dict[str, Any] = field(default_factory=dict)
    finish: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    closed: bool = False
    broken: str = ""
    first: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.begun, self._socket, self._left = threading.Event(), None, False
        self._asked = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self, seconds: float) -> Self:
        """Waits for the end, which has to come."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"no end after {seconds} s: {self}"
        return self

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def close_connection(self) -> None:
        """Leaves, whatever there is still to come."""
        self._left = True
        assert self._socket is not None
        with suppress(OSError):  # it may have been the end just now
            self._socket.shutdown(socket.SHUT_RDWR)
        self.end(5)

    def _run(self) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": self.question}],
            "stream": self.stream,
        }
        try:
            ask = HTTP.build_request(
                "POST",
                f"{self.url}/v1/chat/completions",
                json={**body, **self.more},
                # closed at its end: no other request may get a connection that this one still closes
                headers={"connection": "close", **authorized(self.key)},
                timeout=600,
            )
            ask.extensions["trace"] = self._connected
            with closing(HTTP.send(ask, stream=True)) as reply:
                self.status, self.headers = reply.status_code, reply.headers
                if self.stream and self.status == 200:
                    self._events(reply)
                else:
                    said = reply.read()
                    # a proxy's own words are a page
                    self._whole(json.loads(said) if said.startswith(b"{") else {})
        except httpx.HTTPError as error:
            self.broken = "" if self._left else repr(error)
        self.seconds = time.monotonic() - self._asked
        self.begun.set()

    def _connected(self, name: str, info: Mapping[str, Any]) -> None:
        """Told by httpx of all that it does."""
        if name == "connection.connect_tcp.complete":
            self._socket = info["return_value"].get_extra_info("socket")

    def _events(self, reply: httpx.Response) -> None:
        for line in reply.iter_lines():
            if not line:
                continue
            assert line.startswith("data: ") and not self.closed, line
            if line == "data: [DONE]":
                self.closed = True
                continue
            event = json.loads(line.removeprefix("data: "))
            assert not self.error, f"something after an error: {event}"
            self.error = event.get("error", {})
            self.about = event.get("lookahead", self.about)
            for choice in event.get("choices", ()):
                assert not self.finish, f"something after the end: {event}"
                self.finish = choice["finish_reason"] or ""
                self._hear(choice["delta"].get("content") or "")

    def _whole(self, reply: dict[str, Any]) -> None:
        self.error, self.about = reply.get("error", {}), reply.get("lookahead", {})
        for choice in reply.get("choices", ()):
            self.finish = choice["finish_reason"]
            self._hear(choice["message"]["content"])

    def _hear(self, text: str) -> None:
        if text and not self.text:
            self.first = time.monotonic() - self._asked
        self.text += text
        if text:
            self.begun.set()


def ready(url: str) -> tuple[int, dict[str, Any]]:
    """Status and body of ``/ready``."""
    reply = HTTP.get(f"{url}/ready", timeout=10)
    return reply.status_code, reply.json()


def authorized(key: str) -> dict[str, str]:
    """The header with a key, if there is one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def metric(url: str, name: str, *, key: str = "", **labels: str) -> float:
    """One of the endpoint's figures; 0 where there is none yet."""
    text = HTTP.get(f"{url}/metrics", headers=authorized(key), timeout=10).text
    wanted = (
        "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}"
        if labels
        else ""
    )
    found = re.search(rf"^lr_sglang_{re.escape(name + wanted)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0
