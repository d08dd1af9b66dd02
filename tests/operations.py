"""The units of examples/operations, read as systemd reads them."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests import ROOT, loaded
from tests.processes.mortal import Mortal
from tests.serving import PATIENCE, answers, until

FOLDER = ROOT / "examples" / "operations"
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]


@dataclass(frozen=True)
class Service:
    """What a unit says of its service."""

    file: Path
    argv: list[str]
    env: dict[str, str]
    restart: str
    stop_seconds: float

    @classmethod
    def read(cls, file: Path) -> "Service":
        """Reads the settings that these units have; ``%i`` stays."""
        pairs = [
            line.split("=", 1)
            for line in file.read_text("utf-8").splitlines()
            if "=" in line and not line.startswith("#")
        ]
        said = dict(pairs)
        env = [
            shlex.split(value)[0].replace("%%", "%")
            for name, value in pairs
            if name == "Environment"
        ]
        words = shlex.split(said["ExecStart"].replace("$$", "$").replace("%%", "%"))
        return cls(
            file,
            words,
            dict(one.split("=", 1) for one in env),
            said["Restart"],
            float(said["TimeoutStopSec"]),
        )


unit = loaded(FOLDER / "units.py").unit


def units(deployment: Path, folder: Path, *options: str) -> dict[str, Service]:
    """The units that the example's commands write, by role."""
    launch = [sys.executable, str(ROOT / "cli.py"), "launch", str(deployment)]
    printed = subprocess.run(
        [*launch, *options, "--print", "--json"], stdout=subprocess.PIPE, check=True
    )
    said = subprocess.run(
        [sys.executable, str(FOLDER / "units.py"), str(folder)],
        input=printed.stdout,
        stdout=subprocess.PIPE,
        check=True,
    )
    files = [Path(line) for line in said.stdout.decode().splitlines()]
    return {file.stem.removeprefix("lr-sglang-"): Service.read(file) for file in files}


RESTART_SECONDS = 0.5  # in place of the 5 s that the units say


KEY = "a-key-for-this-test"


@dataclass
class Program:
    """A unit's command, or nginx."""

    argv: list[str]
    log: Path
    up: Callable[[], bool]
    env: dict[str, str] = field(default_factory=dict)
    popen: subprocess.Popen[bytes] = field(init=False)

    def live(self) -> None:
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.argv,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.env},
                start_new_session=True,
            )

    def sweep(self) -> None:
        """Ends what a dead one has left, as systemd does with the rest of a unit."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def ended(self) -> bool:
        return self.popen.poll() is not None

    def send(self, number: int) -> None:
        self.popen.send_signal(number)
        if number == signal.SIGKILL:
            self.popen.wait(10)


class Unit:
    """A part that is started again when it ends, as systemd does with ``Restart=always``."""

    def __init__(self, part: Program | Mortal) -> None:
        self.part, self.starts = part, 1
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._stopped.wait(0.05):
            if not self.part.ended():
                continue
            self.part.sweep()
            if not self._stopped.wait(RESTART_SECONDS):
                self.part.live()
                self.starts += 1

    def restart(self) -> None:
        """``systemctl restart``, of what may hang: killed, and started again."""
        before = self.starts
        self.part.send(signal.SIGKILL)
        until(lambda: self.starts > before and self.part.up(), PATIENCE)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE)
        with suppress(ProcessLookupError):
            self.part.send(signal.SIGKILL)
        self.part.sweep()


def endpoint(folder: Path, number: int, port: int, urls: dict[str, int]) -> Program:
    """The unit of an endpoint, with other ports and another folder."""
    said = Service.read(FOLDER / "lr-sglang-serve@.service")
    words = [word.replace("%i", str(port)) for word in said.argv[1:]]
    words = [word.replace("/etc/lr-sglang", str(folder)) for word in words]
    for written, ours in urls.items():
        words = [word.replace(written, f"http://127.0.0.1:{ours}") for word in words]

    argv = [sys.executable, str(ROOT / "cli.py"), *words]
    ready = f"http://127.0.0.1:{port}/ready"
    return Program(argv, folder / f"endpoint-{number}.log", lambda: answers(ready))
