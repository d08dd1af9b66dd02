"""The servers of a benchmark: which are up together, who answers on them, and how their caches are emptied."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr_sglang.cli import capacity
from lr_sglang.cli import session as sessions
from lr_sglang.cli.bench_variants import Variant, alike
from lr_sglang.cli.display import Display
from lr_sglang.cli.execute import Watch
from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import LookaheadError, RuntimeDown

if TYPE_CHECKING:
    from lr_sglang.api.runner import Runner

FLUSH_SECONDS = 5.0  # a server empties its cache only when it has nothing to do

Key = tuple[str, str]  # of a variant
OpenDeployment = Sequence[tuple[list[Key], sessions.Session]]
Runners = dict[Key, tuple[Watch, "Runner"]]


@contextmanager
def up(
    sets: Sequence[tuple[Sequence[Variant], Deployment]],
    numbers: Sequence[int],
    logs: Path,
    timeout: float,
    display: Display,
) -> Iterator[OpenDeployment]:
    """The sets that are to be up together; a server that two of them would start alike is started once.

    Raises:
        LookaheadError: as ``session.session``.
    """
    with ExitStack() as stack:
        known: dict[str, Runtime] = {}
        lean = all(variant.plan.lean() for variants, _ in sets for variant in variants)
        live = []
        for number in numbers:
            variants, deployment = sets[number]
            wanted = deployment.replace(
                runtimes={role: known.get(alike(role, one), one) for role, one in deployment.runtimes.items()}
            )
            with display.starting() as progress:
                opened = sessions.session(wanted, logs / f"set-{number + 1}", progress, timeout, lean=lean)
                one = stack.enter_context(opened)
            _remember(known, deployment, one)
            live.append(([variant.key for variant in variants], one))
        yield live


def _remember(known: dict[str, Runtime], deployment: Deployment, live: sessions.Session) -> None:
    for role, runtime in deployment.runtimes.items():
        if live.fleet is not None and role in live.fleet.servers:
            known[alike(role, runtime)] = Runtime(
                url=live.fleet.urls[role],
                tokenizer=live.fleet.tokenizers[role],
                timeout=runtime.timeout,
                context_length=runtime.context_length,
            )


def runners_of(
    live: OpenDeployment, wanted: Mapping[Key, Variant], versions: dict[str, str], display: Display
) -> Runners:
    """Who makes the samples of each variant, and who watches their servers."""
    from lr_sglang.api.runner import Runner, Settings

    class Repeated(Runner):
        """Is told to run again and again: what its verifier has loaded and learnt is kept."""

        def _verifier(self, mode: Any) -> Any:
            if not hasattr(self, "_kept"):
                self._kept = super()._verifier(mode)
            return self._kept

    found: Runners = {}
    simulated = any(backend.simulated for _, one in live for backend in one.roles.values())
    if simulated:
        display.warn("these runtimes are simulated: the figures say nothing of models")
    lacking: dict[str, bool] = {}
    for keys, one in live:
        watch = Watch(one, display)
        for variant in (wanted[name] for name in keys if name in wanted):
            plan = variant.plan
            for urgent, text in capacity.shortages(plan, [variant.mode], one, variant.concurrency):
                lacking[text] = urgent
            settings = Settings(
                lookahead=plan.lookahead,
                sampling=plan.sampling,
                limits=plan.limits,
                judge_prompt=plan.judge_prompt,
                program=plan.program,
                suffix=variant.asked["prompt_suffix"],
                config={variant.mode: variant.config},
                versions=versions | ({"runtimes": "simulated"} if simulated else {}),
            )
            found[variant.key] = watch, Repeated(one.roles, settings, variant.concurrency)
    for text, urgent in lacking.items():
        (display.warn if urgent else display.note)(text)
    return found


class Caches:
    """Empties the caches of runtimes, so that no variant finds what another one left there."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.kept: set[str] = set()  # roles that refuse

    def empty(self, roles: Mapping[str, Any]) -> None:
        """Those of the runtimes that the next variant uses.

        Raises:
            RuntimeDown: the target is gone.
        """
        for role, backend in roles.items():
            try:
                self._one(role, backend)
            except RuntimeDown:
                if role == "target":
                    raise  # without the others answers go on
            except LookaheadError as error:
                if role not in self.kept:
                    self.kept.add(role)
                    self.display.warn(f"{role}: its cache is not emptied between modes ({error.message})")

    def _one(self, role: str, backend: Any) -> None:
        deadline = time.monotonic() + (0.0 if role in self.kept else FLUSH_SECONDS)
        while True:
            try:
                backend.flush_cache()
                return
            except RuntimeDown:
                raise
            except LookaheadError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
