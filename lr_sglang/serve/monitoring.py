"""What an operator sees of an endpoint: its log, one JSON object a line with request ids and
nothing that a user wrote, and its Prometheus metrics, whose names all begin with ``lr_sglang_``.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

from lr_sglang import __version__
from lr_sglang.sglang_api import release
from lr_sglang.steps.trace import Trace

LOGGER = logging.getLogger("lr_sglang.serve")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STEP = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class JsonLines(logging.Formatter):
    """A record as one line."""

    def format(self, record: logging.LogRecord) -> str:
        when = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z"
        )
        line = {
            "time": when,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        return json.dumps(line | getattr(record, "about", {}), ensure_ascii=True, default=str)


def log(event: str, level: int = logging.INFO, **about: Any) -> None:
    """Writes an event to the log."""
    LOGGER.log(level, event, extra={"about": about})


def where(error: BaseException) -> str:
    """The line that raised an error; its message could hold a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""


def set_up_log(level: str = "info", stream: TextIO | None = None) -> None:
    """Sends the endpoint's log, and uvicorn's warnings, to a stream (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name, least in (("lr_sglang.serve", level), ("uvicorn", "warning")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(least.upper())


@dataclass
class RequestLine:
    """What the log says of one request; None where it has nothing to say.

    Attributes:
        why: reasons for the mode, if it is not the one that was asked for.
        first_seconds: until the first chunk of a stream.
        answer_seconds: without the queue.
        causes: of failures of draft and judge, by role.
        error: in one word; ``param``: the field of the request that is wrong; ``cause``: the kind
            of error behind it; ``where``: the line that raised it.
    """

    id: str
    mode: str | None = None
    stream: bool | None = None
    why: Sequence[str] | None = None
    first_seconds: float | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    steps: int | None = None
    alpha: float | None = None
    degraded: bool | None = None
    answer_seconds: float | None = None
    causes: Mapping[str, str] | None = None
    error: str | None = None
    param: str | None = None
    cause: str | None = None
    where: str | None = None

    def fields(self) -> dict[str, Any]:
        """Those that it has."""
        return {name: value for name, value in vars(self).items() if value is not None}


def request_line(scope: Scope) -> RequestLine:
    """The line of a request, which is in its scope from the first middleware on."""
    line: RequestLine = scope["state"]["line"]
    return line


class Metrics:
    """The metrics of one endpoint, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"lr_sglang_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"lr_sglang_{name}", about, labels, registry=registry)

        installed = release.version()
        tested = str(release.is_tested(installed)).lower()
        which = ("version", "sglang", "sglang_tested")
        about = gauge("build_info", "Always 1: which lr-sglang and SGLang this is", *which)
        about.labels(__version__, installed, tested).set(1)
        self.requests = counter(
            "requests", "Requests, by route, status and mode", "route", "status", "mode"
        )
        self.refused = counter(
            "rejected", "Requests that ended with an error, also in mid-stream", "reason"
        )
        self.disconnects = counter(
            "disconnects", "Clients that hung up before their answer was complete"
        )
        self.degraded = counter(
            "degraded_requests", "Answers that went without draft or judge for a while"
        )
        self.degraded_seconds = gauge(
            "degraded_seconds",
            "Seconds that a runtime has been down, in all",
            "role",
        )
        self.tokens = counter(
            "tokens",
            "Tokens: delivered, drafted, wasted, (of prompts) cached; judged, and the target's own",
            "kind",
        )
        self.steps = counter("steps", "Steps of answers, by outcome", "outcome")
        self.judged = counter(
            "steps_judged", "Steps for which a draft was compared, or came too late"
        )
        self.accepted = counter(
            "steps_accepted", "Steps that are the draft's: alpha is this over steps_judged"
        )
        self.false_accepts = gauge(
            "false_accepts",
            "Share of differing steps that the judge accepts, lower bound",
        )
        self.alpha = gauge("alpha", "Step acceptance rate so far")
        self.running = gauge("answers_running", "Answers that are being made")
        self.waiting = gauge("requests_waiting", "Requests in the queue")
        self.loop_late = gauge(
            "event_loop_late_seconds",
            "Delay of the event loop's timers, 99th percentile",
        )
        self.up = gauge("runtime_up", "Whether a role's runtime is well", "role")
        self.doubts = gauge(
            "runtime_doubts",
            "1 where a runtime reuses little, takes no aborts or ignores seeds",
            "role",
            "kind",
        )
        self.branches = gauge("branches_running", "Requests in flight at a role's runtime", "role")
        self.first_step = Histogram(
            "lr_sglang_time_to_first_step_seconds",
            "From the request to its first step, or token of the target alone, the queue included",
            buckets=_SECONDS,
            registry=registry,
        )
        self.step = Histogram(
            "lr_sglang_step_seconds", "Time between two steps", buckets=_STEP, registry=registry
        )
        self.seconds = Histogram(
            "lr_sglang_answer_seconds", "Time of answers", buckets=_SECONDS, registry=registry
        )
        self._accepted = self._judged = 0

    def ended(self, trace: Trace, delivered: int, costs: Mapping[str, int], degraded: bool) -> None:
        """Counts an answer that has ended, with an error or without. Called in the event loop."""
        for kind, tokens in (("delivered", delivered), *costs.items()):
            self.tokens.labels(kind).inc(tokens)
        for step in trace.steps:
            self.steps.labels(step.outcome).inc()
        self._accepted += trace.accepted
        self._judged += trace.judged
        self.accepted.inc(trace.accepted)
        self.judged.inc(trace.judged)
        if self._judged:
            self.alpha.set(self._accepted / self._judged)
        if degraded:
            self.degraded.inc()

    def exposed(self) -> bytes:
        """All metrics in the format of Prometheus."""
        return generate_latest(self.registry)
