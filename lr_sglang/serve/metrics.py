"""The Prometheus metrics of an endpoint. Every name begins with ``lr_sglang_``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from lr_sglang import __version__
from lr_sglang.errors import SetupError
from lr_sglang.sglang_api import release
from lr_sglang.steps.trace import Trace

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STEP = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# How the values of a gauge in the live processes of an endpoint become one.
_Mode = Literal["livesum", "livemin", "livemax"]
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client keeps what several processes count
_FILES = ("counter", "histogram", *(f"gauge_{mode}" for mode in get_args(_Mode)))
_FILE_BYTES = 2**16


def count_together(folder: Path, number: int) -> None:
    """Metrics that this process makes from now on are counted with those of other processes.

    Args:
        folder: the same for all.
        number: of this process; a process that replaces it continues its counts.

    Raises:
        SetupError: the disk is full.
    """
    try:
        for file in (folder / f"{name}_{number}.db" for name in _FILES):
            # prometheus_client would map one of no blocks: a full disk would end the process
            if not file.exists() or file.stat().st_size < _FILE_BYTES:
                file.write_bytes(bytes(_FILE_BYTES))
    except OSError as error:
        hint = "set TMPDIR to a directory with room"
        raise SetupError(
            f"{folder}: metrics cannot be kept there: {error.strerror}", hint=hint
        ) from error
    os.environ[_FOLDER] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one endpoint, in a registry of their own.

    Args:
        together: the folder of ``count_together``; None for a single process.
    """

    def __init__(self, together: Path | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self._exposed = registry if together is None else CollectorRegistry()
        if together is not None:
            self._exposed.register(_Together(together))
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"lr_sglang_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str, *labels: str, mode: _Mode = "livesum") -> Gauge:
            return Gauge(
                f"lr_sglang_{name}", about, labels, registry=registry, multiprocess_mode=mode
            )

        installed = release.version()
        tested = str(release.is_tested(installed)).lower()
        which = ("version", "sglang", "sglang_tested")
        about = gauge(
            "build_info", "Always 1: which lr-sglang and SGLang this is", *which, mode="livemax"
        )
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
        self.connections = gauge("connections", "Connections of clients that are open")
        self.hung_up = counter(
            "connections_closed", "Connections of clients that were late or too many", "reason"
        )
        self.degraded = counter(
            "degraded_requests", "Answers that went without draft or judge for a while"
        )
        self.degraded_seconds = gauge(
            "degraded_seconds",
            "Seconds that a runtime has been down, in all",
            "role",
            mode="livemax",
        )
        self.tokens = counter(
            "tokens", "Tokens: delivered, drafted, wasted and (of prompts) cached", "kind"
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
            mode="livemax",
        )
        self.alpha = gauge("alpha", "Step acceptance rate so far")
        self.running = gauge("answers_running", "Answers that are being made")
        self.waiting = gauge("requests_waiting", "Requests in the queue")
        self.loop_late = gauge(
            "event_loop_late_seconds",
            "Delay of the event loop's timers, 99th percentile",
            mode="livemax",
        )
        self.up = gauge("runtime_up", "Whether a role's runtime is well", "role", mode="livemin")
        self.branches = gauge("branches_running", "Requests in flight at a role's runtime", "role")
        self.first_step = Histogram(
            "lr_sglang_time_to_first_step_seconds",
            "From the request to its first step, the queue included",
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

    def watch(self, gauge: Gauge, value: Callable[[], float], **labels: str) -> None:
        """Has ``look`` set the gauge to what the function returns, also before this process exposes
        its metrics.
        """
        self._watched.append((gauge.labels(**labels) if labels else gauge, value))

    def look(self) -> None:
        """Brings the gauges up to date, for other processes to expose."""
        for gauge, value in self._watched:
            gauge.set(value())

    def ended(self, trace: Trace, delivered: int, costs: Mapping[str, int], degraded: bool) -> None:
        """Counts an answer that has ended, with an error or without. Called in the event loop."""
        for kind, tokens in (("delivered", delivered), *costs.items()):
            self.tokens.labels(kind).inc(tokens)
        for step in trace.steps:
            self.steps.labels(step.outcome).inc()
        self._accepted, self._judged = self._accepted + trace.accepted, self._judged + trace.judged
        self.accepted.inc(trace.accepted)
        self.judged.inc(trace.judged)
        if self._judged:
            self.alpha.set(self._accepted / self._judged)
        if degraded:
            self.degraded.inc()

    def exposed(self) -> bytes:
        self.look()
        return generate_latest(self._exposed)


class _Together(Collector):
    """The metrics of all processes together; alpha is computed from the sums over all of them."""

    def __init__(self, folder: Path) -> None:
        self._inner = MultiProcessCollector(None, str(folder))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterable[Metric]:
        found = {metric.name: metric for metric in self._inner.collect()}  # type: ignore[no-untyped-call]
        accepted, judged = (
            sum(sample.value for sample in found[name].samples)
            for name in ("lr_sglang_steps_accepted", "lr_sglang_steps_judged")
        )
        alpha = found["lr_sglang_alpha"]
        alpha.samples = [
            sample._replace(value=accepted / judged if judged else 0.0) for sample in alpha.samples
        ]
        return found.values()
