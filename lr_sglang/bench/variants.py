"""The variants that a benchmark compares: modes, how they are set, and which servers that takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from lr_sglang.api.configuration import Plan
from lr_sglang.bench import sweeps
from lr_sglang.config import Deployment, Runtime, TokenLayer
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES
from lr_sglang.runtimes.launching import token_layer
from lr_sglang.runtimes.placement import memory
from lr_sglang.tasks import Question

GREEDY = "greedy"
PLAIN = "sampled"
WAYS = ("replicas", "tp")  # to be fair
Item = tuple[Question, int]  # and which sample of it
Key = tuple[str, ...]  # of a variant


@dataclass(frozen=True)
class Variant:
    """Modes that are set alike; a benchmark has one mode in each, so that variants take turns.

    Attributes:
        folder: of its records, in that of the benchmark; with the modes it tells variants apart.
        plan: as it is set.
        asked: the task and what is appended to its questions, and fairness if there is any; part of the configuration.
    """

    folder: str
    modes: tuple[str, ...]
    task: str
    concurrency: int
    plan: Plan
    asked: dict[str, Any]

    @property
    def mode(self) -> str:
        return self.modes[0]

    @property
    def key(self) -> Key:
        """Tells variants apart."""
        return self.folder, *self.modes

    def name(self, mode: str = "") -> str:
        """The variant as it is printed."""
        return f"{self.folder} {mode or self.mode}".removeprefix(f"{PLAIN} ").strip()

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The configuration in its records, by mode."""
        return {mode: self.plan.configured(mode, **self.asked) for mode in self.modes}

    def runtimes(self) -> dict[str, Runtime]:
        """All runtimes of the deployment, with their token layers if this variant uses them."""
        layered = self.plan.layered(self.mode)
        return {
            role: one if layered or one.url else one.replace(token_layer=TokenLayer())
            for role, one in self.plan.deployment.runtimes.items()
        }


@dataclass(frozen=True)
class Setting:
    """What all variants of a benchmark have in common.

    Attributes:
        points: of the sweeps.
        concurrency: answers at a time, one number or several.
        tasks: by name, what is appended to the questions.
        oracle: the verifier that a share stands for in a sweep of alpha.
        fair: how modes without lookahead get its GPUs; empty for not.
        layered: whether the servers run already and have a token layer, so that there is no plain decoding on them.
    """

    plan: Plan
    points: tuple[sweeps.Point, ...] = ({},)
    concurrency: tuple[int, ...] = (1,)
    tasks: dict[str, str] = field(default_factory=dict)
    oracle: str = "random"
    fair: str = ""
    layered: bool = False


def variants(setting: Setting) -> list[Variant]:
    """Each of them once, even if several points come to the same.

    Raises:
        ConfigError: a value that cannot be, or a mode that lacks a role.
    """
    found: dict[Key, Variant] = {}
    of = product(setting.tasks.items(), setting.concurrency, setting.points, _modes(setting))
    for (task, suffix), number, point, (mode, greedy) in of:
        one = _variant(setting, task, suffix, point, number, mode, greedy)
        if found.setdefault(one.key, one).configs != one.configs:
            raise ConfigError(f"two settings would have the folder {one.folder}", hint="bench them apart")
    return list(found.values())


def _modes(setting: Setting) -> list[tuple[str, bool]]:
    """The modes, each with whether it runs at temperature 0: the lossless mode is compared at that."""
    found = [(mode, MODES[mode].lossless) for mode in setting.plan.modes]
    if baseline := greedy_baseline(setting):
        found.insert(len(found) - 1, (baseline, True))
    return found


