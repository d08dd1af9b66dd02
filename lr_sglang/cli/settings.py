"""What a run is made with: the command line over the deployment file over the model family over the defaults."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lr_sglang.config import ROLES, Deployment, Limits, Lookahead, Runtime, Sampling
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import built_in, deployments, load_deployment, override, probe
from lr_sglang.runtimes.attach import api_key

# How a family's makers advise to sample it; the first name that stands in the model's name counts.
FAMILIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("deepseek-r1", {"temperature": 0.6, "top_p": 0.95}),
    ("qwen3", {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
)
POCKET = re.compile(r"(?:^|/)pocket(?::|/weights/|/)(target|draft|judge)/?$")
REFERENCE_DEPTH = 4
# Said again here, because the packages that have them import SGLang; a test compares.
VERIFIERS = ("judge", "exact", "random")
JUDGE_PROMPTS = ("paper", "pocket")
# Where a runtime is, and how much of a machine it takes: not what it answers.
PLACEMENT = (
    *("url", "port", "gpus", "device", "tensor_parallel", "data_parallel"),
    *("timeout", "api_key_env", "memory_fraction", "tokenizer"),
)


@dataclass(frozen=True)
class Plan:
    """Everything that is settled before a runtime starts. ``models`` names each role's model."""

    deployment: Deployment
    models: dict[str, str]
    lookahead: Lookahead
    sampling: Sampling
    limits: Limits
    judge_prompt: str

    def config(self, mode: str, **more: Any) -> dict[str, Any]:
        """What a record says about how it was made, and what a resumed run must have in common with it."""
        ahead = mode == "lookahead"
        roles = [role for role in ROLES if role in self.models and (ahead or role == "target")]
        judged = ahead and self.lookahead.verifier == "judge"
        return {
            **more,
            "mode": mode,
            "runtimes": {role: self._runtime(role) for role in roles if role != "judge" or judged},
            "sampling": self.sampling.to_dict(),
            "limits": self.limits.to_dict(),
            "lookahead": self.lookahead.to_dict() if ahead else None,
            "judge_prompt": self.judge_prompt if judged else None,
        }

    def needed(self, modes: Collection[str]) -> Deployment:
        """The deployment without the runtimes that these modes do not use."""
        roles = {"target"}
        if "lookahead" in modes:
            roles |= {"draft", "judge"} if self.lookahead.verifier == "judge" else {"draft"}
        shared = {role: owner for role, owner in self.deployment.shared.items() if role in roles}
        owners = {shared.get(role, role) for role in roles}
        runtimes = {role: runtime for role, runtime in self.deployment.runtimes.items() if role in owners}
        return self.deployment.replace(runtimes=runtimes, shared=shared)

    def placement(self) -> dict[str, Any]:
        """Where each role runs."""
        found = {}
        for role in self.models:
            runtime = self.deployment.runtime(role)
            assert runtime is not None
            table = {key: value for key, value in runtime.to_dict().items() if key in PLACEMENT and value}
            found[role] = {**table, "url": _without_secrets(runtime.url)} if runtime.url else table
        return found

    def _runtime(self, role: str) -> dict[str, Any]:
        runtime = self.deployment.runtime(role)
        assert runtime is not None
        if runtime.url:
            return {"model": self.models[role]}
        table = {key: value for key, value in runtime.to_dict().items() if key not in PLACEMENT}
        return {**table, "model": self.models[role]}


def settle(options: Mapping[str, Any]) -> Plan:
    """From the options of a command (see ``options``), the deployment file that they name, and the models.

    Raises:
        ConfigError: an option or a value that cannot be.
        LookaheadError: a runtime at a URL does not answer.
    """
    deployment = _deployment(options)
    models: dict[str, str] = {role: _model(role, runtime) for role in ROLES if (runtime := deployment.runtime(role))}
    family = next((advice for name, advice in FAMILIES if name in models["target"].lower()), {})
    asked = _given(options, ("temperature", "top_p", "top_k", "min_p", "seed"))
    sampling = Sampling.from_dict({**family, **_from_file(options), **asked}, "sampling")
    look = deployment.lookahead
    if options.get("reference_defaults"):
        look = look.replace(depth=REFERENCE_DEPTH)
    names = ("schedule", "depth", "width", "max_step_tokens", "half_sentence_guard", "verifier")
    look = look.replace(**_given(options, names))
    limits = deployment.limits.replace(**_given(options, ("max_tokens", "max_total_tokens")))
    return Plan(deployment, models, look, sampling, limits, _judge_prompt(options, deployment, models))


