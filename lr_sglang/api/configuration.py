"""The complete settings of answers, checked, and the servers that they need."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import urlsplit

from lr_sglang.algorithm import policy
from lr_sglang.config import FED, ROLES, Deployment, Lookahead, Role, Runtime, TokenLayer
from lr_sglang.errors import ConfigError
from lr_sglang.modes import DIFFERENT, MODES, Able, check_mode
from lr_sglang.user_programs import program_registry
from lr_sglang.verifiers import verifier_registry

# Settings of a runtime that do not change its answers: its place and its resources.
PLACEMENT = (
    "url",
    "port",
    "gpus",
    "device",
    "tensor_parallel",
    "data_parallel",
    "max_running_requests",
    "timeout",
    "api_key_env",
    "memory_fraction",
    "tokenizer",
)


# Of a plan for runtimes that are given as backends.
GIVEN = Deployment(name="given", runtimes={"target": Runtime(url="http://given")})


def _is_outside(program: str) -> bool:
    """Whether a program is given that does not come with the package."""
    return bool(program) and not program_registry.parse_program(program).ours


def _may_ask_judge(program: str) -> bool:
    """Whether a program may ask the judge: one from outside, or by an option, as ``by=judge``."""
    options = program_registry.parse_program(program).options if program else {}
    return _is_outside(program) or "judge" in options.values()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All settings of answers, complete before a runtime starts.

    Attributes:
        deployment: the runtimes, and the final settings of the answers.
        models: the model of each role.
        modes: the requested modes.
        program: replaces the mode's own program; in a mode without lookahead, the target alone
            generates for it.
        lossless_layer: whether to use the token layer in the lossless mode too.
        running_layer: the token layer of a target that runs already, as of ``modes.Able``.
    """

    deployment: Deployment = GIVEN
    models: dict[str, str] = field(default_factory=dict)
    modes: tuple[str, ...] = ()
    program: str = ""
    lossless_layer: bool = False
    running_layer: str | None = None

    def with_settings(self, **settings: Any) -> Self:
        """A copy whose deployment has these fields."""
        return replace(self, deployment=self.deployment.replace(**settings))

    def lookahead(self, mode: str) -> Lookahead:
        """The settings of lookahead, as a mode uses them."""
        return MODES[mode].lookahead(self.deployment.lookahead)

    def layered(self, mode: str) -> bool:
        """Whether the runtimes use their token layer in this mode."""
        target = self.deployment.runtimes["target"]
        if target.url and self.running_layer is not None:
            return bool(self.running_layer)
        if (given := MODES[mode].token_layer) is not None:
            return given
        has_one = any(runtime.token_layer.on for runtime in self.deployment.runtimes.values())
        return self.lossless_layer or self.fed or (MODES[mode].adaptive and has_one)

    @property
    def fed(self) -> bool:
        """Whether the target's token layer verifies what the draft writes."""
        return self.deployment.runtimes["target"].token_layer.fed

    def layer(self, mode: str) -> str | None:
        """The target's token layer in this mode, as of ``modes.Able``."""
        target = self.deployment.runtimes["target"]
        if target.url:
            return self.running_layer
        has_one = self.layered(mode) and target.token_layer.on
        return target.token_layer.algorithm if has_one else ""

    def roles(self, mode: str) -> list[Role]:
        """The roles that a mode needs. A program may ask the judge, with any verifier."""
        if not MODES[mode].ahead:
            return ["target"]
        asked = verifier_registry.asks(self.lookahead(mode).verifier)
        judged = ("judge" in asked or _may_ask_judge(self.program)) and "judge" in self.models
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
            "sampling": self.deployment.sampling.to_dict(),
            "limits": self.deployment.limits.to_dict(),
            "lookahead": self.lookahead(mode).to_dict() if MODES[mode].ahead else None,
            "judge_prompt": self.deployment.judge_prompt if "judge" in roles else None,
        }

    def lean(self, *verifiers: str) -> bool:
        """Whether this process runs only our own code and no model, also for these
        ``verifiers``.
        """
        used = (self.deployment.lookahead.verifier, *verifiers)
        return not _is_outside(self.program) and not any(map(verifier_registry.runs_models, used))

    def needed(self, modes: Collection[str], answers: int = 1, *, spare: bool = True) -> Deployment:
        """The deployment that these modes need, with slots for ``answers`` concurrent answers.

        Args:
            spare: whether a draft that is not asked in these modes shares the target's runtime.
        """
        roles: set[Role] = {role for mode in modes for role in self.roles(mode)}
        shared = {role: owner for role, owner in self.deployment.shared.items() if role in roles}
        if spare and self.spared(modes):
            roles.remove("draft")
            shared["draft"] = "target"
        owners = {shared.get(role, role) for role in roles}
        runtimes = {
            owner: self._sized(
                runtime, [r for r in roles if shared.get(r, r) == owner], modes, answers
            )
            for owner, runtime in self.deployment.runtimes.items()
            if owner in owners
        }
        return self.deployment.replace(runtimes=runtimes, shared=shared)

    def spared(self, modes: Collection[str]) -> str:
        """Why no server is started for the draft, which is in these modes; empty if one is."""
        ours = self.deployment.runtime("draft")
        shared = ours is self.deployment.runtime("target")
        ahead = [mode for mode in modes if MODES[mode].ahead]
        if ours is None or ours.url or shared or not ahead or any(map(self._drafts, ahead)):
            return ""
        layer = self.layer(ahead[0])
        return f"no draft is started: the token layer {layer} writes lossless answers alone"

    def _drafts(self, mode: str) -> bool:
        """Whether the draft may be asked in a mode that looks ahead: not by a lossless answer
        that the target's own token layer writes (``algorithm.ways``).
        """
        alone = MODES[mode].lossless and self.layer(mode) not in (None, "", FED, DIFFERENT)
        fixed = self.lookahead(mode).policy == "fixed"
        return not (alone and fixed) or _is_outside(self.program)

    def _sized(
        self, runtime: Runtime, roles: Collection[Role], modes: Collection[str], answers: int
    ) -> Runtime:
        if runtime.url:
            return runtime
        if not any(self.layered(mode) for mode in modes):
            runtime = runtime.replace(token_layer=TokenLayer())
        slots = answers * self.branches(roles, modes) + policy.SPARE_SLOTS * len(roles)
        return runtime.replace(max_running_requests=runtime.max_running_requests or slots)

    def branches(self, roles: Collection[Role], modes: Collection[str]) -> int:
        """The maximum number of requests of one answer in flight on a runtime with these roles."""
        looks = [self.lookahead(mode) for mode in modes if MODES[mode].ahead]
        if not looks:
            return 1
        # A verifier that asks the target sends it as many requests as a judge would get.
        asked = "target" in roles and any(
            "target" in verifier_registry.asks(look.verifier) for look in looks
        )
        requests: list[Role] = [*roles, "judge"] if asked else [*roles]
        return sum(policy.in_flight(self.deployment.lookahead, role) for role in requests)

    def placement(self) -> dict[str, Any]:
        """Where each role runs, for run.json; without user and password of a URL."""
        found = {}
        for role in self.models:
            table = {key: value for key, value in self._table(role).items() if value}
            found[role] = {key: value for key, value in table.items() if key in PLACEMENT}
            if "url" in table:
                found[role]["url"] = _without_secrets(table["url"])
        return found

    def _table(self, role: str) -> dict[str, Any]:
        runtime = self.deployment.runtime(role)
        assert runtime is not None
        return runtime.to_dict()

    def _described(self, role: str, mode: str) -> dict[str, Any]:
        table = self._table(role)
        if table["url"]:
            return {"model": self.models[role]}
        if not self.layered(mode):
            table["token_layer"] = TokenLayer().to_dict()
        table["model"] = self.models[role]
        return {key: value for key, value in table.items() if key not in PLACEMENT}

    def checked(self, *modes: str) -> Self:
        """Checks that the plan can answer in these modes (default: its own), and returns it.

        Raises:
            ConfigError: a mode lacks a role, the target's server has another token layer, or there
                is no such verifier or program.
        """
        if self.program:
            program_registry.parse_program(self.program)
        for mode in modes or self.modes:
            judged = MODES[mode].judged
            needs_judge = judged and verifier_registry.needs_judge(self.lookahead(mode).verifier)
            check_mode(MODES[mode], Able(self.models, self.layer(mode), needs_judge))
        return self

    def on_one_set(self, hint: str) -> Self:
        """Checks that the same servers can do all its modes, and returns it.

        Raises:
            ConfigError: some need a token layer, and some none; the hint says what to do.
        """
        if len(set(map(self.layered, self.modes))) > 1:
            raise ConfigError(
                f"modes {', '.join(self.modes)} need different servers: a token layer is set when "
                "a server starts",
                hint=hint,
            )
        return self


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
