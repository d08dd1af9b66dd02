"""What we add to the state that a server of SGLang tells at ``/server_info``: the prefix cache that it has chosen."""

from __future__ import annotations

from typing import Any

from lr_sglang.sglang_api import server

FIELD = "prefix_cache"


def plugin() -> None:
    """Entry point `sglang.srt.plugins`: register the hook; SGLang applies it when every plugin has been called."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(server.STATE.name, name_prefix_cache, HookType.AFTER)


def name_prefix_cache(result: Any, scheduler: Any, *_: object) -> None:
    """After Scheduler.get_internal_state: the class of the cache, and of its tree where that is another one."""
    tree = scheduler.tree_cache
    core = getattr(tree, "tree_core", None)
    result.internal_state[FIELD] = type(tree).__name__ + (f" ({type(core).__name__})" if core is not None else "")
