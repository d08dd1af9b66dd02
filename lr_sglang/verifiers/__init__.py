"""Who decides whether two versions of a step agree. One file each; ``make`` finds them by name."""

from __future__ import annotations

from collections.abc import Mapping

from lr_sglang.backend import RuntimeBackend
from lr_sglang.dsl import Verifier
from lr_sglang.errors import ConfigError
from lr_sglang.verifiers.exact import Exact
from lr_sglang.verifiers.judge import Judge
from lr_sglang.verifiers.random import Random

NAMES = ("judge", "exact", "random")


def make(name: str, roles: Mapping[str, RuntimeBackend], judge_prompt: str = "paper") -> Verifier:
    """The verifier called ``name``; ``random:0.6`` is the oracle that accepts that share.

    Raises:
        ConfigError: there is no such verifier, or the deployment lacks the runtime it needs.
    """
    kind, _, argument = name.partition(":")
    if kind == "random":
        return Random.parse(argument or "0.5")
    if name == "exact":
        return Exact()
    if name == "judge":
        if "judge" not in roles:
            raise ConfigError(
                "the judge verifier needs a judge runtime", hint="give --judge MODEL|URL, or use --verifier exact"
            )
        return Judge.of(roles["judge"], judge_prompt)
    raise ConfigError(f"no verifier is called {name!r}", hint=f"one of {', '.join(NAMES)}")
