"""The composition of examples/operations, started: its units with simulated servers in SGLang's
place, two endpoints, and nginx in front where it is installed. Each part is killed once, and
started again as systemd's Restart= would; each part of ours hangs once, until
somebody restarts it. What
counts is what users see.
"""

import itertools
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from lr_sglang.config import ROLES
from tests.operations import FOLDER, KEY, RULES, Program, Unit, endpoint, units
from tests.processes.mortal import Client, Mortal, authorized, metric
from tests.serving import HTTP, PATIENCE, free_port, until

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
MISSING = "nginx is not installed here (Debian's package nginx-light is enough)"
SIMULATION = (
    *("--alpha", "1", "--steps", "4", "--step-seconds", ".1"),
    *("--c1", ".2", "--judge-seconds", ".02"),
)
ALONE = 4 * 0.12 + 10.0  # seconds of an answer without draft or judge, on a busy machine
# A hanging draft or judge is noticed by its own requests, then left alone; both with time to spare.
NOTICED = 40.0
(DEGRADED,) = (rule for rule in RULES if rule["alert"] == "Degraded")
numbers = itertools.count()


@dataclass
class Composition:
    """All parts, by name."""

    units: dict[str, Unit]
    fronts: list[str]  # nginx, or else the endpoints
    endpoints: list[str]
    folder: Path
    model: str = ""

    def ask(self, front: int = 0, **more: object) -> Client:
        """A question that names the mode, in which nobody is answered by the target alone."""
        return Client(
            self.fronts[front % len(self.fronts)],
            f"What is {next(numbers)} + {os.getpid()}?",
            stream=False,
            more={"model": self.model, "lookahead": {"mode": "lookahead"}, **more},
            key=KEY,
        )

    def answered(self, front: int = 0, within: float = ALONE + NOTICED) -> Client:
        heard = self.ask(front).end(within)
        assert (heard.status, heard.finish, heard.broken) == (200, "stop", ""), heard
        return heard

    def looks_ahead(self) -> bool:
        return all(
            (heard := self.ask(front).end(ALONE + NOTICED)).status == 200
            and not heard.about["degraded"]
            and heard.about["alpha"] == 1
            for front in range(2)
        )

    def degraded(self, role: str) -> bool:
        """What the alert asks about, at every endpoint."""
        assert re.search(rf'lr_sglang_runtime_up{{role=~"[^"]*{role}', DEGRADED["expr"])
        return all(metric(url, "runtime_up", key=KEY, role=role) == 0 for url in self.endpoints)

    def log(self, number: int) -> str:
        return (self.folder / f"endpoint-{number}.log").read_text("utf-8")


def proxy(folder: Path, port: int, ports: list[int]) -> Program:
    """nginx, with other ports and folders."""
    assert NGINX is not None
    text = (FOLDER / "nginx.conf").read_text("utf-8").replace("listen 8080", f"listen {port}")
    for written, ours in zip((8001, 8002), ports, strict=True):
        text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{ours}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder};\n" for kind in kinds)
    # in the foreground and in one process, as the one that hangs would have to be guessed
    before = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error;\n"
    file = folder / "nginx.conf"
    file.write_text(before + text.replace("http {", f"http {{ access_log off; {folders}"))

    def up() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2):
            return True
        return False

    return Program([NGINX, "-p", str(folder), "-c", str(file)], folder / "nginx.log", up)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    folder = tmp_path_factory.mktemp("composition")
    (folder / "keys.txt").write_text(KEY + "\n")
    (folder / "keys.txt").chmod(0o600)
    urls, parts = {}, dict[str, Program | Mortal]()
    for role, service in units(FOLDER / "deployment.toml", folder).items():
        port = free_port()
        urls[f"http://127.0.0.1:{service.argv[service.argv.index('--port') + 1]}"] = port
        parts[role] = Mortal(role, SIMULATION, folder / f"{role}.log", port)
    assert parts.keys() == set(ROLES)
    ports = [free_port(), free_port()]
    for number, port in enumerate(ports):
        parts[f"endpoint {number}"] = endpoint(folder, number, port, urls)
        parts[f"endpoint {number}"].live()
    endpoints = [f"http://127.0.0.1:{port}" for port in ports]
    fronts = endpoints
    if NGINX is not None:
        listening = free_port()
        parts["nginx"] = proxy(folder, listening, ports)
        parts["nginx"].live()
        fronts = [f"http://127.0.0.1:{listening}"]
    with ExitStack() as stack:
        made = {name: Unit(part) for name, part in parts.items()}
        for unit in made.values():
            stack.callback(unit.stop)
        composition = Composition(made, fronts, endpoints, folder)
        until(lambda: all(unit.part.up() for unit in made.values()), PATIENCE)
        models = HTTP.get(f"{fronts[0]}/v1/models", headers=authorized(KEY), timeout=10).json()
        composition.model = models["data"][0]["id"]
        yield composition


