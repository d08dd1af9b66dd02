"""Adds the class of the prefix cache to ``/server_info`` of a SGLang server."""

from __future__ import annotations

from typing import Any

CACHE_FIELD = "prefix_cache"
STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"


def plugin() -> None:
    """Entry point `sglang.srt.plugins`: registers the hook, which SGLang applies after
    all plugins.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(STATE, name_prefix_cache, HookType.AFTER)


def name_prefix_cache(result: Any, scheduler: Any, *_: object) -> None:
    """Runs after Scheduler.get_internal_state; adds the class of the cache, and that of its tree if
    they differ.
    """
    tree = scheduler.tree_cache
    core = getattr(tree, "tree_core", None)
    result.internal_state[CACHE_FIELD] = type(tree).__name__ + (
        f" ({type(core).__name__})" if core is not None else ""
    )
