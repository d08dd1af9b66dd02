"""Presets for the options of a benchmark: the paper's settings (section 4), or random weights.

With random weights the servers and model sizes are real, but the texts have no meaning.
"""

from __future__ import annotations

from typing import Any

from lr_sglang.config import ROLES
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES
from lr_sglang.runtimes import launched, load_deployment
from lr_sglang.runtimes.placement import gpus, models
from lr_sglang.runtimes.placement.memory import fits

# the paper's pair and judge; together on one GPU of 141 GB
LARGE = ("qwen3-32b", "qwen3-1.7b", "qwen2.5-7b")
POCKET_MODELS = ("pocket-target", "pocket-draft", "pocket-judge")
ALPHA = "0.63"  # share of steps to accept, if no sweep says
# All steps have the maximum length, because a model with random weights rarely ends one. Tokens are
# drawn from the whole vocabulary, which saves sorting it for each token.
DEFAULTS = {
    "max_step_tokens": 32,
    "max_tokens": 512,
    "temperature": 0.6,
    "top_p": 1.0,
    "top_k": -1,
    "limit": 4,
    "half_sentence_guard": False,
}


# The paper's Table 1. Qwen3's top_k of 20 and min_p of 0 come from its family (runtimes/advice.py).
TABLE1: dict[str, Any] = {
    "task": ("aime24", "amc23", "gsm8k", "humaneval", "gpqa-diamond", "mt-bench", "livecodebench"),
    "modes": ("autoregressive", "lookahead", "sd", "lookahead+sd"),
    "temperature": 0.6,
    "top_p": 0.95,
    "max_step_tokens": 100,
    "depth": 6,
    "schedule": "async",
}


# What is measured for a file of figures, in ten minutes: the modes on the pocket models in bodies
# that fit. FlashInfer would compile for minutes at its first use.
FIGURES: dict[str, Any] = {
    "modes": ("autoregressive", "lookahead", "lossless", "sd", "lookahead+sd"),
    "temperature": 0.6,
    "limit": 8,
}
BODIES = ("pocket-1gpu", "pocket-1gpu-80gb", "pocket-1gpu-24gb")
ATTENTION = {"attention-backend": "triton"}


def for_figures(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a benchmark, completed for a file of figures."""
    made = {**given, **{n: value for n, value in FIGURES.items() if given.get(n) in (None, ())}}
    if any(given[name] for name in ("deployment", "attach", "target", "dummy_weights")):
        return made
    free = [gpu.free for gpu in gpus.visible()]
    fitting = (name for name in BODIES if free and fits(load_deployment(name), free))
    made["deployment"] = next(fitting, "pocket-body")
    if made["deployment"] in BODIES:
        asked = given.get("option") or {}
        runtimes = {role: asked.get("runtimes", {}).get(role, {}) for role in ROLES}
        for role, one in runtimes.items():
            runtimes[role] = {**one, "extra": {**ATTENTION, **one.get("extra", {})}}
        made["option"] = {**asked, "runtimes": runtimes}
    return made


def paper_samples(task: str) -> int:
    """Answers per question in the paper's table."""
    return 8 if task == "livecodebench" else 16


def paper_tokens(target: str) -> int:
    """Maximum tokens of an answer in the paper's table, for a target of that name."""
    return (37 if "qwen3" in target.lower() else 32) * 1024


def with_random_weights(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a benchmark, completed for random weights.

    Raises:
        ConfigError: an option contradicts them.
    """
    if wrong := [
        name for name in ("deployment", "target", "draft", "judge", "verifier") if given[name]
    ]:
        raise ConfigError(
            f"--{wrong[0]} and bench.dummy_weights say different things",
            hint="-o bench.shapes=TARGET,DRAFT,JUDGE",
        )
    made = {**given, **{name: value for name, value in DEFAULTS.items() if given.get(name) is None}}
    layered = False
    if given["attach"]:
        layered = launched.find_launched(given["attach"]).layered
    else:
        made |= {
            role: models.SHAPE + name
            for role, name in zip(ROLES, _names(given["shapes"]), strict=True)
        }
    made["modes"] = given["modes"] or (
        ("sd", "lookahead+sd") if layered else ("autoregressive", "lookahead")
    )
    if set(made["modes"]) == set(MODES):  # all modes: without the one that cannot work
        made["modes"] = tuple(name for name in made["modes"] if not MODES[name].lossless)
    if "lossless" in made["modes"]:
        raise ConfigError(
            "bench.dummy_weights: lossless needs equal texts, which models with random weights "
            "never write"
        )
    if not any(MODES[name].judged for name in made["modes"]):
        return made
    made["verifier"] = "oracle"
    if not any(text.startswith(("alpha=", "verifier=")) for text in given["sweep"]):
        made["sweep"] = (*given["sweep"], f"alpha={ALPHA}")
    return made


def _names(asked: str | None) -> list[str]:
    """Shapes of target, draft and judge."""
    default = LARGE if gpus.visible() else POCKET_MODELS
    names = [
        name.strip().removeprefix(models.SHAPE) for name in (asked or ",".join(default)).split(",")
    ]
    if len(names) != len(ROLES) or set(names) - set(models.shapes()):
        raise ConfigError(f"bench.shapes {asked}: give three of {', '.join(models.shapes())}")
    return names
