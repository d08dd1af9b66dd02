"""The token layer's options: over what the deployment file says, role by role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lr_sglang.cli.run_options import RunOptions
from lr_sglang.config import Deployment, TokenLayer
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES
from lr_sglang.runtimes import launched
from lr_sglang.runtimes.launching import token_layer

# What the paper uses, and what needs no model of its own.
DEFAULT = "ngram"
# Option to field of TokenLayer.
FIELDS = {
    "sd_tokens": "tokens",
    "sd_draft_model": "draft_model",
    "sd_steps": "steps",
    "sd_topk": "topk",
    "sd_ngram_max": "ngram_max",
    "sd_accept_length": "accept_length",
}
# The reference's code has other numbers than its paper (paper section 4: 8).
REFERENCE = {"tokens": 6, "ngram_max": 2}
LAYERED = ", ".join(mode.name for mode in MODES.values() if mode.token_layer)


def modes_of(options: RunOptions) -> list[str]:
    """The modes that are asked for; a token layer alone (other than none) asks for lookahead with it.

    Raises:
        ConfigError: a token layer for modes that have none.
    """
    given = ["token_layer"] if is_asked(options) else []
    given += [name for name in FIELDS if getattr(options, name)]
    asked = list(dict.fromkeys(options.mode))
    attached = launched.find(options.attach).mode if options.attach else "lookahead"
    modes = asked or ["lookahead+sd" if given else attached]
    if given and not any(MODES[mode].token_layer is not False for mode in modes):
        flag = "--" + given[0].replace("_", "-")
        raise ConfigError(f"{flag}: mode {modes[0]} has no token layer", hint=f"modes with one: {LAYERED}")
    return modes


def is_asked(options: RunOptions) -> bool:
    """Whether a token layer is asked for by its name."""
    return any(name != "none" for _, name in options.token_layer)


def apply(options: RunOptions, deployment: Deployment, modes: Sequence[str]) -> Deployment:
    """A copy with the token layers that the modes need and the options ask for.

    Raises:
        ConfigError: an option that means nothing to any runtime, or a layer that cannot be.
    """
    layers = {role: runtime.token_layer for role, runtime in deployment.runtimes.items() if not runtime.url}
    told: set[str] = set()
    for role, name in options.token_layer:
        for taker in _suited(role, name, layers, deployment):
            layers[taker] = TokenLayer(name)
            told.add(taker)
    layered = next((mode for mode in modes if MODES[mode].token_layer), None)
    if layered and not any(layer.on for layer in layers.values()):
        takers = [role for role in ("target", "draft") if role in layers and role not in told]
        if told and not takers:
            raise ConfigError(f"--token-layer none: mode {layered} has one", hint="take another --mode, or a layer")
        layers |= dict.fromkeys(takers, TokenLayer(DEFAULT))
    if options.reference_defaults:
        layers = {role: _as_reference(layer) if layer.on else layer for role, layer in layers.items()}
    for option, name in FIELDS.items():
        for role, value in getattr(options, option):
            for taker in _takers(option, name, role, layers, deployment):
                layers[taker] = layers[taker].replace(**{name: value})
    runtimes = dict(deployment.runtimes)
    for role, layer in layers.items():
        runtimes[role] = runtimes[role].replace(token_layer=layer)
        if layer.on:
            token_layer.check(runtimes[role], "", f"[runtimes.{role}]")
    return deployment.replace(runtimes=runtimes)


def _suited(role: str | None, name: str, layers: Mapping[str, Any], deployment: Deployment) -> list[str]:
    """Who gets a layer: the role that is named, or the target and, where it needs no draft model, the draft too."""
    if role is not None:
        return [_own(role, layers, deployment)]
    without_model = name != "none" and token_layer.find(TokenLayer(name), "--token-layer").draft == "none"
    roles = ("target", "draft") if without_model or name == "none" else ("target",)
    found = [taker for taker in roles if taker in layers]
    if not found:
        raise ConfigError(
            "--token-layer: the runtimes are at URLs, and have the token layer that they were started with",
            hint="leave it out, and say with --mode whether they have one",
        )
    return found


def _takers(
    option: str, name: str, role: str | None, layers: Mapping[str, TokenLayer], deployment: Deployment
) -> list[str]:
    if role is not None:
        return [_own(role, layers, deployment)]
    found = [taker for taker, layer in layers.items() if layer.on and _takes(layer, name)]
    if not found:
        raise ConfigError(f"--{option.replace('_', '-')}: no token layer here has such a setting")
    return found


def _takes(layer: TokenLayer, name: str) -> bool:
    known = token_layer.find(layer, "--token-layer")
    return known.draft != "none" if name == "draft_model" else name == "tokens" or name in known.takes


def _own(role: str, layers: Mapping[str, Any], deployment: Deployment) -> str:
    if role in layers:
        return role
    runtime = deployment.runtime(role)
    if runtime is None:
        raise ConfigError("a token layer is given, but the deployment lacks the role", role=role)
    why = "its runtime is at a URL" if runtime.url else f"it shares the runtime of {deployment.shared[role]}"
    raise ConfigError(f"a token layer is given, but {why}", role=role)


def _as_reference(layer: TokenLayer) -> TokenLayer:
    missing = {name: value for name, value in REFERENCE.items() if getattr(layer, name) is None and _takes(layer, name)}
    return layer.replace(**missing)
