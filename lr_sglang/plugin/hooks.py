"""What the token layer `fed` changes in SGLang, through its own HookRegistry."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterable
from pkgutil import resolve_name

from lr_sglang.plugin.feeding import FedLayer
from lr_sglang.sglang_api import internal_state, release

_SRT = "sglang.srt"
_SCHEDULER = f"{_SRT}.managers.scheduler.Scheduler"
_WORKER = f"{_SRT}.speculative.ngram_worker.NGRAMWorker"

LAYER = FedLayer()  # of this process
logger = logging.getLogger(__name__)


def install() -> None:
    """Register all hooks; SGLang applies them when every plugin has been called.

    A release that is not tested gets the one that says so only: the server goes on without the
    layer.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    main = multiprocessing.parent_process() is None
    HookRegistry.register(internal_state.STATE, LAYER.tell, HookType.AFTER)
    if not release.is_tested(release.version()):
        LAYER.refused = f"SGLang {release.version()} is not tested; {release.advice()}"
        if main:
            logger.error("lr-sglang: token layer fed is refused: %s", LAYER.refused)
        return
    HookRegistry.register(f"{_SCHEDULER}.add_external_corpus", LAYER.keep, HookType.AROUND)
    HookRegistry.register(f"{_WORKER}._prepare_draft_tokens", LAYER.prepare, HookType.AROUND)
    HookRegistry.register(f"{_WORKER}.clear_cache_pool", LAYER.clear, HookType.AFTER)
    if main:  # the others have no HTTP, and would import it
        from lr_sglang.plugin import route

        http = f"{_SRT}.entrypoints.http_server.launch_server"
        HookRegistry.register(http, route.add_route, HookType.BEFORE)


def need(names: Iterable[str]) -> None:
    """Imports everything that is hooked, which takes seconds that a tested release need not spend.

    Raises:
        SystemExit: this SGLang lacks one; it would only log that, and go on without.
    """
    for name in names:
        try:
            resolve_name(name)
        except (ImportError, AttributeError) as error:
            why = f"this SGLang has no {name}; {release.advice()}"
            raise SystemExit(f"lr-sglang: {why}") from error
