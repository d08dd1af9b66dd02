"""One SGLang server as a child process: start, wait until it is ready, watch, stop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lr_sglang.errors import Cancelled, LaunchError, LookaheadError, RuntimeDown, RuntimeTimeout
from lr_sglang.runtimes.launching import diagnosis, probe
from lr_sglang.runtimes.launching.ports import ANY, Reservation
from lr_sglang.runtimes.placement import models

GUARDIAN = Path(__file__).with_name("guardian.py")
POLL = 0.25
DEATH_LIMIT = 5.0  # seconds from a broken connection until the process that broke it has ended
# seconds in which the guardian must have ended everything; on a quiet machine it needs 1.3
STOP_LIMIT = 20.0
LOADING_MARK = "Load weight begin"  # in SGLang's log

Stage = Literal["starting", "loading", "warming", "ready", "attached"]


@dataclass(frozen=True)
class ProgressEvent:
    """A runtime has reached a stage, ``seconds`` after the launch began."""

    role: str
    stage: Stage
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
        log: file for its output, written anew.
        env: variables on top of our own environment.
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
        self.role, self.argv, self.url, self.log, self.model = role, tuple(argv), url, log, model
        self.env, self.fetched, self._meeting, self.sampled = dict(env or {}), 0.0, meeting, sampled
        self._kept: Reservation | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._pipe, self._stopped, self._lock = -1, False, threading.Lock()

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
            argv = [sys.executable, "-I", "-S", str(GUARDIAN), str(reading), *self.argv, *meeting]
            try:
                self.log.parent.mkdir(parents=True, exist_ok=True)
                with self.log.open("wb") as log:
                    self._guardian = subprocess.Popen(
                        argv,
                        env={**os.environ, **self.env},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        pass_fds=(reading,),
                        start_new_session=True,
                    )
            except OSError as error:
                os.close(writing)
                raise LaunchError(
                    f"the server cannot be started: {error}", role=self.role
                ) from error
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
            return self._guardian.poll() if self._guardian else None

    def alive(self) -> bool:
        """True from ``start`` until the process ends, by itself or by ``stop``."""
        return self._guardian is not None and self.status is None

    def tail(self, lines: int = 30) -> str:
        """The last lines of its log."""
        return diagnosis.tail(self.log, lines)

    def wait_ready(
        self,
        timeout: float,
        *,
        stage: Callable[[Stage], None] = lambda stage: None,
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
            probe.warm(self.url, timeout=left, role=self.role, sampled=self.sampled)
        except (LaunchError, Cancelled):
            raise
        except RuntimeTimeout:
            raise self._late(timeout) from None
        except LookaheadError as error:
            gone = time.monotonic() + (DEATH_LIMIT if isinstance(error, RuntimeDown) else 0.0)
            while self.alive() and time.monotonic() < gone:
                time.sleep(POLL)
            if not self.alive():
                raise self.died(" while starting") from error
            why = f"the first request failed: {error.message}"
            raise LaunchError(why, role=self.role, detail=self.tail()) from error
        finally:
            self._give_up_port()
        stage("ready")
        return info

    def _answers(
        self, timeout: float, stage: Callable[[Stage], None], cancelled: threading.Event | None
    ) -> tuple[probe.ModelInfo, float]:
        """Waits until the server reports its model; returns that and the deadline for ``ready``."""
        now = time.monotonic()
        limit, loading = now + timeout, False
        while True:
            before, now = now, time.monotonic()
            if models.being_fetched(self.model):
                limit, self.fetched = limit + now - before, self.fetched + now - before
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("the launch was given up", role=self.role)
            if not self.alive():
                raise self.died(" while starting")
            if now > limit:
                raise self._late(timeout)
            if not loading and LOADING_MARK in self.tail(2000):
                loading = True
                stage("loading")
            # While SGLang imports and loads, it does not listen: the connection is refused at once.
            with contextlib.suppress(LookaheadError):
                return probe.model_info(self.url, timeout=5.0, role=self.role), limit
            time.sleep(POLL)

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

    def _give_up_port(self) -> None:
        if self._kept is not None:
            self._kept.release()

    def died(self, when: str = "") -> LaunchError:
        """The error for a server that has ended, from its exit status and its log."""
        text = self.tail(400)
        message = f"the server ended with status {self.status}{when}"
        if why := diagnosis.cause(text):
            message += f": {why}"
        hint = diagnosis.hint(text, self.status) or f"its log: {self.log}"
        return LaunchError(message, role=self.role, hint=hint, detail=self.tail())

    def _late(self, timeout: float) -> LaunchError:
        hint = "large models need longer: raise the launch timeout; its log shows how far it came"
        return LaunchError(
            f"the server is not ready after {timeout:g} s",
            role=self.role,
            hint=hint,
            detail=self.tail(),
        )


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
        psutil.wait_procs(left, timeout=POLL / 2)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
