"""The variants that a benchmark compares: a mode, how it is set, and which servers that takes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lr_sglang.api.configuration import Plan, check
from lr_sglang.bench import fair as fairness
from lr_sglang.bench import sweeps
from lr_sglang.config import Deployment, Runtime, TokenLayer
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES
from lr_sglang.runtimes.launching import token_layer

GREEDY = "greedy"
PLAIN = "sampled"


@dataclass(frozen=True)
class Variant:
    """One way to answer.

    Attributes:
        folder: of its records, in that of the benchmark; with the mode it tells variants apart.
        plan: as it is set.
        asked: the task and what is appended to its questions, and fairness if there is any; part of the configuration.
    """

    folder: str
    mode: str
    task: str
    concurrency: int
    plan: Plan
    asked: dict[str, Any]

    @property
    def name(self) -> str:
        """For people."""
        return self.mode if self.folder == PLAIN else f"{self.folder} {self.mode}"

    @property
    def key(self) -> tuple[str, str]:
        """Tells variants apart."""
        return self.folder, self.mode

    @property
    def config(self) -> dict[str, Any]:
        """What its records say about how they were made."""
        return self.plan.config(self.mode, **self.asked)

    def runtimes(self) -> dict[str, Runtime]:
        """All runtimes of the deployment as this variant needs them."""
        layered = self.plan.layered(self.mode)
        return {
            role: one if layered or one.url else one.replace(token_layer=TokenLayer())
            for role, one in self.plan.deployment.runtimes.items()
        }


@dataclass(frozen=True)
class Setting:
    """What all variants of a benchmark have in common.

    Attributes:
        modes: as they were asked for.
        points: of the sweeps.
        concurrency: answers at a time, one number or several.
        tasks: by name, what is appended to the questions.
        oracle: the verifier that a share stands for in a sweep of alpha.
        fair: how modes without lookahead get its GPUs; empty for not.
        layered: whether the servers run already and have a token layer, so that there is no plain decoding on them.
    """

    plan: Plan
    modes: tuple[str, ...]
    points: tuple[sweeps.Point, ...] = ({},)
    concurrency: tuple[int, ...] = (1,)
    tasks: dict[str, str] = dataclasses.field(default_factory=dict)
    oracle: str = "random"
    fair: str = ""
    layered: bool = False


def variants(setting: Setting) -> list[Variant]:
    """Each of them once, even if several points come to the same.

    Raises:
        ConfigError: a value that cannot be, or a mode that lacks a role.
    """
    found: dict[tuple[str, str], Variant] = {}
    for task, suffix in setting.tasks.items():
        for number in setting.concurrency:
            for point in setting.points:
                for mode, greedy in _modes(setting):
                    one = _variant(setting, task, suffix, point, number, mode, greedy)
                    if found.setdefault(one.key, one).config != one.config:
                        raise ConfigError(f"two settings would have the folder {one.folder}", hint="bench them apart")
    return list(found.values())


def _modes(setting: Setting) -> list[tuple[str, bool]]:
    """Modes, and whether they are to be made at temperature 0. The lossless mode is compared at that temperature."""
    found = [(mode, MODES[mode].lossless) for mode in setting.modes]
    if baseline := greedy_baseline(setting):
        found.insert(len(found) - 1, (baseline, True))
    return found


def greedy_baseline(setting: Setting) -> str:
    """The mode that is made at temperature 0 too, for the lossless one to be compared with; empty where none is."""
    lossless = any(MODES[mode].lossless for mode in setting.modes)
    if not lossless or setting.plan.sampling.temperature == 0:
        return ""
    return "sd" if setting.layered else "autoregressive"


def _variant(
    setting: Setting, task: str, suffix: str, point: sweeps.Point, concurrency: int, mode: str, greedy: bool
) -> Variant:
    mode, rest = sweeps.of_mode(point, mode)
    concurrency = rest.get("concurrency", concurrency)
    plan = _at(setting, rest, mode)
    if greedy:
        plan = dataclasses.replace(plan, sampling=plan.sampling.replace(temperature=0.0))
    asked: dict[str, Any] = {"questions": task, "prompt_suffix": suffix}
    if setting.fair and not MODES[mode].ahead:
        deployment, said = fairness.baseline(plan.deployment, setting.fair)
        plan = dataclasses.replace(plan, deployment=deployment)
        asked["fair"] = said
    check(plan, mode)
    if len(setting.concurrency) > 1:
        rest = {**rest, "concurrency": concurrency}
    words = [task] if len(setting.tasks) > 1 else []
    words += [GREEDY] if greedy else []
    words += [sweeps.name_of(rest)] if rest else []
    return Variant(sweeps.clean("_".join(words)) or PLAIN, mode, task, concurrency, plan, asked)


def _at(setting: Setting, point: sweeps.Point, mode: str) -> Plan:
    plan = setting.plan
    settings = ("verifier", *sweeps.OPTIONS)
    look = plan.lookahead.replace(**{name.replace("-", "_"): point[name] for name in settings if name in point})
    if "alpha" in point:
        look = look.replace(verifier=f"{setting.oracle}:{point['alpha']}")
    deployment = plan.deployment
    if "sd-tokens" in point:
        deployment = _drafting(deployment, point["sd-tokens"])
    return dataclasses.replace(plan, lookahead=look, deployment=deployment)


def _drafting(deployment: Deployment, tokens: int) -> Deployment:
    runtimes = dict(deployment.runtimes)
    taking = [role for role, one in runtimes.items() if one.token_layer.on]
    if not taking:
        raise ConfigError(
            "--sweep sd-tokens: no runtime has a token layer", hint="--token-layer ngram, or a file's own"
        )
    for role in taking:
        runtimes[role] = runtimes[role].replace(token_layer=runtimes[role].token_layer.replace(tokens=tokens))
        token_layer.check(runtimes[role], "", f"[runtimes.{role}]")
    return deployment.replace(runtimes=runtimes)


def server_sets(of: Sequence[Variant]) -> list[list[Variant]]:
    """Variants that can share their servers: they start them with the same settings but for the number of requests."""
    sets: dict[str, list[Variant]] = {}
    for one in of:
        name = "\n".join(alike(role, runtime) for role, runtime in one.runtimes().items())
        sets.setdefault(name, []).append(one)
    return list(sets.values())


def needed(of: Sequence[Variant]) -> Deployment:
    """The runtimes that a set of variants uses, with room for the one that needs most."""
    found = [one.plan.needed([one.mode], one.concurrency) for one in of]
    runtimes: dict[str, Runtime] = {}
    shared: dict[str, str] = {}
    for deployment in found:
        shared |= deployment.shared
        for role, runtime in deployment.runtimes.items():
            before = runtimes.setdefault(role, runtime)
            if not runtime.url:
                slots = max(before.max_running_requests or 0, runtime.max_running_requests or 0)
                runtimes[role] = before.replace(
                    max_running_requests=slots or None, extra={**before.extra, **runtime.extra}
                )
    order = [role for role in of[0].plan.deployment.runtimes if role in runtimes]
    return found[0].replace(runtimes={role: runtimes[role] for role in order}, shared=shared)


def levelled(deployments: Sequence[Deployment]) -> list[Deployment]:
    """Servers that several sets would start alike are started once: with room for the set that needs most."""
    most: dict[str, int] = {}
    for deployment in deployments:
        for role, runtime in deployment.runtimes.items():
            most[alike(role, runtime)] = max(most.get(alike(role, runtime), 0), runtime.max_running_requests or 0)
    return [
        deployment.replace(
            runtimes={
                role: runtime
                if runtime.url
                else runtime.replace(max_running_requests=most[alike(role, runtime)] or None)
                for role, runtime in deployment.runtimes.items()
            }
        )
        for deployment in deployments
    ]


def alike(role: str, runtime: Runtime) -> str:
    """The same for runtimes that can be one server; how many requests they take is not looked at."""
    return f"{role} {json.dumps(runtime.replace(max_running_requests=None).to_dict(), sort_keys=True)}"
