"""What a run is made with, once everything is settled; what servers that takes, and what cannot be."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lr_sglang.algorithm import policy
from lr_sglang.config import ROLES, Deployment, Limits, Lookahead, Role, Runtime, Sampling, TokenLayer
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES
from lr_sglang.runtimes.placement import shapes
from lr_sglang.user_programs import program_registry
from lr_sglang.verifiers import verifier_registry

# Said again here, because the package that has them imports SGLang; a test compares.
JUDGE_PROMPTS = ("paper", "pocket")
# Where a runtime is, and how much of a machine it takes: not what it answers.
PLACEMENT = (
    *("url", "port", "gpus", "device", "tensor_parallel", "data_parallel", "max_running_requests"),
    *("timeout", "api_key_env", "worker_api_key_env", "memory_fraction", "tokenizer"),
)


@dataclass(frozen=True)
class Plan:
    """Everything that is settled before a runtime starts. ``models`` names each role's model.

    ``lossless_layer`` says whether the lossless mode, which can do without, has the token layer too; ``program`` is
    what answers in place of the mode's own.
    """

    deployment: Deployment
    models: dict[str, str]
    lookahead: Lookahead
    sampling: Sampling
    limits: Limits
    judge_prompt: str
    lossless_layer: bool = False
    program: str = ""

    def layered(self, mode: str) -> bool:
        """Whether the runtimes have their token layer in this mode."""
        if (given := MODES[mode].token_layer) is not None:
            return given
        has_one = any(runtime.token_layer.on for runtime in self.deployment.runtimes.values())
        return self.lossless_layer or (MODES[mode].adaptive and has_one)

    def roles(self, mode: str) -> list[Role]:
        """The roles that a mode needs."""
        if not MODES[mode].ahead:
            return ["target"]
        asked = verifier_registry.asks(MODES[mode].lookahead(self.lookahead).verifier)
        return [role for role in ROLES if role != "judge" or (role in asked and role in self.models)]

    def config(self, mode: str, **more: Any) -> dict[str, Any]:
        """What a record says about how it was made, and what a resumed run must have in common with it."""
        ahead, roles = MODES[mode].ahead, self.roles(mode)
        look = MODES[mode].lookahead(self.lookahead)
        program = {"program": self.program} if self.program else {}
        return {
            **more,
            **program,
            "mode": mode,
            "runtimes": {role: self._runtime(role, mode) for role in roles if role in self.models},
            "sampling": MODES[mode].sampling(self.sampling).to_dict(),
            "limits": self.limits.to_dict(),
            "lookahead": look.to_dict() if ahead else None,
            "judge_prompt": self.judge_prompt if "judge" in roles else None,
        }

    def lean(self, *verifiers: str) -> bool:
        """Whether all code that answers in this process is ours and runs no model; ``verifiers`` may be asked too."""
        outside = bool(self.program) and not program_registry.parse(self.program).ours
        return not outside and not any(map(verifier_registry.runs_models, (self.lookahead.verifier, *verifiers)))

    def server_sets(self, modes: Sequence[str]) -> list[list[str]]:
        """Modes that can share their servers, in order: speculation is set when a server starts."""
        sets: dict[bool, list[str]] = {}
        for mode in modes:
            sets.setdefault(self.layered(mode), []).append(mode)
        return list(sets.values())

    def needed(self, modes: Collection[str], answers: int = 1) -> Deployment:
        """The runtimes that the modes of one set use, with room for this number of answers at a time."""
        roles: set[Role] = {role for mode in modes for role in self.roles(mode)}
        shared = {role: owner for role, owner in self.deployment.shared.items() if role in roles}
        owners = {shared.get(role, role) for role in roles}
        runtimes = {
            owner: self._sized(runtime, [r for r in roles if shared.get(r, r) == owner], modes, answers)
            for owner, runtime in self.deployment.runtimes.items()
            if owner in owners
        }
        return self.deployment.replace(runtimes=runtimes, shared=shared)

    def _sized(self, runtime: Runtime, roles: Collection[Role], modes: Collection[str], answers: int) -> Runtime:
        if runtime.url:
            return runtime
        if not any(self.layered(mode) for mode in modes):
            runtime = runtime.replace(token_layer=TokenLayer())
        slots = answers * self.branches(roles, modes) + policy.SPARE * len(roles)
        return runtime.replace(max_running_requests=runtime.max_running_requests or slots)

    def branches(self, roles: Collection[Role], modes: Collection[str]) -> int:
        """The most requests that one answer can have in flight on a runtime which plays these roles."""
        if not any(MODES[mode].ahead for mode in modes):
            return 1
        asking = [*roles, *self._asking(modes)] if "target" in roles else roles
        return sum(policy.in_flight(self.lookahead, role) for role in asking)

    def _asking(self, modes: Collection[str]) -> list[Role]:
        """A verifier may ask the target: as many requests as a judge would have."""
        looks = [MODES[mode].lookahead(self.lookahead) for mode in modes if MODES[mode].ahead]
        return ["judge"] if any("target" in verifier_registry.asks(look.verifier) for look in looks) else []

    def shapes(self, modes: Collection[str]) -> list[str]:
        """Models that the modes use and that have random weights."""
        named = {self.models[role] for mode in modes for role in self.roles(mode) if role in self.models}
        layers = [runtime.token_layer for runtime in self.needed(modes).runtimes.values()]
        named |= {layer.draft_model for layer in layers}
        return sorted({shape for model in named if (shape := shapes.name_of(model))})

    def placement(self) -> dict[str, Any]:
        """Where each role runs."""
        found = {}
        for role in self.models:
            runtime = self.deployment.runtime(role)
            assert runtime is not None
            table = {key: value for key, value in runtime.to_dict().items() if key in PLACEMENT and value}
            found[role] = {**table, "url": _without_secrets(runtime.url)} if runtime.url else table
        return found

    def _runtime(self, role: str, mode: str) -> dict[str, Any]:
        runtime = self.deployment.runtime(role)
        assert runtime is not None
        if runtime.url:
            return {"model": self.models[role]}
        if not self.layered(mode):
            runtime = runtime.replace(token_layer=TokenLayer())
        table = {key: value for key, value in runtime.to_dict().items() if key not in PLACEMENT}
        return {**table, "model": self.models[role]}


def check(plan: Plan, mode: str) -> None:
    """What is clear before a server starts.

    Raises:
        ConfigError: the mode lacks a role, or there is no such verifier or judge's prompt.
    """
    if plan.program:
        program_registry.parse(plan.program)
    if not MODES[mode].ahead:
        return
    if "draft" not in plan.models:
        raise ConfigError("lookahead needs a draft model", hint="give --draft MODEL|URL, or --mode autoregressive")
    look = MODES[mode].lookahead(plan.lookahead)
    judged = verifier_registry.needs_judge(look.verifier)
    if judged and "judge" not in plan.models:
        raise ConfigError(
            "the judge verifier needs a judge model",
            hint="give --judge MODEL|URL (--judge target shares the target), or --verifier exact",
        )
    if judged and plan.judge_prompt not in JUDGE_PROMPTS:
        raise ConfigError(f"no judge prompt is called {plan.judge_prompt!r}", hint=f"one of {', '.join(JUDGE_PROMPTS)}")


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
