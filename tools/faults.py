"""Plants faults in a copy of the repository, one at a time, and says which test kills each.

    python tools/faults.py [WORD ...] [--tests PATH ...]

``faults.toml`` has the faults. Each WORD chooses those that have it in their kind, name or file. A
fault must fail at least one of its tests, which pass without it; ``--tests`` runs others instead.
Exits with 1 if a fault survives.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 90  # a test that takes longer hangs, which kills the fault too
# Imported once: each run of the tests is a fork, which imports the package itself anew.
HEAVY = (
    *("pytest", "hypothesis", "scipy.stats", "pydantic", "aiohttp", "orjson"),
    *("torch", "transformers", "sglang.lang.interpreter", "rich.console", "click", "fastapi"),
)


class Fault(NamedTuple):
    """One fault: ``text``, which ``file`` has exactly once, is replaced by ``instead``."""

    kind: str
    name: str
    file: str
    text: str
    instead: str
    tests: list[str]

    def planted(self, source: str) -> str:
        """The source with the fault in it."""
        if source.count(self.text) != 1:
            raise SystemExit(
                f"{self.name}: {self.file} has its text {source.count(self.text)} times"
            )
        return source.replace(self.text, self.instead)


def faults() -> list[Fault]:
    """All faults of ``faults.toml``."""
    with (ROOT / "tools" / "faults.toml").open("rb") as file:
        return [Fault(**one) for one in tomllib.load(file)["fault"]]


class Killers:
    """A plugin of pytest that notes which tests fail."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.found.append(report.nodeid)


def copied(folder: Path) -> None:
    """Copies the repository's files, as they are now, into a folder."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, names)):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "lr_sglang" / "programs").symlink_to("../programs")  # as it is installed


def failing(folder: Path, tests: Sequence[str], *, planted: bool) -> list[str]:
    """The tests that fail in a folder, run in a fork of this process.

    Args:
        planted: whether there is a fault. Without one they may take long, and what they compile
            is kept for later runs.
    """
    told = folder / "told.txt"
    told.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.chdir(folder)
        sys.path[0] = str(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "lr_sglang"]:
            del sys.modules[name]  # SGLang imports its plugin
        sys.dont_write_bytecode = planted
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        killers = Killers()
        import pytest

        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests], plugins=[killers])
        if code and not killers.found:
            killers.found.append("the tests cannot be run: see output.txt")
        told.write_text("\n".join(killers.found))
        os._exit(0)
    until = time.monotonic() + (SECONDS if planted else 10 * SECONDS)
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.05)
    return told.read_text().splitlines() if told.exists() else ["a test that never ended"]


def main() -> int:
    """Plants the chosen faults; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="words of the faults that are planted")
    parser.add_argument("--tests", nargs="+", default=[], help="tests to run instead of theirs")
    given = parser.parse_args()
    words = given.words or [""]
    chosen = [
        one for one in faults() if any(w in f"{one.kind}: {one.name} {one.file}" for w in words)
    ]
    for name in HEAVY:
        importlib.import_module(name)
    survived: list[str] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        folder = Path(made)
        copied(folder)
        tests = given.tests or sorted({test for one in chosen for test in one.tests})
        if red := failing(folder, tests, planted=False):
            sys.stdout.write("red without a fault: " + ", ".join(red) + "\n")
            sys.stdout.write((folder / "output.txt").read_text()[-4000:])
            return 1
        for one in chosen:
            file = folder / one.file
            file.write_text(one.planted((ROOT / one.file).read_text()))
            began = time.monotonic()
            killed = failing(folder, given.tests or one.tests, planted=True)
            shutil.copy2(ROOT / one.file, file)
            survived += [] if killed else [one.name]
            seconds = time.monotonic() - began
            said = killed[0] if killed else "SURVIVES"
            sys.stdout.write(f"{one.kind}: {one.name} ({seconds:.1f} s): {said}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - len(survived)} of {len(chosen)} faults are killed\n")
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
