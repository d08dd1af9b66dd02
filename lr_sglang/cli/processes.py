"""An endpoint before its runtimes: in this process, or in several that this one starts and keeps up."""

from __future__ import annotations

import dataclasses
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lr_sglang.cli import session
from lr_sglang.cli.session import Session
from lr_sglang.cli.starting import Starting
from lr_sglang.config import Deployment
from lr_sglang.runtimes import Fleet, launch
from lr_sglang.serve.keys import Keys
from lr_sglang.serve.logs import set_up
from lr_sglang.serve.settings import Service


class Ending(Protocol):
    """What answers, and can be told to end."""

    def end(self) -> None:
        """As a signal does, from any thread."""


@dataclass(frozen=True)
class Endpoint:
    """What is to be served, and where.

    Attributes:
        processes: that answer.
        ready: called once it answers.
    """

    deployment: Deployment
    service: Service
    keys: Keys
    sock: socket.socket
    logs: Path
    timeout: float
    processes: int
    log_level: str
    lean: bool
    progress: Starting
    ready: Callable[[Session], None]

    @contextmanager
    def up(self) -> Iterator[tuple[Fleet | None, Ending, Callable[[], Any]]]:
        """The servers behind it, what answers, and the call that serves until ``end``.

        Raises:
            LookaheadError: as ``runtimes.launch``.
        """
        with self._several() if self.processes > 1 else self._alone() as up:
            yield up

    @contextmanager
    def _alone(self) -> Iterator[tuple[Fleet | None, Ending, Callable[[], Any]]]:
        with session.session(self.deployment, self.logs, self.progress, self.timeout, lean=self.lean) as live:
            from lr_sglang.serve.app import create_app
            from lr_sglang.serve.server import EndpointServer

            set_up(self.log_level)
            app = create_app(live.roles, self.service, self.keys)
            server = EndpointServer(app, self.service, lambda: self.ready(live))
            yield live.fleet, server, lambda: server.run(sockets=[self.sock])

    @contextmanager
    def _several(self) -> Iterator[tuple[Fleet | None, Ending, Callable[[], Any]]]:
        from lr_sglang.serve.processes.supervisor import Supervisor, Work, warm_up

        warm_up(self.lean)
        with (
            launch(self.deployment, self.logs, self.progress, self.timeout) as fleet,
            session.logs_told(fleet),
            tempfile.TemporaryDirectory(prefix="lr-sglang-serve-", ignore_cleanup_errors=True) as folder,
        ):
            set_up(self.log_level)
            addresses = dataclasses.replace(fleet, servers={})
            work = Work(self.service, self.keys, addresses, Path(folder), self.processes, self.log_level, self.lean)
            server = Supervisor(work, self.sock, lambda found: self.ready(Session(found, fleet)))
            yield fleet, server, server.run
