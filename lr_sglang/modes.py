"""The modes: the four of the reference code, ``auto``, and ``lossless``, which gives the target's
own text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lr_sglang.config import FED, Lookahead
from lr_sglang.errors import ConfigError


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

    def check_fed(self) -> None:
        """Raises ``ConfigError`` if the mode has no use for a target with the token layer ``fed``:
        ``sd`` is SGLang's own speculation, with which the others are compared.
        """
        if self.token_layer and not self.ahead:
            raise ConfigError(
                f"mode {self.name}: the target's token layer is {FED}, which verifies what the "
                "draft writes",
                hint="--mode lossless, which gives the same text; or another --token-layer",
            )

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
