"""The complete settings of answers, checked, and the servers that they need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from lr_sglang.algorithm import policy
from lr_sglang.config import (
    ROLES,
    Deployment,
    Limits,
    Lookahead,
    Role,
    Runtime,
    Sampling,
    TokenLayer,
)
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES
from lr_sglang.results.record import Record
from lr_sglang.runtimes.placement import shapes
from lr_sglang.steps.trace import StepRecord
from lr_sglang.tasks.question import Work
from lr_sglang.user_programs import program_registry
from lr_sglang.verifiers import verifier_registry

# A copy, because the defining module imports SGLang; a test compares the two.
JUDGE_PROMPTS = ("paper", "pocket")
# Settings of a runtime that do not change its answers: its place and its resources.
PLACEMENT = (
    *("url", "port", "gpus", "device", "tensor_parallel", "data_parallel", "max_running_requests"),
    *("timeout", "api_key_env", "memory_fraction", "tokenizer"),
)


def _is_outside(program: str) -> bool:
    """Whether a program is given that does not come with the package."""
    return bool(program) and not program_registry.parse(program).ours


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that all samples of a ``Runner`` share.

    Attributes:
        program: replaces the mode's own program; in a mode without lookahead, the target alone
            generates for it.
    """

    lookahead: Lookahead = field(default_factory=Lookahead)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    judge_prompt: str = "paper"
    program: str = ""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The data of one run, beside the settings.

    Attributes:
        suffix: appended to each question.
        config: the configuration that is written to the records, by mode.
        on_step: called with each step of each sample, on the event loop.
        keep: called in a thread with each record when its answer ends; returns the record that
            ``run`` yields.
    """

    suffix: str = ""
    config: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    on_step: Callable[[Work, StepRecord], None] | None = None
    keep: Callable[[Record], Record] | None = None


@dataclass(frozen=True, kw_only=True)
class Plan(Settings):
    """All settings, complete before a runtime starts.

    Attributes:
        models: the model of each role.
        modes: the requested modes.
        lossless_layer: whether to use the token layer in the lossless mode too.
    """

    deployment: Deployment
    models: dict[str, str]
    modes: tuple[str, ...] = ()
    lossless_layer: bool = False

    def layered(self, mode: str) -> bool:
        """Whether the runtimes use their token layer in this mode."""
        if (given := MODES[mode].token_layer) is not None:
            return given
        has_one = any(runtime.token_layer.on for runtime in self.deployment.runtimes.values())
        return self.lossless_layer or (MODES[mode].adaptive and has_one)

    def roles(self, mode: str) -> list[Role]:
        """The roles that a mode needs. A program from outside may ask the judge, with
        any verifier.
        """
        if not MODES[mode].ahead:
            return ["target"]
        asked = verifier_registry.asks(MODES[mode].lookahead(self.lookahead).verifier)
        judged = ("judge" in asked or _is_outside(self.program)) and "judge" in self.models
        return [role for role in ROLES if role != "judge" or judged]

    def configured(self, mode: str, **more: Any) -> dict[str, Any]:
        """The configuration in the records of a mode, which a resumed run must not change."""
        roles = self.roles(mode)
        return {
            **more,
            **({"program": self.program} if self.program else {}),
            "mode": mode,
            "runtimes": {
                role: self._described(role, mode) for role in roles if role in self.models
            },
            "sampling": self.sampling.to_dict(),
            "limits": self.limits.to_dict(),
            "lookahead": MODES[mode].lookahead(self.lookahead).to_dict()
            if MODES[mode].ahead
            else None,
            "judge_prompt": self.judge_prompt if "judge" in roles else None,
        }

    def lean(self, *verifiers: str) -> bool:
        """Whether this process runs only our own code and no model, also for these
        ``verifiers``.
        """
        used = (self.lookahead.verifier, *verifiers)
        return not _is_outside(self.program) and not any(map(verifier_registry.runs_models, used))

    def server_sets(self, modes: Collection[str]) -> list[list[str]]:
        """Groups of modes that can share servers, which need a restart to turn the token layer on
        or off.
        """
        sets: dict[bool, list[str]] = {}
        for mode in modes:
            sets.setdefault(self.layered(mode), []).append(mode)
        return list(sets.values())

    def needed(self, modes: Collection[str], answers: int = 1) -> Deployment:
        """The deployment that these modes need, with slots for ``answers`` concurrent answers."""
        roles: set[Role] = {role for mode in modes for role in self.roles(mode)}
        shared = {role: owner for role, owner in self.deployment.shared.items() if role in roles}
        owners = {shared.get(role, role) for role in roles}
        runtimes = {
            owner: self._sized(
                runtime, [r for r in roles if shared.get(r, r) == owner], modes, answers
            )
            for owner, runtime in self.deployment.runtimes.items()
            if owner in owners
        }
        return self.deployment.replace(runtimes=runtimes, shared=shared)

    def _sized(
        self, runtime: Runtime, roles: Collection[Role], modes: Collection[str], answers: int
    ) -> Runtime:
        if runtime.url:
            return runtime
        if not any(self.layered(mode) for mode in modes):
            runtime = runtime.replace(token_layer=TokenLayer())
        slots = answers * self.branches(roles, modes) + policy.SPARE * len(roles)
        return runtime.replace(max_running_requests=runtime.max_running_requests or slots)

    def branches(self, roles: Collection[Role], modes: Collection[str]) -> int:
        """The maximum number of requests of one answer in flight on a runtime with these roles."""
        looks = [MODES[mode].lookahead(self.lookahead) for mode in modes if MODES[mode].ahead]
        if not looks:
            return 1
        # A verifier that asks the target sends it as many requests as a judge would get.
        asked = "target" in roles and any(
            "target" in verifier_registry.asks(look.verifier) for look in looks
        )
        more = policy.in_flight(self.lookahead, "judge") if asked else 0
        return sum(policy.in_flight(self.lookahead, role) for role in roles) + more

    def shapes(self, modes: Collection[str]) -> list[str]:
        """The models with random weights that these modes use."""
        named = {
            self.models[role] for mode in modes for role in self.roles(mode) if role in self.models
        }
        named |= {
            runtime.token_layer.draft_model for runtime in self.needed(modes).runtimes.values()
        }
        return sorted({shape for model in named if (shape := shapes.name_of(model))})

    def placement(self) -> dict[str, Any]:
        found = {}
        for role in self.models:
            table = {
                key: value for key, value in self._table(role).items() if key in PLACEMENT and value
            }
            found[role] = table | (
                {"url": _without_secrets(table["url"])} if "url" in table else {}
            )
        return found

    def _table(self, role: str) -> dict[str, Any]:
        runtime = self.deployment.runtime(role)
        assert runtime is not None
        return runtime.to_dict()

    def _described(self, role: str, mode: str) -> dict[str, Any]:
        table = {key: value for key, value in self._table(role).items() if key not in PLACEMENT}
        if self._table(role)["url"]:
            return {"model": self.models[role]}
        layer = {} if self.layered(mode) else {"token_layer": TokenLayer().to_dict()}
        return {**table, **layer, "model": self.models[role]}

    def checked(self, *modes: str) -> Self:
        """Checks that the plan can answer in these modes (default: its own), and returns it.

        Raises:
            ConfigError: a mode lacks a role, or there is no such verifier, program or judge's
                prompt.
        """
        if self.program:
            program_registry.parse(self.program)
        for mode in modes or self.modes:
            if MODES[mode].ahead:
                self._check(MODES[mode].lookahead(self.lookahead))
        return self

    def _check(self, look: Lookahead) -> None:
        if "draft" not in self.models:
            raise ConfigError(
                "lookahead needs a draft model",
                hint="give --draft MODEL|URL, or --mode autoregressive",
            )
        judged = verifier_registry.needs_judge(look.verifier)
        if judged and "judge" not in self.models:
            hint = "give --judge MODEL|URL (--judge target shares the target), or --verifier exact"
            raise ConfigError("the judge verifier needs a judge model", hint=hint)
        if judged and self.judge_prompt not in JUDGE_PROMPTS:
            hint = f"one of {', '.join(JUDGE_PROMPTS)}"
            raise ConfigError(f"no judge prompt is called {self.judge_prompt!r}", hint=hint)


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
