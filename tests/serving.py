"""The command line's servers, each in a process of its own, and what their answers must be."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests import ROOT
from tests.simulated.model import TARGET, Model, Writer

DRAFTED = 1  # the version that a simulated draft writes
# For requests of tests: a client for each would cost more than the request. No connection is kept, for
# those who are asked may be killed.
HTTP = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))
PATIENCE = 120.0  # seconds: a busy machine takes long to import SGLang


@dataclass
class Process:
    """One ``lr-sglang`` command.

    Attributes:
        out, errors: where its standard output and error go.
        told: what one that serves said as JSON when it was ready.
    """

    popen: subprocess.Popen[str]
    out: Path
    errors: Path
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def url(self) -> str:
        """Of an endpoint."""
        return str(self.told["url"])

    @property
    def output(self) -> str:
        """All of its standard output."""
        return self.out.read_text("utf-8")

    @property
    def said(self) -> str:
        """All of its standard error."""
        return self.errors.read_text("utf-8")

    def wait(self, there: Callable[[str], Any], seconds: float = PATIENCE) -> Any:
        """Waits for something in its output, which it has to write before it ends."""
        until(lambda: there(self.output) or self.popen.poll() is not None, seconds)
        found = there(self.output)
        assert found, f"{self.popen.args} ended:\n{self.said[-3000:]}"
        return found

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of an endpoint's log."""
        return [json.loads(line) for line in self.said.splitlines() if line.startswith("{")]

    def disconnected(self) -> int:
        """Requests to an endpoint whose client hung up before the answer's end."""
        return sum(line.get("error") == "disconnected" for line in self.log)

    def guardian(self, log: Path) -> psutil.Process:
        """The process that it started for the server with this log, to which that writes too."""
        children = psutil.Process(self.pid).children()
        (found,) = (
            one for one in children if os.readlink(f"/proc/{one.pid}/fd/1") == str(log.resolve())
        )
        return found

    def stop(self, number: int = signal.SIGTERM, seconds: float = 40.0) -> int:
        """Ends it, by force when it takes longer than so many seconds; says how it ended."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait(10)
        return int(self.popen.returncode)


def begun(
    folder: Path,
    *words: object,
    script: Path = ROOT / "cli.py",
    environ: Mapping[str, str] | None = None,
    kind: type[Process] = Process,
    popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
) -> Any:
    """Begins a command in a folder."""
    out, errors = (folder / f"{time.monotonic_ns()}.{name}" for name in ("out", "err"))
    command = [sys.executable, str(script), *map(str, words)]
    with out.open("w") as told, errors.open("w") as sink:
        env = {**os.environ, **(environ or {})}
        made = popen(command, cwd=folder, stdout=told, stderr=sink, text=True, env=env)
    return kind(made, out, errors)


@contextmanager
def serving(
    folder: Path,
    urls: Mapping[str, str],
    *options: object,
    environ: Mapping[str, str] | None = None,
    script: Path = ROOT / "cli.py",
) -> Iterator[Process]:
    """``lr-sglang serve`` over runtimes that are up, on a free port, once it says that it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    attach = [word for role, url in urls.items() for word in (f"--{role}", url)]
    words = ("serve", "--port", 0, *attach, *options, "--json")
    process = begun(folder, *words, script=script, environ=environ)
    try:
        process.wait(lambda said: said.endswith("\n"))
        process.told = json.loads(process.output)
        yield process
    finally:
        process.stop()


def in_flight(urls: Mapping[str, str]) -> dict[str, int]:
    """Requests that runtimes run or have waiting, by role; simulated ones and SGLang's own."""

    def at(url: str) -> int:
        loads = HTTP.get(f"{url}/v1/loads", timeout=10).json()["loads"]
        return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)

    return {role: at(url) for role, url in urls.items()}


def until_idle(urls: Mapping[str, str], seconds: float = 10.0) -> None:
    """Waits until runtimes have no request. A load is as of the scheduler's last step, so it may lag
    a little.
    """
    until(lambda: not any(in_flight(urls).values()), seconds)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def answers(url: str) -> bool:
    """Whether this URL can be read."""
    with suppress(httpx.HTTPError):
        return HTTP.get(url, timeout=2).status_code == 200
    return False


def until(true: Callable[[], Any], seconds: float, every: float = 0.05) -> float:
    """Waits until something is so; says how many seconds that took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, f"not within {seconds} s"
        time.sleep(every)
    return time.monotonic() - began


class Truth:
    """What simulated runtimes answer: at each position the target's step, or the draft's where they
    agree.

    Args:
        model: as the runtimes' options say.
    """

    def __init__(self, model: Model) -> None:
        self.model, self._writer = model, Writer(model)

    def steps(self, question: str) -> list[set[str]]:
        """The versions of each step that may be in an answer."""
        words = self._writer.words
        number = words.number(
            words.tokenizer.chat([{"role": "user", "content": question}], True).ids or ()
        )
        return [
            {
                words.tokenizer.decode(self.model.step(words, number, position, version))
                for version in (TARGET, DRAFTED)
                if self.model.agrees(number, position, version)
            }
            for position in range(self.model.steps)
        ]

    def plain(self, question: str) -> str:
        """The answer without lookahead."""
        model = replace(self.model, alpha=(0.0,), trace=())
        return "".join(next(iter(versions)) for versions in Truth(model).steps(question))

    def wrong(self, question: str, text: str, whole: bool = True) -> str:
        """What is wrong with an answer; empty if it is right.

        Args:
            whole: it must go to its end; else it may stop between two steps.
        """
        rest = text
        for position, versions in enumerate(self.steps(question)):
            if not rest and not whole:
                return ""
            version = next((one for one in versions if rest.startswith(one)), None)
            if version is None:
                return (
                    f"step {position} of {question!r} is neither of {versions}, but {rest[:200]!r}"
                )
            rest = rest[len(version) :]
        return f"{question!r}: {rest[:200]!r} comes after the end" if rest else ""
