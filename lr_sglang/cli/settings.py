"""The settings of answers: from the command line, else the deployment file, else the model family,
else defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lr_sglang.api.configuration import Plan
from lr_sglang.cli.options import ALGORITHM, TOKEN_LAYER, TomlTable, merge, nested
from lr_sglang.config import (
    FED,
    ROLES,
    Deployment,
    Limits,
    Runtime,
    Sampling,
    TokenLayer,
    fields_of,
)
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES, check_verifier
from lr_sglang.runtimes import advice, deployments, launched
from lr_sglang.runtimes.attach import layer_of, model_of
from lr_sglang.runtimes.launching import flags
from lr_sglang.runtimes.placement.models import prompt_for
from lr_sglang.user_programs import program_registry
from lr_sglang.verifiers import verifier_registry

Given = Mapping[str, Any]  # options by name; one that was not given is None, empty or missing
DEFAULT_LAYER = "ngram"  # what the paper uses, and what needs no model of its own
OFF = "none"  # the token layer's name where there is none
# Options that are settings -> the setting.
NAMED_OPTIONS = {
    name.rpartition(".")[2]: name
    for name, _ in fields_of(Deployment)
    if name.startswith(("lookahead.", "sampling.", "limits.", "judge_prompt"))
}


def settle(given: Given) -> Plan:
    """Makes a plan from the options of a command, the deployment file that they name, and the
    models.

    Raises:
        ConfigError: an invalid option or value; ``Plan.checked`` checks what the modes need.
        LookaheadError: a runtime at a URL does not answer.
    """
    asked = asked_settings(given)
    chosen = _chosen(given)
    running = running_layer(given)
    modes = modes_of(given, running or "")
    _check_verifier(given, asked, modes)
    deployment = with_settings(given, asked, chosen, modes)
    models: dict[str, str] = {
        role: model_of(role, runtime) for role in ROLES if (runtime := deployment.runtime(role))
    }
    sampling = advice.advised_sampling(models["target"]) | deployment.sampling.given()
    longest = advice.family(models["target"]).get("max_tokens")
    limits = {"max_tokens": longest} | deployment.limits.given()
    # a target and no file: then draft and judge do not default to the pocket models
    bare = given.get("target") and not (given.get("deployment") or given.get("attach"))
    # the file's prompt was written for another judge
    own_judge = given.get("judge") or "judge" in asked.get("runtimes", {}) or bare
    prompt = (
        asked.get("judge_prompt")
        or (not own_judge and deployment.judge_prompt)
        or prompt_for(models.get("judge", ""))
    )
    return Plan(
        deployment=deployment.replace(
            sampling=Sampling.from_dict(sampling, "sampling"),
            limits=Limits.from_dict(limits, "limits"),
            judge_prompt=prompt,
        ),
        models=models,
        modes=modes,
        program=given.get("program") or "",
        lossless_layer=bool(_layer_names(given)),
        running_layer=running,
    )


def _chosen(given: Given) -> Deployment:
    """The deployment that the options name, before settings."""
    roles: dict[str, str | None] = {role: given.get(role) for role in ROLES}
    return launched.chosen(given.get("deployment"), given.get("attach"), roles)


def running_target(given: Given) -> Runtime | None:
    """The target, if it runs already."""
    table = _chosen(given).runtimes["target"].given()
    asked = asked_settings(given).get("runtimes", {}).get("target", {})
    if isinstance(asked, dict):
        merge(table, {name: value for name, value in asked.items() if name != TOKEN_LAYER})
        if TOKEN_LAYER in asked:  # takes the place of the file's; ``with_settings`` checks it
            table.pop(TOKEN_LAYER, None)
    return Runtime.from_dict(table, "runtimes.target") if table.get("url") else None


def running_layer(given: Given) -> str | None:
    """The token layer of the target's server, as of ``modes.Able``; None also where it is to be
    started.
    """
    target = running_target(given)
    if target is None:
        return None
    found = layer_of("target", target)
    if found is None and given.get("attach"):  # what was true when it was started
        found = "its own" if launched.find_launched(given["attach"]).layered else ""
    return found


def _check_verifier(given: Given, asked: TomlTable, modes: Sequence[str]) -> None:
    """Checks a verifier that is given by name.

    Raises:
        ConfigError: there is none of that name, or the modes and the program ask none.
    """
    verifier = asked.get("lookahead", {}).get("verifier")
    if not isinstance(verifier, str):
        return  # not given, or no name, which is an error of its own
    verifier_registry.parse_verifier(verifier)
    check_verifier([MODES[mode] for mode in modes], verifier)
    if program := given.get("program"):
        program_registry.check_program_verifier(program, verifier)


def asked_settings(given: Given) -> TomlTable:
    """The settings of the command line and of variables, as a table like that of a deployment file.

    Of one setting, ``-o`` has precedence over the option of its own.
    """
    named: TomlTable = {}
    for option, name in NAMED_OPTIONS.items():
        if given.get(option) is not None:
            merge(named, nested(name, given[option]))
    return merge(named, given.get("option") or {})


def _layers_of(given: Given) -> dict[str, TomlTable]:
    """The token layers by role that ``-o`` gives."""
    runtimes: TomlTable = (given.get("option") or {}).get("runtimes", {})
    return {
        role: table[TOKEN_LAYER]
        for role, table in runtimes.items()
        if isinstance(table, dict) and isinstance(table.get(TOKEN_LAYER), dict)
    }


def _layer_names(given: Given) -> list[str]:
    """The token layers that are asked for by their names."""
    names = [given.get("token_layer") or OFF]
    names += [layer[ALGORITHM] for layer in _layers_of(given).values() if ALGORITHM in layer]
    return [name for name in names if name != OFF]


def modes_of(given: Given, running: str = "") -> tuple[str, ...]:
    """The modes that are asked for; a token layer alone (other than none) asks for lookahead with
    it, and ``fed`` for an exact answer.

    Args:
        running: the token layer of a target that runs already.

    Raises:
        ConfigError: a token layer for modes that have none.
    """
    layers = [
        f"-o runtimes.{role}.{TOKEN_LAYER}"
        for role, layer in _layers_of(given).items()
        if layer.get(ALGORITHM) != OFF
    ]
    if (given.get("token_layer") or OFF) != OFF:
        layers.append("--token-layer")
    usual = "lookahead+sd" if layers or running else "lookahead"
    if FED in (_layer_names(given) if layers else [running]):
        usual = "lossless"
    if given.get("attach") and not layers:
        usual = launched.find_launched(given["attach"]).mode
    modes = tuple(dict.fromkeys(given.get("mode") or [usual]))
    if layers and not any(MODES[mode].token_layer is not False for mode in modes):
        able = ", ".join(mode.name for mode in MODES.values() if mode.token_layer)
        raise ConfigError(
            f"{layers[0]}: mode {modes[0]} has no token layer",
            hint=f"modes with one: {able}",
        )
    return modes


def with_settings(
    given: Given, asked: TomlTable, deployment: Deployment, modes: Sequence[str]
) -> Deployment:
    """A copy with the settings that are asked for, and with the token layers that the modes need.

    Raises:
        ConfigError: an unknown setting, a wrong value, or an option that applies to no runtime.
    """
    table = deployment.given()
    runtimes: dict[str, TomlTable] = table["runtimes"]
    for role, one in asked.get("runtimes", {}).items():
        owner = table.get("shared", {}).pop(role, None)
        if owner and isinstance(one, dict) and not one.keys() & {"model", "url"}:
            raise ConfigError(
                f"runtimes.{role}: the role shares the runtime of {owner}",
                hint=f"set runtimes.{owner}, or give the role a model of its own (--{role})",
            )
    merge(table, {name: value for name, value in asked.items() if name in Deployment.model_fields})
    own = {role: one for role, one in runtimes.items() if isinstance(one, dict)}
    _set_layers(given, own, modes)
    made = Deployment.from_dict(table)
    placed = {
        role: deployments.on_gpus(made.runtimes[role], role, made.runtimes[role].gpus)
        for role, one in asked.get("runtimes", {}).items()
        if "gpus" in one and "tensor_parallel" not in one
    }
    made = made.replace(runtimes={**made.runtimes, **placed})
    for role, runtime in made.runtimes.items():
        flags.check_layer(runtime, "", f"[runtimes.{role}]")
    return made


def _set_layers(given: Given, runtimes: Mapping[str, TomlTable], modes: Sequence[str]) -> None:
    """Enters the token layers that the modes need and ``--token-layer`` names."""
    layers: dict[str, TomlTable] = {
        role: runtime.setdefault(TOKEN_LAYER, {})
        for role, runtime in runtimes.items()
        if not runtime.get("url")
    }
    by_option = _layers_of(given)
    told = {role for role, layer in by_option.items() if ALGORITHM in layer}
    if name := given.get("token_layer"):
        takers = flags.roles_of(TokenLayer(algorithm=name), "--token-layer")
        for taker in takers:
            if taker in layers and taker not in told:
                merge(runtimes[taker], {TOKEN_LAYER: {ALGORITHM: name, **by_option.get(taker, {})}})
            told.add(taker)
        if name != OFF and layers.keys().isdisjoint(takers):
            hint = "a server that runs already has its own, or none"
            raise ConfigError(f"--token-layer {name}: it suits no role that is started", hint=hint)
    layers = {role: runtimes[role][TOKEN_LAYER] for role in layers}
    layered = next((mode for mode in modes if MODES[mode].token_layer), None)
    if layered and all(layer.get(ALGORITHM, OFF) == OFF for layer in layers.values()):
        for taker in {"target", "draft"} & layers.keys() - told:
            layers[taker][ALGORITHM] = DEFAULT_LAYER
