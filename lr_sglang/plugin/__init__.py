"""What runs inside SGLang's servers, on a CPU and on a GPU.

SGLang loads this package by itself, in every process of a server, through an entry point of our
distribution. It needs nothing but SGLang and what SGLang brings, and does nothing unless a variable
turns something on: LR_SGLANG_FED=1 the token layer `fed`, LR_SGLANG_SEEDS=1 seeds on a GPU.
`lr_sglang.cpu` is what only servers on a CPU need.
"""

import os

from lr_sglang.sglang_api.plugin_protocol import FED_SWITCH, SEEDS_SWITCH


def enabled(switch: str) -> bool:
    """True where the variable turns something on."""
    return os.environ.get(switch, "").strip().lower() in ("1", "true")


def plugin() -> None:
    """Entry point `sglang.srt.plugins`: install the hooks."""
    fed, seeds = enabled(FED_SWITCH), enabled(SEEDS_SWITCH)
    if fed or seeds:
        from lr_sglang.plugin import hooks

        hooks.install(fed=fed, seeds=seeds and not enabled("SGLANG_USE_CPU_ENGINE"))
