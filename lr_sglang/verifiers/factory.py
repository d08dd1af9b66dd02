"""Makes a verifier from its name: built in, or from a user's file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.algorithm.guarded import Guarded
from lr_sglang.algorithm.inquiry import Verifier
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.cascade import Cascade
from lr_sglang.verifiers.embedding import Embedding
from lr_sglang.verifiers.exact import Exact
from lr_sglang.verifiers.judge import Judge
from lr_sglang.verifiers.likelihood import Likelihood
from lr_sglang.verifiers.random import Oracle, Random
from lr_sglang.verifiers.score import Score
from lr_sglang.verifiers.setup import Setup

_MADE: Mapping[str, Any] = {
    one.name: one.make for one in (Judge, Exact, Random, Oracle, Embedding, Score, Likelihood)
}


def make(name: str, setup: Setup) -> Verifier:
    """Makes the verifier that ``--verifier`` calls ``name``.

    Args:
        setup: the deployment's setup; its name and argument are replaced.

    Raises:
        ConfigError: there is no such verifier, it lacks its runtime, or ``setup`` is no ``Setup``.
        SetupError: it needs a package that is not installed.
    """
    if not isinstance(setup, Setup):
        hint = "the setup that a verifier's make() is given, or lr.Setup(roles, plan.judge_prompt)"
        raise ConfigError(
            f"verifier {name}: expected a Setup, not {type(setup).__name__}", hint=hint
        )
    chosen = verifier_registry.parse(name)
    setup = dataclasses.replace(setup, name=name, argument=chosen.argument)
    if chosen.kind == "cascade":
        return Cascade.make(setup, lambda stage: make(stage, setup))
    if chosen.kind:
        made: Verifier = _MADE[chosen.kind](setup)
        return made
    return _outside(chosen, setup)


def _outside(chosen: verifier_registry.Chosen, setup: Setup) -> Verifier:
    """A verifier from a file, by its ``make(setup)`` if it has this method, else by
    calling the class.
    """
    try:
        found = plugin_files.find(chosen.file, chosen.name)
        arguments = [chosen.argument] if chosen.argument else []
        made = found.make(setup) if hasattr(found, "make") else found(*arguments)
    except LookaheadError:
        raise
    except (Exception, SystemExit) as error:  # a user's code may raise any exception
        hint = "docs/verifiers.md has an example"
        raise ConfigError(f"--verifier {setup.name}: {error!r}", hint=hint) from error
    if not callable(getattr(made, "verify", None)):
        raise ConfigError(
            f"--verifier {setup.name}: it has no verify()", hint="docs/verifiers.md has an example"
        )
    return Guarded(made, setup.name)
