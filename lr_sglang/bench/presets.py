"""What fills the options of a benchmark: the paper's settings (section 4), or random weights.

With random weights servers and shapes are real, and texts mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lr_sglang.api.configuration import Plan
from lr_sglang.bench import servers
from lr_sglang.config import ROLES
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES
from lr_sglang.runtimes import launched
from lr_sglang.runtimes.placement import gpus, shapes

LARGE = ("qwen3-32b", "qwen3-1.7b", "qwen2.5-7b")  # the paper's pair and judge; together on one GPU of 141 GB
SMALL = ("pocket-target", "pocket-draft", "pocket-judge")
ALPHA = "0.63"
# Steps have one length: a model of random weights hardly ever ends one by itself. Any of its tokens will do, so that no
# server sorts a vocabulary for each.
DEFAULTS = {
    "max_step_tokens": 32,
    "max_tokens": 512,
    "temperature": 0.6,
    "top_p": 1.0,
    "top_k": -1,
    "limit": 4,
    "half_sentence_guard": False,
}


@dataclass(frozen=True)
class Preset:
    """What a table of the paper was measured with.

    Attributes:
        samples: of each question; ``fewer`` has the tasks with another number.
        options: as the command line has them.
        most_tokens: of an answer, by what stands in the target's name; the first that does counts.
        deployments: the paper's pairs, as they come with the package.
    """

    tasks: tuple[str, ...]
    modes: tuple[str, ...]
    samples: int
    fewer: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    most_tokens: tuple[tuple[str, int], ...] = ()
    deployments: tuple[str, ...] = ()

    def max_tokens(self, target: str) -> int:
        """Tokens of an answer, for a target of that name."""
        return next(tokens for name, tokens in self.most_tokens if name in target.lower())


PRESETS = {
    "table1": Preset(
        tasks=("aime24", "amc23", "gsm8k", "humaneval", "gpqa-diamond", "mt-bench", "livecodebench"),
        modes=("autoregressive", "lookahead", "sd", "lookahead+sd"),
        samples=16,
        fewer={"livecodebench": 8},
        # Qwen3's top_k of 20 and min_p of 0 come from its family (cli/settings.py).
        options={"temperature": 0.6, "top_p": 0.95, "max_step_tokens": 100, "depth": 6, "schedule": "async"},
        most_tokens=(("qwen3", 37 * 1024), ("", 32 * 1024)),
        deployments=("deepseek-4gpu", "qwen3-4gpu"),
    )
}


def with_random_weights(given: dict[str, Any]) -> dict[str, Any]:
    """The options with those of such a benchmark in them.

    Raises:
        ConfigError: options that say otherwise.
    """
    if wrong := [name for name in ("deployment", "target", "draft", "judge", "verifier") if given[name]]:
        raise ConfigError(f"--{wrong[0]} and --dummy-weights say different things", hint="--shapes TARGET,DRAFT,JUDGE")
    made = {**given, **{name: value for name, value in DEFAULTS.items() if given[name] is None}}
    layered = False
    if given["attach"]:
        if wrong := [name for name in ("shapes", "flag") if given[name]]:
            raise ConfigError(f"--{wrong[0]}: the servers of --attach have theirs", hint="leave it out")
        layered = launched.find(given["attach"]).layered
    else:
        made |= {role: shapes.PREFIX + name for role, name in zip(ROLES, _names(given["shapes"]), strict=True)}
    made["verifier"] = "oracle"
    made["modes"] = given["modes"] or (("sd", "lookahead+sd") if layered else ("autoregressive", "lookahead"))
    if set(made["modes"]) == set(MODES):  # all that there are
        made["modes"] = tuple(name for name in made["modes"] if not MODES[name].lossless)
    if "lossless" in made["modes"]:
        raise ConfigError("--dummy-weights: two models of random weights never write the same, which lossless asks for")
    if given["alpha"] or not any(text.startswith(("alpha=", "verifier=")) for text in given["sweep"]):
        made["sweep"] = (*given["sweep"], f"alpha={given['alpha'] or ALPHA}")
    return made


def _names(asked: str | None) -> list[str]:
    """Shapes of target, draft and judge."""
    default = LARGE if gpus.visible() else SMALL
    names = [name.strip().removeprefix(shapes.PREFIX) for name in (asked or ",".join(default)).split(",")]
    if len(names) != len(ROLES) or set(names) - set(shapes.shapes()):
        raise ConfigError(f"--shapes {asked}: give three of {', '.join(shapes.shapes())}")
    return names


def prepared(plan: Plan, given: Sequence[str] = ()) -> Plan:
    """With a place on this machine's GPUs for every role that is to be started, and with these flags.

    Raises:
        ConfigError: they do not fit, or a role that runs already has weights that mean something.
    """
    if running := [role for role, runtime in plan.deployment.runtimes.items() if runtime.url]:
        if real := [role for role in running if not shapes.is_shape(plan.models[role])]:
            raise ConfigError(f"--dummy-weights: {plan.models[real[0]]} has real ones", role=real[0])
        return plan
    flagged = servers.flagged(plan.deployment, given)
    return replace(plan, deployment=servers.placed(flagged))
