"""What runs inside SGLang's servers, on a CPU and on a GPU.

SGLang loads this package by itself, in every process of a server, through an entry point of our
distribution. It needs nothing but SGLang and what SGLang brings, and does nothing unless
LR_SGLANG_FED=1 is set. `lr_sglang.cpu` is what only servers on a CPU need.
"""

import os

from lr_sglang.sglang_api.lines import SWITCH


def enabled() -> bool:
    """True where the token layer `fed` is turned on."""
    return os.environ.get(SWITCH, "").strip().lower() in ("1", "true")


def plugin() -> None:
    """Entry point `sglang.srt.plugins`: install the hooks."""
    if enabled():
        from lr_sglang.plugin import hooks

        hooks.install()