def greedy_baseline(setting: Setting) -> str:
    """The mode that also runs at temperature 0 as the baseline of the lossless mode; empty for none."""
    lossless = any(MODES[mode].lossless for mode in setting.plan.modes)
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
        plan = replace(plan, sampling=plan.sampling.replace(temperature=0.0))
    asked: dict[str, Any] = {"questions": task, "prompt_suffix": suffix}
    if setting.fair and not MODES[mode].ahead:
        deployment, said = fair_baseline(plan.deployment, setting.fair)
        plan = replace(plan, deployment=deployment)
        asked["fair"] = said
    if len(setting.concurrency) > 1:
        rest = {**rest, "concurrency": concurrency}
    words = [task] if len(setting.tasks) > 1 else []
    words += [GREEDY] if greedy else []
    words += [sweeps.name_of(rest)] if rest else []
    return Variant(sweeps.clean("_".join(words)) or PLAIN, (mode,), task, concurrency, plan.checked(mode), asked)


def _at(setting: Setting, point: sweeps.Point, mode: str) -> Plan:
    plan = setting.plan
    settings = ("verifier", *sweeps.OPTIONS)
    look = plan.lookahead.replace(**{name.replace("-", "_"): point[name] for name in settings if name in point})
    if "alpha" in point:
        look = look.replace(verifier=f"{setting.oracle}:{point['alpha']}")
    runtimes = dict(plan.deployment.runtimes)
    taking = [role for role, one in runtimes.items() if one.token_layer.on and "sd-tokens" in point]
    if "sd-tokens" in point and not taking:
        hint = "--token-layer ngram, or a file's own"
        raise ConfigError("--sweep sd-tokens: no runtime has a token layer", hint=hint)
    for role in taking:
        layer = runtimes[role].token_layer.replace(tokens=point["sd-tokens"])
        runtimes[role] = runtimes[role].replace(token_layer=layer)
        token_layer.check(runtimes[role], "", f"[runtimes.{role}]")
    return replace(plan, lookahead=look, deployment=plan.deployment.replace(runtimes=runtimes))


def fair_baseline(deployment: Deployment, way: str) -> tuple[Deployment, str]:
    """The deployment of modes without lookahead on as many GPUs as lookahead has, and what tables say of it.

    Args:
        way: ``replicas`` of the target, as many as there is room for, or ``tp``: one over more GPUs.

    Raises:
        ConfigError: the runtimes are not on GPUs that the deployment names, or those are not enough for more.
    """
    target = deployment.runtimes["target"]
    if any(runtime.url for runtime in deployment.runtimes.values()):
        raise ConfigError("--fair: runtimes at a URL are where they are", hint="give models, or a deployment file")
    if not all(runtime.gpus for runtime in deployment.runtimes.values()):
        raise ConfigError(
            f"--fair {way}: it is about GPUs, and these runtimes are on none",
            hint="compare on a machine with GPUs, or leave --fair out",
        )
    every = tuple(sorted({gpu for runtime in deployment.runtimes.values() for gpu in runtime.gpus}))
    mine = len(target.gpus)
    count = len(every) // mine * mine if way == "replicas" else _parallel(deployment, len(every))
    if count <= mine:
        other = "tp" if way == "replicas" else "replicas"
        raise ConfigError(
            f"--fair {way}: lookahead has {len(every)} GPUs, the target {mine} of them; that is room for no more",
            hint=f"--fair {other}, or other GPUs for the roles",
        )
    gpus = (*target.gpus, *(gpu for gpu in every if gpu not in target.gpus))[:count]
    if way == "replicas":
        copies = count // mine * target.data_parallel
        found, said = target.replace(gpus=gpus, data_parallel=copies), f"{copies} replicas"
    else:
        size = count // target.data_parallel
        found, said = target.replace(gpus=gpus, tensor_parallel=size), f"tensor parallel {size}"
    others = {role: one for role, one in deployment.runtimes.items() if role != "target"}
    said += f" on {count} GPUs"
    return deployment.replace(runtimes={"target": found.replace(memory_fraction=None), **others}), said


def _parallel(deployment: Deployment, most: int) -> int:
    """GPUs for one target: a power of two, times its replicas, that divides its attention heads."""
    target = deployment.runtimes["target"]
    heads = memory.need(target, "[runtimes.target]").heads
    sizes = [size for size in (8, 4, 2, 1) if size * target.data_parallel <= most and (not heads or heads % size == 0)]
    return max(sizes, default=1) * target.data_parallel
