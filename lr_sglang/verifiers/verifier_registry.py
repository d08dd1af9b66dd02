"""The names that ``--verifier`` takes, their arguments, the runtimes that they ask, and how a
verifier is made. Imports SGLang only where a verifier is made.

    NAME[:ARGUMENT]           judge, exact, random:0.6, embedding:0.95, score:7, likelihood:-0.3,
                              cascade:A,B, ...
    FILE.py:CLASS[:ARGUMENT]  a verifier from a file
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from lr_sglang import plugin_files
from lr_sglang.config import Role
from lr_sglang.errors import ConfigError, LookaheadError, SetupError
from lr_sglang.plugin_files import Named

if TYPE_CHECKING:  # they import SGLang
    from lr_sglang.algorithm.inquiry import Verifier
    from lr_sglang.frontend.backend import RuntimeBackend
    from lr_sglang.programs.judge import JudgePrompt

# Name -> the roles that it asks; for a cascade, see ``asks``. The class is ``Name`` in ``name.py``
# (``oracle`` is in ``random.py``).
ASKS: dict[str, tuple[Role, ...]] = {
    "judge": ("judge",),
    "exact": (),
    "random": (),
    "oracle": ("judge",),
    "embedding": (),
    "score": ("target",),
    "likelihood": ("target",),
    "cascade": (),
}
VERIFIER_NAMES = tuple(ASKS)
MODEL = "sentence-transformers/all-mpnet-base-v2"  # of the paper's ablation (section 4.3)


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
        """The prompt of the judge."""
        from lr_sglang.programs.judge import PROMPTS

        return PROMPTS[self.judge_prompt or "paper"]


@dataclass(frozen=True)
class CascadeStage:
    """A stage of a cascade. It decides if the score passes a limit (None: it has none); else the
    next stage does.
    """

    verifier: str
    reject_below: float | None = None
    accept_above: float | None = None

    def decides(self, score: float | None) -> bool | None:
        """Whether the stage accepts a verdict with this score; None if it does not decide."""
        if score is not None and self.accept_above is not None and score >= self.accept_above:
            return True
        return (
            False
            if score is not None and self.reject_below is not None and score < self.reject_below
            else None
        )


def parse_verifier(text: str) -> Named:
    """The parts of ``--verifier``, checked without importing the verifier.

    Raises:
        ConfigError: there is no such verifier, or it takes no such argument.
        SetupError: it needs a package that is not installed.
    """
    found = plugin_files.checked_name("verifier", text, VERIFIER_NAMES, "FILE.py:CLASS")
    if not found.file:
        _check(found.name, found.argument or "")
    return found


def make_verifier(name: str, setup: Setup) -> Verifier:
    """Makes the verifier that ``--verifier`` calls ``name``.

    Args:
        setup: the deployment's setup; its name and argument are replaced.

    Raises:
        ConfigError: there is no such verifier, or it lacks its runtime.
        SetupError: it needs a package that is not installed.
    """
    chosen = parse_verifier(name)
    setup = dataclasses.replace(setup, name=name, argument=chosen.argument or "")
    if chosen.file:
        return _outside(chosen, setup)
    file = "random" if chosen.name == "oracle" else chosen.name
    module = importlib.import_module(f"lr_sglang.verifiers.{file}")
    made: Verifier = getattr(module, chosen.name.capitalize()).make(setup)
    return made


def _outside(chosen: Named, setup: Setup) -> Verifier:
    """A verifier from a file, by its ``make(setup)`` if it has this method, else by
    calling the class.
    """
    from lr_sglang.algorithm.inquiry import Guarded

    try:
        found = plugin_files.find(chosen.file, chosen.name)
        arguments = [setup.argument] if setup.argument else []
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


def _all(text: str) -> list[Named]:
    """A verifier, or the stages of a cascade."""
    chosen = parse_verifier(text)
    if _is(chosen, "cascade"):
        return [parse_verifier(stage.verifier) for stage in stages(chosen.argument or "")]
    return [chosen]


def _is(chosen: Named, name: str) -> bool:
    return not chosen.file and chosen.name == name


def asks(text: str) -> frozenset[Role]:
    """The roles that a verifier asks. One that is not built in may ask target and judge."""
    any_of: tuple[Role, ...] = ("target", "judge")
    return frozenset(
        role for one in _all(text) for role in (any_of if one.file else ASKS[one.name])
    )


def needs_judge(text: str) -> bool:
    """Whether a verifier requires a judge runtime."""
    return not parse_verifier(text).file and "judge" in asks(text)


def follows_judge(text: str) -> bool:
    """Whether a verifier's verdicts may be the judge's own, which those of ``oracle`` are not."""
    return not _is(parse_verifier(text), "oracle") and "judge" in asks(text)


def runs_models(text: str) -> bool:
    """Whether a verifier may run a model in this process, as one that is not built in may."""
    return any(one.file or one.name == "embedding" for one in _all(text))


def _check(kind: str, argument: str) -> None:
    if kind in ("judge", "exact") and argument:
        raise ConfigError(f"no verifier is called '{kind}:{argument}'", hint=f"--verifier {kind}")
    if kind in ("random", "oracle", "score"):
        parse_number(kind, argument)
    elif kind == "embedding":
        embedding(argument)
        if find_spec("sentence_transformers") is None:
            raise no_embedding()
    elif kind == "likelihood":
        likelihood(argument)
    elif kind == "cascade" and any(
        _is(parse_verifier(stage.verifier), "cascade") for stage in stages(argument)
    ):
        raise ConfigError("a cascade has no cascade among its stages")


def no_embedding() -> SetupError:
    """The error for a missing package sentence-transformers."""
    hint = "pip install 'lr-sglang[embedding]', or take another verifier"
    return SetupError("the embedding verifier needs the package sentence-transformers", hint=hint)


# Meaning of the number after a verifier's colon, its default, minimum and maximum.
_NUMBERS = {
    "random": ("0.5", 0.0, 1.0),
    "oracle": ("0.5", 0.0, 1.0),
    "score": ("7", 0.0, 9.0),
    "embedding": ("0.95", -1.0, 1.0),
    "likelihood": ("-0.3", -math.inf, 0.0),
    "likelihood:min": ("-3", -math.inf, 0.0),
}


def parse_number(kind: str, text: str) -> float:
    """Parses the threshold or the share of a verifier; its default if ``text`` is empty.

    Raises:
        ConfigError: ``text`` is no number, or out of range.
    """
    usual, low, high = _NUMBERS[kind]
    try:
        value = float(text or usual)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        what = "acceptance rate" if kind in ("random", "oracle") else "threshold"
        span = f"{low:g} to {high:g}" if low > -math.inf else f"at most {high:g}"
        raise ConfigError(
            f"{kind}: {text!r} is no {what} ({span})", hint=f"for example {kind}:{usual}"
        )
    return value


def embedding(argument: str) -> tuple[float, str]:
    """Threshold and model of ``[THRESHOLD][:MODEL]``; the paper's are .85 and .95 of
    all-mpnet-base-v2.
    """
    threshold, _, model = argument.partition(":")
    return parse_number("embedding", threshold), model or MODEL


def likelihood(argument: str) -> tuple[float, Literal["mean", "min"]]:
    """Threshold and ``mean`` or ``min`` of ``[mean|min][:][THRESHOLD]``."""
    word, _, rest = argument.partition(":")
    if word == "min":
        return parse_number("likelihood:min", rest), "min"
    return parse_number("likelihood", rest if word == "mean" else argument), "mean"


def stages(argument: str) -> tuple[CascadeStage, ...]:
    """The stages, in order, of ``cascade:A,B,...``; the last one always decides.

    A stage ``VERIFIER@LOW..HIGH`` decides where its score is below ``LOW`` (rejected) or at least
    ``HIGH`` (accepted); either may be left out. Without them it is asked, and does not decide.

    Raises:
        ConfigError: there are fewer than two stages, or a threshold is no number.
    """
    *earlier, last = [name.strip() for name in argument.split(",")]
    if not earlier or not all([*earlier, last]):
        hint = "cascade:likelihood:min@-8..-0.5,judge"
        raise ConfigError("a cascade has at least two stages", hint=hint)
    return (*map(_stage, earlier), CascadeStage(last))


def _stage(text: str) -> CascadeStage:
    name, _, bounds = text.rpartition("@") if "@" in text else (text, "", "..")
    try:
        low, high = (float(bound) if bound else None for bound in bounds.split(".."))
    except ValueError:
        hint = f"{name}@LOW..HIGH: rejected below LOW, accepted from HIGH on; either may be empty"
        raise ConfigError(f"{text}: {bounds!r} is no range of scores", hint=hint) from None
    if low is not None and high is not None and not low <= high:
        raise ConfigError(f"{text}: the first threshold is above the second")
    return CascadeStage(name, low, high)