@pytest.fixture
def up(started: Composition) -> Composition:
    """All of it, well."""
    until(lambda: all(unit.part.up() for unit in started.units.values()), PATIENCE)
    until(started.looks_ahead, NOTICED, 0.5)
    return started


@pytest.mark.parametrize("role", ["draft", "judge"])
def test_without_draft_or_judge_answers_go_on_and_the_alert_has_its_reason(
    up: Composition, role: str
) -> None:
    unit = up.units[role]
    unit.part.send(signal.SIGSTOP)  # a server that hangs is no reason for systemd to start another
    for front in range(2):
        up.answered(front)
    until(lambda: up.answered() and up.answered(1) and up.degraded(role), NOTICED)
    for number in range(2):
        assert re.search(rf'"role": ?"{role}"', up.log(number)), "its log names it"
    assert DEGRADED["for"] == "1m" and DEGRADED["labels"]["severity"] == "ticket"
    unit.restart()
    until(up.looks_ahead, NOTICED, 0.5)
    assert not up.degraded(role)
    starts = unit.starts
    unit.part.send(signal.SIGKILL)
    up.answered(0), up.answered(1)
    until(lambda: unit.starts > starts and unit.part.up(), PATIENCE)
    until(up.looks_ahead, NOTICED, 0.5)


def test_without_the_target_users_are_told_when_to_ask_again(up: Composition) -> None:
    unit, starts = up.units["target"], up.units["target"].starts
    unit.part.send(signal.SIGSTOP)
    for front in range(2):
        heard = up.ask(front).end(ALONE + NOTICED)
        assert heard.error.get("code") in ("target_down", "target_timeout"), heard
        assert int(heard.headers["retry-after"]) > 0
    unit.restart()  # from killed to started, too
    assert unit.starts == starts + 1
    until(up.looks_ahead, NOTICED, 0.5)


def test_an_endpoint_that_is_killed_is_replaced_by_the_other(up: Composition) -> None:
    unit, starts = up.units["endpoint 0"], up.units["endpoint 0"].starts
    unit.part.send(signal.SIGKILL)
    for _ in range(4):  # whoever is asked first by the proxy
        up.answered(1)
    until(lambda: unit.starts > starts and unit.part.up(), PATIENCE)
    until(up.looks_ahead, NOTICED, 0.5)


@pytest.mark.skipif(NGINX is None, reason=MISSING)
def test_what_a_hanging_endpoint_holds_is_answered_by_the_other_when_it_is_restarted(
    up: Composition,
) -> None:
    unit = up.units["endpoint 0"]
    unit.part.send(signal.SIGSTOP)
    asked = [up.ask() for _ in range(4)]
    until(lambda: sum(one.ended for one in asked) >= 2, ALONE + NOTICED)
    unit.restart()
    for one in asked:
        heard = one.end(ALONE + NOTICED)
        assert (heard.status, heard.finish) == (200, "stop"), heard
    until(up.looks_ahead, NOTICED, 0.5)


@pytest.mark.skipif(NGINX is None, reason=MISSING)
def test_a_stream_passes_the_proxy_as_it_comes_and_one_client_does_not_take_all(
    up: Composition,
) -> None:
    # two steps come at a time, one 0.1 s after the other
    two_by_two = {"mode": "lookahead", "schedule": "sync", "depth": 1}
    asked = {"model": up.model, "lookahead": two_by_two}
    streamed = Client(up.fronts[0], "A stream?", more=asked, key=KEY).end(ALONE)
    assert streamed.finish == "stop" and streamed.first < streamed.seconds - 0.1
    reply = HTTP.get(f"{up.fronts[0]}/metrics", headers=authorized(KEY))
    assert reply.status_code == 404, "who runs the service sees them, not who uses it"
    port = int(up.fronts[0].rpartition(":")[2])

    def status(_: int) -> int:
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status

    with ThreadPool(40) as pool:
        assert set(pool.map(status, range(200))) == {200, 429}
