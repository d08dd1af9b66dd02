"""What we change in any of SGLang's servers, through its own HookRegistry."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterable
from pkgutil import resolve_name
from typing import Any

from lr_sglang.plugin.feeding import Feeder
from lr_sglang.sglang_api import internal_state, release
from lr_sglang.sglang_api.plugin_protocol import SEEDS_FIELD

_SRT = "sglang.srt"
_SCHEDULER = f"{_SRT}.managers.scheduler.Scheduler"
_WORKER = f"{_SRT}.speculative.ngram_worker.NGRAMWorker"

FEEDER = Feeder()  # of this process
logger = logging.getLogger(__name__)


def install(*, fed: bool, seeds: bool) -> None:
    """Register all hooks; SGLang applies them when every plugin has been called.

    A release that is not tested gets the one that says so only: the server goes on without.

    Args:
        fed: whether the token layer `fed` is turned on.
        seeds: whether seeds are turned on; on a CPU `lr_sglang.cpu` has them.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    main = multiprocessing.parent_process() is None
    if fed:
        HookRegistry.register(internal_state.STATE, FEEDER.tell, HookType.AFTER)
    if not release.is_tested(release.version()):
        FEEDER.refused = f"SGLang {release.version()} is not tested; {release.release_advice()}"
        what = "token layer fed" if fed else "seeds"
        if main:
            logger.error("lr-sglang: %s is refused: %s", what, FEEDER.refused)
        return
    if seeds and "SGLANG_SIMULATE_ACC_LEN" not in os.environ:  # it overwrites what was verified
        _install_seeds()
    if not fed:
        return
    HookRegistry.register(f"{_SCHEDULER}.add_external_corpus", FEEDER.keep, HookType.AROUND)
    HookRegistry.register(f"{_WORKER}._prepare_draft_tokens", FEEDER.prepare, HookType.AROUND)
    HookRegistry.register(f"{_WORKER}.clear_cache_pool", FEEDER.clear, HookType.AFTER)
    if main:  # the others have no HTTP, and would import it
        from lr_sglang.plugin import route

        http = f"{_SRT}.entrypoints.http_server.launch_server"
        HookRegistry.register(http, route.add_route, HookType.BEFORE)


def _install_seeds() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from lr_sglang.plugin import seeds, verification

    made = f"{_SRT}.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch"
    sampler = f"{_SRT}.layers.sampler.Sampler._sample_from_probs"
    verifier = f"{_SRT}.speculative.eagle_utils.eagle_sample"
    HookRegistry.register(made, seeds.carry_seeds, HookType.AFTER)
    HookRegistry.register(sampler, seeds.sample_with_seeds, HookType.AROUND)
    HookRegistry.register(verifier, verification.verify_with_seeds, HookType.AROUND)
    HookRegistry.register(internal_state.STATE, _tell_seeds, HookType.AFTER)
    FEEDER.draws = "seeds"


def _tell_seeds(result: Any, scheduler: Any, *_: object) -> None:
    """After Scheduler.get_internal_state: says that seeds count, where that is tested: with plain
    decoding and with the n-gram layer.
    """
    worker = scheduler.draft_worker
    result.internal_state[SEEDS_FIELD] = worker is None or hasattr(worker, "ngram_corpus")


def need(names: Iterable[str]) -> None:
    """Imports everything that is hooked, which takes seconds that a tested release need not spend.

    Raises:
        SystemExit: this SGLang lacks one; it would only log that, and go on without.
    """
    for name in names:
        try:
            resolve_name(name)
        except (ImportError, AttributeError) as error:
            why = f"this SGLang has no {name}; {release.release_advice()}"
            raise SystemExit(f"lr-sglang: {why}") from error
