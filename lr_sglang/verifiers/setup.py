"""The argument from which verifiers are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lr_sglang.errors import ConfigError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.judge import PROMPTS, JudgePrompt


@dataclass(frozen=True)
class Setup:
    """The argument of a verifier's ``make``. A verifier that asks another one passes it on to
    ``lr.make_verifier``.

    Attributes:
        roles: the runtimes of the deployment, by role.
        judge_prompt: name of the prompt for the deployment's judge; empty for the paper's.
        name: the value of ``--verifier``, such as ``likelihood:-0.3`` or ``rule.py:Length:5``.
        argument: the text after the name: ``-0.3``, ``5``; empty if there is none.
    """

    roles: Mapping[str, RuntimeBackend]
    judge_prompt: str
    name: str = ""
    argument: str = ""

    def backend(self, role: str) -> RuntimeBackend:
        """The runtime of a role.

        Raises:
            ConfigError: the deployment has none.
        """
        if role not in self.roles:
            hint = f"give --{role} MODEL|URL, or use --verifier exact"
            raise ConfigError(f"the {self.name} verifier needs a {role} runtime", hint=hint)
        return self.roles[role]

    def prompt(self) -> JudgePrompt:
        """The prompt of the judge.

        Raises:
            ConfigError: there is no such prompt.
        """
        name = self.judge_prompt or "paper"
        if name not in PROMPTS:
            raise ConfigError(
                f"no judge prompt is called {name!r}", hint=f"one of {', '.join(PROMPTS)}"
            )
        return PROMPTS[name]
