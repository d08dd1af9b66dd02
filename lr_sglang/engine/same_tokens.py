"""Whether a runtime means by token ids what the tokenizer that is used for it here does."""

from __future__ import annotations

from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.engine.transport import INFO_SECONDS, Transport
from lr_sglang.errors import ConfigError, LookaheadError

TEXT = "It is 7 + 12 = 19.\n\nSo f(x) has 3 roots: été, 中文, 🎉"


async def check_tokens(transport: Transport, known: Tokenizer, role: str, timeout: float = INFO_SECONDS) -> None:
    """Has the runtime tokenize a text. One that does not say how it does passes.

    Raises:
        ConfigError: its tokens are another text here.
    """
    asked = {"prompt": TEXT, "add_special_tokens": False}
    try:
        ids = tuple(map(int, (await transport.post("/tokenize", asked, timeout))["tokens"]))
    except (LookaheadError, LookupError, TypeError, ValueError):
        return
    if known.decode(ids).split() != known.decode(known.encode(TEXT, True)).split():
        hint = "name the tokenizer of the model that runs there, or start again with that model"
        raise ConfigError("it has another tokenizer than the one that is used for it here", role=role, hint=hint)
