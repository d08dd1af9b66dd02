"""One SGLang server as a child process: the port that is kept for it, start, wait until it is
ready, watch, stop; and why it died, from its log: the error and a hint for the person who started
it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lr_sglang.errors import (
    Cancelled,
    LaunchError,
    LookaheadError,
    RuntimeDown,
    RuntimeTimeout,
    reason_of,
)
from lr_sglang.runtimes.launching import probe
from lr_sglang.runtimes.placement import models
from lr_sglang.sglang_api import release

TAIL_BYTES = 1 << 18

KILLED = (
    "the system killed it, most likely for want of memory: take a smaller model or fewer runtimes"
)
# The first pattern that is found in the log gives the hint.
HINTS: tuple[tuple[str, str], ...] = (
    (
        r"error: unrecognized arguments|error: argument |invalid choice|Unknown speculative",
        "the installed SGLang refuses a flag: look at 'extra', 'dtype', 'quantization' and "
        "'token_layer' of this runtime, and at: python -m sglang.launch_server --help",
    ),
    (
        r"address already in use|[Pp]ort is already in use|is used by a process already",
        "another process has the port: give a free 'port', or leave it out and one is chosen",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|Not enough memory|Cannot allocate memory",
        "not enough memory: change 'memory_fraction', give the roles different 'gpus', or take "
        "a smaller model",
    ),
    (
        r"gated repo|401 Client Error|403 Client Error|Access to model .* is restricted"
        r"|is not a valid model identifier|Repository ?Not ?Found|HFValidationError"
        r"|404 Client Error|Couldn't connect to|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|Max retries exceeded|ConnectionError: ",
        "no such model, or the hub is out of reach, or refuses it (accept its terms there and set "
        "HF_TOKEN): check the name, or give the path of a directory",
    ),
    (
        r"does not appear to have a file named|Unrecognized model in|Should have a `model_type` key"
        r"|Cannot find any model weights|no .*safetensors|not a valid JSON file|JSONDecodeError",
        "the directory is not a whole model: it needs config.json, the tokenizer's files and "
        "*.safetensors",
    ),
    (
        r"No accelerator|Torch not compiled with CUDA|no NVIDIA driver|CUDA is not available"
        r"|No CUDA GPUs|invalid device ordinal",
        "no such GPU is visible: set device = 'cpu', or check 'gpus' and lr-sglang doctor",
    ),
    (
        r"greater than the derived context_length",
        "give a 'context_length' that the model has, or leave it out",
    ),
    (
        r"has no CPU version in lr-sglang",
        "this model or option needs a GPU; on a CPU use dense models (Qwen3, Llama) in float32",
    ),
    (
        r"fatal error: .*: No such file|cc1plus|[Nn]inja|directory: '(?:nvcc|c\+\+)'"
        r"|Could not find (?:nvcc|CUDA installation)|CUDA_HOME .*not set|cannot find -lcudart",
        "SGLang compiles parts of itself when it starts: lr-sglang doctor says what is missing",
    ),
    # its scheduler only, while the server started
    (r"\(exit code: -9\)", KILLED),
)

_ERROR = re.compile(r"^(?:\S+ )?(?:[\w.]*(?:Error|Exception|Exit)\b: ?.+|\S+: error: .+)$")
# What follows from another error, if there is one.
_NOISE = re.compile(r"Rank 0 scheduler died|Initialization failed")
# Lines of a healthy start that would match a pattern: models that need other packages, the list of
# all settings.
_HARMLESS = re.compile(r"Ignore import error when|server_args=|No CUDA runtime is found|Warning: ")


def tail_of(log: Path, lines: int = 30) -> str:
    """The last lines of a log; all states of a progress bar count as one line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    kept = [line.rsplit("\r", 1)[-1].rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join([line for line in kept if line][-lines:])


def cause(log_text: str) -> str:
    """The last line that names an error, or an empty string."""
    errors = [line for line in log_text.splitlines() if _ERROR.match(line)]
    errors = [line for line in errors if not _NOISE.search(line)] or errors
    return errors[-1][:300] if errors else ""


def advice(log_text: str, status: int | None) -> str:
    """Advice for the user from the log or the exit status; empty if there is none."""
    why = cause(log_text)
    told = "\n".join(line for line in log_text.splitlines() if not _HARMLESS.search(line))
    for text in (why, told):
        for pattern, told_hint in HINTS:
            if re.search(pattern, text):
                return told_hint
    # 137 without an error in the log: SGLang, which kills itself by the same signal, would have
    # logged one.
    if status == 137 and not why:
        return KILLED
    found = release.version()
    return (
        ""
        if release.is_tested(found)
        else f"SGLang {found} is not tested; {release.release_advice()}"
    )


HOST = "127.0.0.1"
ANY = "0.0.0.0"  # all addresses, as a server's own processes use one of these to meet


class Reservation:
    """Reserves a port for the many seconds that a server takes until it listens.

    A bound socket that does not listen keeps the port from the kernel's own choices and from every
    program that binds plainly. With SO_REUSEADDR set on both sides Linux still lets the server bind
    and listen beside it. It would let another reservation bind as well, were it not for an abstract
    Unix socket name, which only one socket can have.

    Args:
        port: the wanted one, or 0 for any free one.
        role: for the error.

    Raises:
        LaunchError: the port is in use.
    """

    def __init__(self, port: int = 0, role: str | None = None, host: str = HOST) -> None:
        self._socket, self._name = socket.socket(), socket.socket(socket.AF_UNIX)
        # A free port is bound without the option at first, so that two launchers never get the same
        # one. A given port is bound with it, because connections of an earlier server may linger
        # there.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(bool(port)))
        try:
            self._socket.bind((host, port))
            self.port: int = self._socket.getsockname()[1]
            self._name.bind(f"\0lr-sglang {host}:{self.port}")
        except OSError as error:
            self.release()
            hint = "give another 'port', or leave it out and a free one is chosen"
            raise LaunchError(
                f"port {port} of {host} cannot be used: {error.strerror}", role=role, hint=hint
            ) from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def release(self) -> None:
        """Releases the port; idempotent."""
        self._socket.close()
        self._name.close()


GUARDIAN = Path(__file__).with_name("guardian.py")
START_POLL = 0.25
DEATH_LIMIT = 5.0  # seconds from a broken connection until the process that broke it has ended
# seconds in which the guardian must have ended everything; on a quiet machine it needs 1.3
STOP_LIMIT = 20.0
LOADING_MARK = "Load weight begin"  # in SGLang's log

StartStage = Literal["starting", "loading", "warming", "ready", "attached", "importing"]


@dataclass(frozen=True)
class ProgressEvent:
    """A runtime, or the import of SGLang, has reached a stage, ``seconds`` after the launch
    began.
    """

    role: str
    stage: StartStage
    seconds: float


class Server:
    """A server process with everything that descends from it.

    It runs under a guardian (see ``guardian.py``) in a session of its own, so that Ctrl-C in the
    terminal reaches us and not the server, and so that none of its processes outlives this one,
    however this one ends.

    Args:
        role: for errors and progress.
        argv: the command.
        url: of the server once it is ready.
        log: file for its output, written anew; that of the start before has ".1" behind its name.
        env: variables on top of our own environment. An empty TMPDIR asks for a temporary folder
            that is removed with the server: SGLang leaves sockets there.
        meeting: the flag for the port at which its processes meet. We reserve one from each start
            until it is ready, because a port that it chooses itself can be taken before it listens.
            Empty: it chooses.
        model: its name on the hub, if any; the timeout for ``ready`` leaves out the time of its
            download.
        sampled: the deployment's sampling, for the warm-up request.

    Attributes:
        fetched: seconds of the download.
    """

    def __init__(
        self,
        role: str,
        argv: Sequence[str],
        url: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        meeting: str = "",
        model: str = "",
        sampled: Mapping[str, Any] | None = None,
    ) -> None:
        self.role = role
        self.argv = tuple(argv)
        self.url = url
        self.log = log
        self.model = model
        self.env = dict(env or {})
        self.fetched = 0.0
        self._meeting = meeting
        self.sampled = sampled
        self._kept: Reservation | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._scratch = ""
        self._stopped = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the process.

        Raises:
            LaunchError: the log cannot be written, no port is left, or the process cannot be made.
            Cancelled: ``stop`` came first.
        """
        with self._lock:
            if self._stopped:
                raise Cancelled("the server was stopped before it started", role=self.role)
            if self._meeting:
                self._kept = Reservation(role=self.role, host=ANY)
            meeting = (self._meeting, str(self._kept.port)) if self._kept else ()
            reading, writing = os.pipe()
            # -I and -S: the guardian needs nothing but the standard library and should cost
            # nothing.
            guardian = [sys.executable, "-I", "-S", str(GUARDIAN), str(reading)]
            try:
                env = {**os.environ, **self.env}
                if env.get("TMPDIR") == "":
                    env["TMPDIR"] = self._scratch = tempfile.mkdtemp(prefix="lr-sglang-")
                self.log.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    self.log.replace(f"{self.log}.1")  # an error may have named it
                with self.log.open("wb") as log:
                    self._guardian = subprocess.Popen(
                        [*guardian, self._scratch, *self.argv, *meeting],
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        pass_fds=(reading,),
                        start_new_session=True,
                    )
            except OSError as error:
                os.close(writing)
                shutil.rmtree(self._scratch, ignore_errors=True)
                why = f"the server cannot be started: {reason_of(error)}"
                where = f": {error.filename}" if error.filename else ""
                raise LaunchError(why + where, role=self.role) from error
            finally:
                os.close(reading)
            self._pipe = writing

    @property
    def pid(self) -> int | None:
        """The guardian's process id, which is the id of the server's process group and
        session too.
        """
        return self._guardian.pid if self._guardian else None

    @property
    def status(self) -> int | None:
        """Exit status (128 + N after signal N); None while it runs or before it was started."""
        with self._lock:
            status = self._guardian.poll() if self._guardian else None
            return 128 - status if status is not None and status < 0 else status

    def alive(self) -> bool:
        """True from ``start`` until the process ends, by itself or by ``stop``."""
        return self._guardian is not None and self.status is None

    def wait_ready(
        self,
        timeout: float,
        *,
        stage: Callable[[StartStage], None] = lambda stage: None,
        cancelled: threading.Event | None = None,
    ) -> probe.ModelInfo:
        """Waits until it answers, then warms it with a greedy and a sampled request.

        Args:
            timeout: seconds for all of it, without those of a download.
            stage: called with ``loading``, ``warming`` and ``ready`` as they are reached.
            cancelled: set by another thread to give up early.

        Raises:
            LaunchError: it died (``detail`` has the tail of its log), or is not ready in time.
            Cancelled: ``cancelled`` was set.
        """
        try:
            info, limit = self._answers(timeout, stage, cancelled)
            stage("warming")
            left = max(1.0, limit - time.monotonic())
            probe.warm(
                self.url,
                timeout=left,
                role=self.role,
                sampled=self.sampled,
                generates=info.generates,
            )
        except (LaunchError, Cancelled):
            raise
        except RuntimeTimeout:
            raise self._late(timeout) from None
        except LookaheadError as error:
            gone = time.monotonic() + (DEATH_LIMIT if isinstance(error, RuntimeDown) else 0.0)
            while self.alive() and time.monotonic() < gone:
                time.sleep(START_POLL)
            if not self.alive():
                raise self.died(" while starting") from error
            raise self._failure(f"the first request failed: {error.message}") from error
        finally:
            self._give_up_port()
        stage("ready")
        return info

    def _answers(
        self, timeout: float, stage: Callable[[StartStage], None], cancelled: threading.Event | None
    ) -> tuple[probe.ModelInfo, float]:
        """Waits until the server reports its model, and adds up the time of its download; returns
        the model and the deadline for ``ready``.
        """
        now = time.monotonic()
        limit = now + timeout
        loading = False
        while True:
            passed = time.monotonic() - now
            now += passed
            if models.being_fetched(self.model):
                limit += passed
                self.fetched += passed
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("the launch was given up", role=self.role)
            if not self.alive():
                raise self.died(" while starting")
            if now > limit:
                raise self._late(timeout)
            if not loading and LOADING_MARK in tail_of(self.log, 2000):
                loading = True
                stage("loading")
            # While SGLang imports and loads, it does not listen: the connection is refused at once.
            with contextlib.suppress(LookaheadError):
                return probe.model_info(self.url, timeout=5.0, role=self.role), limit
            time.sleep(START_POLL)

    def ask_to_stop(self) -> None:
        """Begins to end the server and returns at once; ``stop`` waits for it."""
        with self._lock:
            self._stopped = True
            self._give_up_port()
            if self._pipe >= 0:
                pipe, self._pipe = self._pipe, -1  # a signal may interrupt this: never close twice
                os.close(pipe)  # the guardian waits for this
                if self._guardian is not None:
                    # also, in case a forked copy of us has the pipe open
                    self._guardian.terminate()

    def stop(self) -> None:
        """Ends the server and all its descendants; returns when they are gone. Idempotent, from any
        thread.
        """
        self.ask_to_stop()
        with self._lock:
            if self._guardian is None:
                return
            try:
                self._guardian.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                _kill_tree(self._guardian.pid)
                self._guardian.wait()
            shutil.rmtree(self._scratch, ignore_errors=True)  # a killed guardian leaves it

    def _give_up_port(self) -> None:
        if self._kept is not None:
            self._kept.release()

    def died(self, when: str = "") -> LaunchError:
        """The error for a server that has ended, from its exit status and its log."""
        text = tail_of(self.log, 400)
        message = f"the server ended with status {self.status}{when}"
        if why := cause(text):
            message += f": {why}"
        return self._failure(message, advice(text, self.status))

    def _late(self, timeout: float) -> LaunchError:
        hint = "large models need longer: raise the launch timeout"
        return self._failure(f"the server is not ready after {timeout:g} s", hint)

    def _failure(self, message: str, hint: str = "") -> LaunchError:
        """The error with the end of the log and the log's name."""
        hint = "; ".join(filter(None, (hint, f"its log: {self.log}")))
        return LaunchError(message, role=self.role, hint=hint, detail=tail_of(self.log))


def _kill_tree(pid: int) -> None:
    """Kills all descendants of a guardian, then the guardian, which must live until then to adopt
    their orphans.
    """
    import psutil  # type: ignore[import-untyped]  # SGLang brings it

    def below() -> list[Any]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(pid).children(recursive=True)
            return [
                one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE
            ]
        return []

    while left := below():
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, timeout=START_POLL / 2)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
