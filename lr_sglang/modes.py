"""The modes: the four of the reference code, ``auto``, and ``lossless``, which gives the target's
own text; and the one check of a mode against runtimes, their token layer and the verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from lr_sglang.config import FED, ROLES, Lookahead
from lr_sglang.errors import ConfigError

DIFFERENT = "not the same on all its workers"  # in place of the name of a token layer


@dataclass(frozen=True)
class Mode:
    """One way to answer.

    Attributes:
        program: ``autoregressive`` or ``lookahead``.
        token_layer: whether the runtimes use their token layer; None: as the user chooses.
        adaptive: whether measurements decide how far it looks ahead, and if at all
            (docs/policies.md).
        lossless: whether only identical steps are accepted; the answer then has the target's own
            tokens.
    """

    name: str
    program: str
    token_layer: bool | None
    adaptive: bool = False
    lossless: bool = False

    @property
    def ahead(self) -> bool:
        """Whether the mode looks ahead, and so needs a draft."""
        return self.program == "lookahead"

    @property
    def judged(self) -> bool:
        """Whether it asks the verifier that is chosen."""
        return self.ahead and not self.lossless

    def lookahead(self, look: Lookahead) -> Lookahead:
        """The settings as this mode uses them."""
        if self.adaptive:
            return look.replace(policy="adaptive")
        return look.replace(verifier="exact") if self.lossless else look


_MODES = (
    Mode("autoregressive", "autoregressive", token_layer=False),
    Mode("sd", "autoregressive", token_layer=True),
    Mode("lookahead", "lookahead", token_layer=False),
    Mode("lookahead+sd", "lookahead", token_layer=True),
    Mode("auto", "lookahead", token_layer=None, adaptive=True),
    Mode("lossless", "lookahead", token_layer=None, lossless=True),
)
MODES: Mapping[str, Mode] = {mode.name: mode for mode in _MODES}


@dataclass(frozen=True)
class Able:
    """What of runtimes decides which modes they can do.

    Attributes:
        roles: those that have a runtime.
        layer: the token layer of the target: its name, empty for none, ``DIFFERENT``; None if its
            server does not tell.
        needs_judge: whether the verifier of modes that ask one needs a judge.
    """

    roles: Collection[str] = ROLES
    layer: str | None = None
    needs_judge: bool = False


@dataclass(frozen=True)
class _Rule:
    """A reason why runtimes cannot do a mode.

    Attributes:
        why: about the mode ``{mode}`` and the token layer ``{layer}``.
        hint: empty for the modes that the runtimes can do.
    """

    holds: Callable[[Mode, Able], bool]
    why: str
    hint: str = ""
    role: str | None = None


_RULES = (
    _Rule(
        lambda mode, on: mode.ahead and "draft" not in on.roles,
        "mode {mode}: lookahead needs a draft model",
        "give --draft MODEL|URL, or --mode autoregressive",
    ),
    _Rule(
        lambda mode, on: mode.judged and on.needs_judge and "judge" not in on.roles,
        "mode {mode}: the judge verifier needs a judge model",
        "give --judge MODEL|URL (--judge target shares the target), or --verifier exact",
    ),
    _Rule(
        lambda mode, on: on.layer == DIFFERENT and mode.token_layer is not None,
        "mode {mode}: the token layer is {layer}",
        role="target",
    ),
    _Rule(
        lambda mode, on: on.layer == FED and mode.token_layer is True and not mode.ahead,
        "mode {mode}: the target's token layer is {layer}, which verifies what the draft writes",
        "--mode lossless, which gives the same text; or another --token-layer",
        role="target",
    ),
    _Rule(
        lambda mode, on: bool(on.layer) and mode.token_layer is False,
        "mode {mode}: the runtime has a token layer, {layer}",
        role="target",
    ),
    _Rule(
        lambda mode, on: on.layer == "" and mode.token_layer is True,
        "mode {mode}: the runtime has no token layer",
        "--token-layer NAME, or lr-sglang launch --with-token-layer, starts one (SGLang's own flag "
        "is --speculative-algorithm)",
        role="target",
    ),
)


def possible(on: Able) -> list[str]:
    """The modes that runtimes can do."""
    return [
        name for name, mode in MODES.items() if not any(rule.holds(mode, on) for rule in _RULES)
    ]


def check_mode(mode: Mode, on: Able) -> None:
    """Checks that runtimes can do a mode.

    Raises:
        ConfigError: they cannot.
    """
    for rule in _RULES:
        if rule.holds(mode, on):
            why = rule.why.format(mode=mode.name, layer=on.layer)
            hint = rule.hint or f"it can do {', '.join(possible(on)) or 'none of the modes'}"
            raise ConfigError(why, role=rule.role, hint=hint)


def check_verifier(modes: Collection[Mode], verifier: str, where: str = "--verifier") -> None:
    """Checks that one of the modes asks a verifier that was given by name.

    Raises:
        ConfigError: none does, so that it would have no effect.
    """
    if any(mode.judged or (mode.lossless and verifier == "exact") for mode in modes):
        return
    names = " and ".join(dict.fromkeys(mode.name for mode in modes))
    keeps = any(mode.lossless for mode in modes)
    why = "keeps only what the target itself writes, and asks no verifier"
    raise ConfigError(
        f"{where} {verifier}: mode {names} {why if keeps else 'asks no verifier'}",
        hint="leave it out, or take a mode that asks one: "
        + ", ".join(mode.name for mode in MODES.values() if mode.judged),
    )
