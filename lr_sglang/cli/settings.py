"""Settling what a run is made with: the command line over the deployment file over the model family over defaults."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from typing import Any

from lr_sglang.cli import token_layer_options
from lr_sglang.cli.configuration import Plan
from lr_sglang.config import ROLES, Deployment, Sampling
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import deployments, launched, load_deployment, override_all
from lr_sglang.runtimes.attach import model_of, prompt_for

# How a family's makers advise to sample it; the first name that stands in the model's name counts.
FAMILIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("deepseek-r1", {"temperature": 0.6, "top_p": 0.95}),
    ("qwen3", {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
)
REFERENCE_DEPTH = 4


def settle(options: Mapping[str, Any]) -> Plan:
    """From the options of a command (see ``options``), the deployment file that they name, and the models.

    Raises:
        ConfigError: an option or a value that cannot be.
        LookaheadError: a runtime at a URL does not answer.
    """
    if options.get("attach") and options.get("deployment"):
        raise ConfigError("--attach and --deployment both say where the runtimes are", hint="leave one of them out")
    modes = token_layer_options.modes_of(options)
    deployment = token_layer_options.apply(options, _deployment(options), modes)
    models: dict[str, str] = {role: model_of(role, runtime) for role in ROLES if (runtime := deployment.runtime(role))}
    family = next((advice for name, advice in FAMILIES if name in models["target"].lower()), {})
    asked = _given(options, ("temperature", "top_p", "top_k", "min_p", "seed"))
    sampling = Sampling.from_dict({**family, **sampling_of_file(options), **asked}, "sampling")
    look = deployment.lookahead
    if options.get("reference_defaults"):
        look = look.replace(depth=REFERENCE_DEPTH)
    look = look.replace(**_given(options, tuple(field.name for field in dataclasses.fields(look))))
    limits = deployment.limits.replace(**_given(options, ("max_tokens", "max_total_tokens")))
    prompt = _judge_prompt(options, deployment, models)
    layered, program = token_layer_options.is_asked(options), options.get("program") or ""
    return Plan(deployment, models, look, sampling, limits, prompt, lossless_layer=layered, program=program)


def _deployment(options: Mapping[str, Any]) -> Deployment:
    """The file's, or the pocket deployment; with a target of one's own and no file, only what is given."""
    if options.get("attach"):
        deployment = launched.find(options["attach"]).attachable()
    elif not _only_given(options):
        deployment = load_deployment(options.get("deployment") or deployments.DEFAULT)
    else:
        deployment = deployments.custom(options["target"])
    models: dict[str, str | None] = {role: options.get(role) for role in ROLES}
    gpus: dict[str, tuple[int, ...] | None] = {role: options.get(f"{role}_gpus") for role in ROLES}
    return override_all(deployment, models, gpus)


def _only_given(options: Mapping[str, Any]) -> bool:
    """A target and no file: draft and judge are then those that are given, not the pocket models."""
    return bool(options.get("target")) and not (options.get("deployment") or options.get("attach"))


def sampling_of_file(options: Mapping[str, Any]) -> dict[str, Any]:
    """The [sampling] that the file itself gives (a ``Deployment`` has defaults in it already)."""
    if _only_given(options):
        return {}
    if options.get("attach"):
        return launched.find(options["attach"]).sampling
    name = options.get("deployment") or deployments.DEFAULT
    table: dict[str, Any] = tomllib.loads(deployments.path_of(name).read_text(encoding="utf-8")).get("sampling", {})
    return table


def _judge_prompt(options: Mapping[str, Any], deployment: Deployment, models: Mapping[str, str]) -> str:
    """A judge from the command line is not the one that the file's prompt was written for."""
    if options.get("judge_prompt"):
        return str(options["judge_prompt"])
    if options.get("judge") or _only_given(options):
        return prompt_for(models.get("judge", ""))
    return deployment.judge_prompt


def _given(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options[name] for name in names if options.get(name) is not None}
