"""The units of examples/operations, read as systemd reads them."""

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT, loaded

FOLDER = ROOT / "examples" / "operations"


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
