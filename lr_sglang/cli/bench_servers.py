"""The servers of a benchmark: which are up together, and who answers on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lr_sglang.bench.variants import Variant, alike
from lr_sglang.cli import capacity
from lr_sglang.cli import session as sessions
from lr_sglang.cli.display import Display
from lr_sglang.cli.run_work import SIMULATED, Watch, settings_of, warn_of_judge
from lr_sglang.config import Deployment, Runtime

if TYPE_CHECKING:
    from lr_sglang.api.runner import Runner

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
    from lr_sglang.api.runner import Runner

    found: Runners = {}
    if any(one.simulated for _, one in live):
        display.warn(SIMULATED)
    lacking: dict[str, bool] = {}
    for keys, one in live:
        watch = Watch(one, display)
        warn_of_judge(one, display)
        for variant in (wanted[name] for name in keys if name in wanted):
            plan = variant.plan
            for urgent, text in capacity.shortages(plan, [variant.mode], one, variant.concurrency):
                lacking[text] = urgent
            settings = settings_of(plan, [variant.mode], variant.asked, versions, one)
            found[variant.key] = watch, Runner(one.roles, settings, variant.concurrency)
    for text, urgent in lacking.items():
        (display.warn if urgent else display.note)(text)
    return found
