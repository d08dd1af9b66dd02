"""The settings of answers: from the command line, else the deployment file, else the model family,
else defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from lr_sglang.api.configuration import Plan
from lr_sglang.cli.options import LAYER_FIELDS
from lr_sglang.config import ROLES, Deployment, Sampling, TokenLayer
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES
from lr_sglang.runtimes import deployments, launched, load_deployment, override_all
from lr_sglang.runtimes.attach import model_of
from lr_sglang.runtimes.launching import token_layer
from lr_sglang.runtimes.placement.models import prompt_for

Given = Mapping[str, Any]  # options by name; one that was not given is None, empty or missing
# The sampling that the makers of a family advise; the first name that is part of the model's name
# counts.
FAMILIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("deepseek-r1", {"temperature": 0.6, "top_p": 0.95}),
    ("qwen3", {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
)
# The reference's code has other numbers than its paper (paper section 4: a token layer of 8).
REFERENCE_DEPTH = 4
REFERENCE_LAYER = {"tokens": 6, "ngram_max": 2}
DEFAULT_LAYER = "ngram"  # what the paper uses, and what needs no model of its own


def settle(given: Given) -> Plan:
    """Makes a plan from the options of a command, the deployment file that they name, and the
    models.

    Raises:
        ConfigError: an invalid option or value; ``Plan.checked`` checks what the modes need.
        LookaheadError: a runtime at a URL does not answer.
    """
    if given.get("attach") and given.get("deployment"):
        raise ConfigError(
            "--attach and --deployment both say where the runtimes are",
            hint="leave one of them out",
        )
    modes = modes_of(given)
    deployment = with_layers(given, _deployment(given), modes)
    models: dict[str, str] = {
        role: model_of(role, runtime) for role in ROLES if (runtime := deployment.runtime(role))
    }
    family = next((advice for name, advice in FAMILIES if name in models["target"].lower()), {})
    reference = given.get("reference_defaults") and given.get("depth") is None
    own = given.get("judge") or _bare(given)  # the file's prompt was written for another judge
    prompt = (
        given.get("judge_prompt")
        or (not own and deployment.judge_prompt)
        or prompt_for(models.get("judge", ""))
    )
    return Plan(
        deployment=deployment,
        models=models,
        modes=modes,
        lookahead=deployment.lookahead.with_its_options(
            {**given, "depth": REFERENCE_DEPTH} if reference else given
        ),
        sampling=Sampling.from_dict(family | sampling_of_file(given), "sampling").with_its_options(
            given
        ),
        limits=deployment.limits.with_its_options(given),
        judge_prompt=prompt,
        program=given.get("program") or "",
        lossless_layer=_named(given),
    )


def _bare(given: Given) -> bool:
    """Whether a target and no file is given: then draft and judge do not default to the pocket
    models.
    """
    return bool(given.get("target")) and not (given.get("deployment") or given.get("attach"))


def _deployment(given: Given) -> Deployment:
    """The deployment of the file, else of the roles that are given, else the pocket deployment."""
    if given.get("attach"):
        deployment = launched.find(given["attach"]).attachable()
    elif _bare(given):
        deployment = deployments.custom(given["target"])
    else:
        deployment = load_deployment(given.get("deployment") or deployments.DEFAULT)
    return override_all(
        deployment,
        {role: given.get(role) for role in ROLES},
        {role: given.get(f"{role}_gpus") for role in ROLES},
    )


def sampling_of_file(given: Given) -> dict[str, Any]:
    """The [sampling] that the file itself gives (a ``Deployment`` has defaults in it already)."""
    if _bare(given):
        return {}
    if given.get("attach"):
        return launched.find(given["attach"]).sampling
    path = deployments.path_of(given.get("deployment") or deployments.DEFAULT)
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8")).get("sampling", {})
    return table


def _named(given: Given) -> bool:
    """Whether a token layer is asked for by its name."""
    return any(name != "none" for _, name in given.get("token_layer") or ())


def modes_of(given: Given) -> tuple[str, ...]:
    """The modes that are asked for; a token layer alone (other than none) asks for lookahead with
    it.

    Raises:
        ConfigError: a token layer for modes that have none.
    """
    layers = [
        *(["token_layer"] if _named(given) else []),
        *(name for name in LAYER_FIELDS if given.get(name)),
    ]
    usual = launched.find(given["attach"]).mode if given.get("attach") else "lookahead"
    modes = tuple(dict.fromkeys(given.get("mode") or ["lookahead+sd" if layers else usual]))
    if layers and not any(MODES[mode].token_layer is not False for mode in modes):
        able = ", ".join(mode.name for mode in MODES.values() if mode.token_layer)
        raise ConfigError(
            f"{_flag(layers[0])}: mode {modes[0]} has no token layer",
            hint=f"modes with one: {able}",
        )
    return modes


def with_layers(given: Given, deployment: Deployment, modes: Sequence[str]) -> Deployment:
    """A copy with the token layers that the modes need and the options ask for, role by role.

    Raises:
        ConfigError: an option that applies to no runtime, or an invalid layer.
    """
    layers = {
        role: runtime.token_layer
        for role, runtime in deployment.runtimes.items()
        if not runtime.url
    }

    def own(role: str) -> str:
        if role not in layers:
            runtime = deployment.runtime(role)
            why, hint = "the deployment lacks the role", ""
            if runtime is not None and runtime.url:
                why, hint = (
                    "its runtime is at a URL",
                    "it keeps the one that it was started with: leave yours out",
                )
            elif runtime is not None:
                why = f"it shares the runtime of {deployment.shared.get(role)}"
            raise ConfigError(f"a token layer is given, but {why}", role=role, hint=hint)
        return role

    told: set[str] = set()
    for role, name in given.get("token_layer") or ():
        takers = [own(role)] if role else [one for one in _suited(name) if one in layers]
        if not takers:
            raise ConfigError(
                "--token-layer: the runtimes are at URLs, and have the token layer that they "
                "were started with",
                hint="leave it out, and say with --mode whether they have one",
            )
        layers |= dict.fromkeys(takers, TokenLayer(name))
        told.update(takers)
    layered = next((mode for mode in modes if MODES[mode].token_layer), None)
    if layered and not any(layer.on for layer in layers.values()):
        takers = [role for role in ("target", "draft") if role in layers and role not in told]
        if told and not takers:
            raise ConfigError(
                f"--token-layer none: mode {layered} has one",
                hint="take another --mode, or a layer",
            )
        layers |= dict.fromkeys(takers, TokenLayer(DEFAULT_LAYER))
    if given.get("reference_defaults"):
        for role, layer in layers.items():
            missing = {
                name: value
                for name, value in REFERENCE_LAYER.items()
                if getattr(layer, name) is None
            }
            if layer.on:
                layers[role] = layer.replace(
                    **{k: v for k, v in missing.items() if _takes(layer, k)}
                )
    for option, name in LAYER_FIELDS.items():
        for role, value in given.get(option) or ():
            takers = (
                [own(role)]
                if role
                else [r for r, layer in layers.items() if layer.on and _takes(layer, name)]
            )
            if not takers:
                raise ConfigError(f"{_flag(option)}: no token layer here has such a setting")
            for taker in takers:
                layers[taker] = layers[taker].replace(**{name: value})
    runtimes = dict(deployment.runtimes)
    for role, layer in layers.items():
        runtimes[role] = runtimes[role].replace(token_layer=layer)
        if layer.on:
            token_layer.check(runtimes[role], "", f"[runtimes.{role}]")
    return deployment.replace(runtimes=runtimes)


def _suited(name: str) -> tuple[str, ...]:
    """The roles that a token layer without a role is for: the target, and the draft if it needs no
    draft model.
    """
    with_model = (
        name != "none" and token_layer.find(TokenLayer(name), "--token-layer").draft != "none"
    )
    return ("target",) if with_model else ("target", "draft")


def _takes(layer: TokenLayer, name: str) -> bool:
    known = token_layer.find(layer, "--token-layer")
    return (
        known.draft != "none" if name == "draft_model" else name == "tokens" or name in known.takes
    )


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
