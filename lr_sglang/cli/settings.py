"""Settling what a run is made with: the command line over the deployment file over the model family over defaults."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from lr_sglang.api.configuration import Plan, check
from lr_sglang.cli import token_layer_options
from lr_sglang.cli.run_options import RunOptions
from lr_sglang.config import ROLES, Deployment, Limits, Lookahead, Sampling
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import deployments, launched, load_deployment, override_all
from lr_sglang.runtimes.attach import model_of
from lr_sglang.runtimes.placement.models import prompt_for

# How a family's makers advise to sample it; the first name that stands in the model's name counts.
FAMILIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("deepseek-r1", {"temperature": 0.6, "top_p": 0.95}),
    ("qwen3", {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
)
REFERENCE_DEPTH = 4


def settle(options: RunOptions) -> Plan:
    """From the options of a command, the deployment file that they name, and the models.

    Raises:
        ConfigError: an option or a value that cannot be.
        LookaheadError: a runtime at a URL does not answer.
    """
    if options.attach and options.deployment:
        raise ConfigError("--attach and --deployment both say where the runtimes are", hint="leave one of them out")
    modes = token_layer_options.modes_of(options)
    deployment = token_layer_options.apply(options, _deployment(options), modes)
    models: dict[str, str] = {role: model_of(role, runtime) for role in ROLES if (runtime := deployment.runtime(role))}
    family = next((advice for name, advice in FAMILIES if name in models["target"].lower()), {})
    sampling = Sampling.from_dict({**family, **sampling_of_file(options)}, "sampling")
    sampling = sampling.replace(**options.of_kind(Sampling))
    reference = {"depth": REFERENCE_DEPTH} if options.reference_defaults and options.depth is None else {}
    look = deployment.lookahead.replace(**options.of_kind(Lookahead) | reference)
    limits = deployment.limits.replace(**options.of_kind(Limits))
    prompt, layered = _judge_prompt(options, deployment, models), token_layer_options.is_asked(options)
    return Plan(deployment, models, look, sampling, limits, prompt, layered, options.program or "")


def settle_modes(options: RunOptions) -> tuple[Plan, list[str]]:
    """The same with the modes that are asked for, each of which can be carried out.

    Raises:
        ConfigError, LookaheadError: as ``settle``; a mode lacks a role, or there is no such verifier or judge's prompt.
    """
    plan, modes = settle(options), token_layer_options.modes_of(options)
    for mode in modes:
        check(plan, mode)
    return plan, modes


def _deployment(options: RunOptions) -> Deployment:
    """The file's, or the pocket deployment; with a target of one's own and no file, only what is given."""
    if options.attach:
        deployment = launched.find(options.attach).attachable()
    elif options.target and _only_given(options):
        deployment = deployments.custom(options.target)
    else:
        deployment = load_deployment(options.deployment or deployments.DEFAULT)
    models = {"target": options.target, "draft": options.draft, "judge": options.judge}
    gpus = {"target": options.target_gpus, "draft": options.draft_gpus, "judge": options.judge_gpus}
    return override_all(deployment, models, gpus)


def _only_given(options: RunOptions) -> bool:
    """A target and no file: draft and judge are then those that are given, not the pocket models."""
    return bool(options.target) and not (options.deployment or options.attach)


def sampling_of_file(options: RunOptions) -> dict[str, Any]:
    """The [sampling] that the file itself gives (a ``Deployment`` has defaults in it already)."""
    if _only_given(options):
        return {}
    if options.attach:
        return launched.find(options.attach).sampling
    name = options.deployment or deployments.DEFAULT
    table: dict[str, Any] = tomllib.loads(deployments.path_of(name).read_text(encoding="utf-8")).get("sampling", {})
    return table


def _judge_prompt(options: RunOptions, deployment: Deployment, models: Mapping[str, str]) -> str:
    """A judge from the command line is not the one that the file's prompt was written for."""
    if options.judge_prompt:
        return options.judge_prompt
    if options.judge or _only_given(options):
        return prompt_for(models.get("judge", ""))
    return deployment.judge_prompt
