"""The variants that a benchmark compares: modes with their settings."""

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

PLAIN = "sampled"
WAYS = ("replicas", "tp")  # values of --fair
Item = tuple[Question, int]  # a question and the number of the sample
Key = tuple[str, ...]  # identifies a variant


@dataclass(frozen=True)
class Variant:
    """Modes with equal settings; in a benchmark each variant has one mode, so that modes take
    turns.

    Attributes:
        folder: folder of its records in the benchmark's folder; with the modes it identifies the
            variant.
        plan: its settings.
        asked: part of the configuration: the task, the suffix of its questions, and ``--fair``.
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
        """Identifies the variant."""
        return self.folder, *self.modes

    def name(self, mode: str = "") -> str:
        """The name that is printed."""
        return f"{self.folder} {mode or self.mode}".removeprefix(f"{PLAIN} ").strip()

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The configuration in its records, by mode."""
        return {mode: self.plan.configured(mode, **self.asked) for mode in self.modes}

    def runtimes(self) -> dict[str, Runtime]:
        """All runtimes of the deployment, without token layers if this variant uses none."""
        layered = self.plan.layered(self.mode)
        return {
            role: one if layered or one.url else one.replace(token_layer=TokenLayer())
            for role, one in self.plan.deployment.runtimes.items()
        }


@dataclass(frozen=True)
class Setting:
    """The settings from which all variants of a benchmark are made.

    Attributes:
        points: the points of the sweeps.
        concurrency: answers at a time, where no sweep says.
        tasks: the suffix of the questions, by task.
        oracle: the verifier in a sweep of alpha, ``random`` or ``oracle``.
        fair: how modes without lookahead use the GPUs of lookahead (one of ``WAYS``); empty if they
            do not.
    """

    plan: Plan
    points: tuple[sweeps.Point, ...] = ({},)
    concurrency: int = 1
    tasks: dict[str, str] = field(default_factory=dict)
    oracle: str = "random"
    fair: str = ""


def variants(setting: Setting) -> list[Variant]:
    """The variants, without duplicates of several points.

    Raises:
        ConfigError: a value is impossible, or a mode lacks a role.
    """
    found: dict[Key, Variant] = {}
    of = product(setting.tasks.items(), setting.points, setting.plan.modes)
    for (task, suffix), point, mode in of:
        one = _variant(setting, task, suffix, point, mode)
        if found.setdefault(one.key, one).configs != one.configs:
            raise ConfigError(
                f"two settings would have the folder {one.folder}", hint="bench them apart"
            )
    return list(found.values())


def _variant(
    setting: Setting,
    task: str,
    suffix: str,
    point: sweeps.Point,
    mode: str,
) -> Variant:
    mode, rest = sweeps.of_mode(point, mode)
    concurrency = rest.get("concurrency", setting.concurrency)
    plan = _at(setting, rest, mode)
    asked: dict[str, Any] = {"questions": task, "prompt_suffix": suffix}
    if setting.fair and not MODES[mode].ahead:
        deployment, said = fair_baseline(plan.deployment, setting.fair)
        plan = replace(plan, deployment=deployment)
        asked["fair"] = said
    words = [task] if len(setting.tasks) > 1 else []
    words += [sweeps.name_of(rest)] if rest else []
    return Variant(
        sweeps.clean("_".join(words)) or PLAIN,
        (mode,),
        task,
        concurrency,
        plan.checked(mode),
        asked,
    )


def _at(setting: Setting, point: sweeps.Point, mode: str) -> Plan:
    plan = setting.plan
    look = plan.lookahead.replace(**{name: point[name] for name in sweeps.AHEAD if name in point})
    if "alpha" in point:
        look = look.replace(verifier=f"{setting.oracle}:{point['alpha']}")
    runtimes = dict(plan.deployment.runtimes)
    taking = [role for role, one in runtimes.items() if one.token_layer.on and "sd-tokens" in point]
    if "sd-tokens" in point and not taking:
        hint = "give --token-layer ngram, or a deployment file with a token layer"
        raise ConfigError("--sweep sd-tokens: no runtime has a token layer", hint=hint)
    for role in taking:
        layer = runtimes[role].token_layer.replace(tokens=point["sd-tokens"])
        runtimes[role] = runtimes[role].replace(token_layer=layer)
        token_layer.check(runtimes[role], "", f"[runtimes.{role}]")
    return replace(plan, lookahead=look, deployment=plan.deployment.replace(runtimes=runtimes))


def fair_baseline(deployment: Deployment, way: str) -> tuple[Deployment, str]:
    """The deployment of modes without lookahead on all GPUs of lookahead, and its description for
    tables.

    Args:
        way: ``replicas``: as many replicas of the target as fit; ``tp``: one target over more GPUs.

    Raises:
        ConfigError: the deployment does not name the GPUs of its runtimes, or has too few of them.
    """
    target = deployment.runtimes["target"]
    if any(runtime.url for runtime in deployment.runtimes.values()):
        raise ConfigError(
            "--fair: runtimes with a URL cannot be moved", hint="give models, or a deployment file"
        )
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
            f"--fair {way}: lookahead has {len(every)} GPUs, the target {mine} of them; a "
            "larger target does not fit",
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
    return deployment.replace(
        runtimes={"target": found.replace(memory_fraction=None), **others}
    ), said


def _parallel(deployment: Deployment, most: int) -> int:
    """GPUs for one target: its replicas times a power of two that divides its number of attention
    heads.
    """
    target = deployment.runtimes["target"]
    heads = memory.need(target, "[runtimes.target]").heads
    sizes = [
        size
        for size in (8, 4, 2, 1)
        if size * target.data_parallel <= most and (not heads or heads % size == 0)
    ]
    return max(sizes, default=1) * target.data_parallel