def check(plan: Plan, mode: str) -> None:
    """What is clear before a server starts.

    Raises:
        ConfigError: the mode lacks a role, or there is no such verifier or judge's prompt.
    """
    if mode != "lookahead":
        return
    if "draft" not in plan.models:
        raise ConfigError("lookahead needs a draft model", hint="give --draft MODEL|URL, or --mode autoregressive")
    kind, _, share = plan.lookahead.verifier.partition(":")
    if kind not in VERIFIERS or (share and kind != "random"):
        raise ConfigError(
            f"no verifier is called {plan.lookahead.verifier!r}", hint=f"one of {', '.join(VERIFIERS)}; random:0.6"
        )
    if kind == "random" and not _is_share(share or "0.5"):
        raise ConfigError(f"random: {share!r} is no acceptance rate", hint="for example random:0.6")
    if kind == "judge" and "judge" not in plan.models:
        raise ConfigError(
            "the judge verifier needs a judge model",
            hint="give --judge MODEL|URL (--judge target shares the target), or --verifier exact",
        )
    if kind == "judge" and plan.judge_prompt not in JUDGE_PROMPTS:
        raise ConfigError(f"no judge prompt is called {plan.judge_prompt!r}", hint=f"one of {', '.join(JUDGE_PROMPTS)}")


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _deployment(options: Mapping[str, Any]) -> Deployment:
    """The file's, or the pocket deployment; with a target of one's own and no file, only what is given."""
    if not _only_given(options):
        deployment = load_deployment(options.get("deployment") or deployments.DEFAULT)
    else:
        target = options["target"]
        runtime = Runtime(url=target) if target.startswith(("http://", "https://")) else Runtime(model=target)
        deployment = Deployment("custom", {"target": runtime})
    for role in ROLES:
        deployment = override(deployment, role, options.get(role), options.get(f"{role}_gpus"))
    return deployment


def _only_given(options: Mapping[str, Any]) -> bool:
    """A target and no file: draft and judge are then those that are given, not the pocket models."""
    return bool(options.get("target")) and not options.get("deployment")


def _from_file(options: Mapping[str, Any]) -> dict[str, Any]:
    """The [sampling] that the file itself gives (a ``Deployment`` has defaults in it already)."""
    if _only_given(options):
        return {}
    name = options.get("deployment") or deployments.DEFAULT
    path = deployments.BUILT_IN / f"{name}.toml" if name in built_in() else Path(name).expanduser()
    return tomllib.loads(path.read_text(encoding="utf-8")).get("sampling", {})


def _model(role: str, runtime: Runtime) -> str:
    """The model's name; a runtime at a URL is asked."""
    model = runtime.model
    if runtime.url:
        try:
            model = probe.model_info(runtime.url.rstrip("/"), api_key=api_key(role, runtime), role=role).model
        except probe.NoSuchRoute:
            model = runtime.tokenizer  # a router; whether that will do is for whoever attaches to it
    pocket = POCKET.search(model)
    return f"pocket:{pocket[1]}" if pocket else model


def _judge_prompt(options: Mapping[str, Any], deployment: Deployment, models: Mapping[str, str]) -> str:
    """A judge from the command line is not the one that the file's prompt was written for."""
    if options.get("judge_prompt"):
        return str(options["judge_prompt"])
    if options.get("judge") or _only_given(options):
        return "pocket" if models.get("judge", "").startswith("pocket:") else "paper"
    return deployment.judge_prompt


def _given(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options[name] for name in names if options.get(name) is not None}


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
