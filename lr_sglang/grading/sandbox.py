"""Code of an answer, run apart: its own process, folder and session, with limits and no network. See ``cell``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from lr_sglang.errors import SetupError

# The package is found where this one was, and is not for what runs in the cell.
CELL = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
    "from lr_sglang.grading.cell.warden import main; del sys.path[0]; main()"
)
GRACE = 10.0  # seconds for the processes around the answer's own


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: of processor time a test.
        memory, file_size: MiB, of each process and of each file.
        total: seconds, for all tests together.
        namespaces: whether the kernel is asked for walls of its own; without them the interpreter's refusals are left.
    """

    seconds: float = 10.0
    memory: int = 1024
    file_size: int = 16
    total: float = 300.0
    namespaces: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of a program. ``walls`` says what kept it apart."""

    passed: bool
    reason: str
    walls: tuple[str, ...]


class Sandbox:
    """Runs programs. Any thread may ask. A context manager: leaving it ends what is running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._closed = False

    def run(self, job: dict[str, Any], limits: Limits | None = None) -> Outcome:
        """Runs a program with its tests.

        Args:
            job: ``program``, ``tests``, and ``kind``: ``asserts`` with ``test``, ``stdio``, or ``calls`` with
                ``function``.

        Raises:
            SetupError: this machine cannot do it, or the sandbox was closed.
        """
        limits = limits or Limits()
        try:
            folder = tempfile.mkdtemp(prefix="lr-answer-")
            try:
                said = self._communicate(json.dumps({**job, **asdict(limits), "folder": folder}), folder, limits)
            finally:
                _remove(folder)
        except OSError as error:
            raise SetupError(f"code of answers cannot be run: {error}", hint="is the disk full?") from error
        if self._closed:
            raise SetupError("grading was stopped")
        if said is None:
            return Outcome(False, f"it did not end within {limits.total:g} s", ())
        try:
            verdict = json.loads(said)
            return Outcome(verdict["passed"], verdict["reason"], tuple(verdict["walls"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SetupError(
                "code of answers cannot be run on this machine: the process around it ended without a verdict",
                hint="Linux 5.3 or later is needed, with /proc, and enough memory",
                detail=said[-2000:],
            ) from error

    def close(self) -> None:
        """Ends what is running. Idempotent."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            _end(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _communicate(self, text: str, folder: str, limits: Limits) -> str | None:
        # Nothing of our own environment: it may hold keys.
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": folder, "TMPDIR": folder}
        with self._lock:
            if self._closed:
                return None
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-c", CELL],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={**env, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
            self._running.add(process)
        try:
            return process.communicate(text, timeout=limits.total + GRACE)[0]
        except subprocess.TimeoutExpired:
            return None
        finally:
            with self._lock:
                self._running.discard(process)
                _end(process)
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _remove(folder: str) -> None:
    """What an answer leaves, where it had no file system of its own, may be closed, or too deep for shutil."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)
        return
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*command, folder], stderr=subprocess.DEVNULL, check=False)


def _end(process: subprocess.Popen[str]) -> None:
    """The session goes whole; the rest goes with its namespace, or when its parent dies."""
    if process.returncode is None:  # else its number may be somebody else's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
