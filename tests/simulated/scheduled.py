"""Runtimes whose passes are scheduled as SGLang schedules them, as ``Transport``s in this process:
``scheduled_roles`` makes backends of three servers.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from lr_sglang.config import ROLES
from lr_sglang.engine.server_facts import FedLayer, ServerFacts
from lr_sglang.engine.transport import LINE_SECONDS
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.sglang_api.plugin_protocol import Delivery
from lr_sglang.steps.branch import STREAM_TOKENS
from tests.prefixes import PrefixCache
from tests.simulated.alike import AlikeWriter
from tests.simulated.model import Simulation
from tests.simulated.runtime import body, reply
from tests.simulated.scheduler import Device, Flags, Job, Scheduler
from tests.simulated.times import Times
from tests.simulated.transport import CONTEXT, SimulatedTransport, backends

DELIVERY = 0.0025  # seconds of a delivered line, as of the spike's request path
RANDOM = 10.0  # temperature from which on no guess is right


class ScheduledTransport(SimulatedTransport):
    """One server, as a ``Transport``.

    Args:
        times: of the deployment.

    Attributes:
        scheduler: of its passes.
        cache: the prefixes that it has computed.
    """

    def __init__(self, role: str, writer: AlikeWriter, scheduler: Scheduler, times: Times) -> None:
        super().__init__(role, Simulation(writer.model), writer)
        self.steady = False
        self.scheduler, self.cache = scheduler, PrefixCache()
        self.times, self.host = times, times.host
        self._aborted: set[str] = set()
        self._open: set[str] = set()

    async def answer(
        self,
        payload: dict[str, Any],
        rid: str,
        more: float = 0.0,
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> dict[str, Any]:
        made = reply(self.writer, self.role, payload)
        prompt, sampling = payload["input_ids"], payload.get("sampling_params") or {}
        self._open.add(rid)
        try:
            await asyncio.sleep(more)
            await self._pass_host()
            if rid in self._aborted:
                return body(self.writer, made, 0.0, rid)
            job = self._job(rid, prompt, made.ids, sampling, on_tokens)
            self.scheduler.add(job)
            aborted = await job.done
            await self._pass_host()
        finally:
            self._open.discard(rid)
            self._aborted.discard(rid)
        share = min(1 - 1e-9, (job.written + 0.5) / len(made.ids)) if aborted else 1.0
        found = body(self.writer, made, share, rid, bool(payload.get("return_logprob")))
        self.cache.add((*prompt, *made.ids[: job.written][:-1]))
        self._describe(found["meta_info"], job, payload)
        return found

    async def _pass_host(self) -> None:
        """Half of a request's time outside of its server's passes."""
        if self.times.host_computes:
            await self.scheduler.device.compute(self.host / 2)
        else:
            await asyncio.sleep(self.host / 2)

    def _job(
        self,
        rid: str,
        prompt: Sequence[int],
        ids: tuple[int, ...],
        sampling: Mapping[str, Any],
        on_tokens: Callable[[list[int]], None] | None,
    ) -> Job:
        loop = asyncio.get_running_loop()
        told = 0
        interval = int(sampling.get("stream_interval") or STREAM_TOKENS)

        def written(number: int) -> None:
            nonlocal told
            if not told or number - told >= interval:
                told = number
                if on_tokens is not None:
                    loop.call_later(self.host / 2, on_tokens, list(ids[:number]))

        return Job(
            rid,
            len(prompt),
            ids or (self.writer.words.eos,),  # a prompt that is only scored takes a prefill too
            int(sampling.get("max_new_tokens") or 1),
            loop.create_future(),
            written,
            find_cached=lambda: min(self.cache.longest(prompt), len(prompt) - 1),
            keep_prefilled=lambda: self.cache.add(prompt),
            noise=random.Random(zlib.crc32(repr((self.role, *prompt[-64:])).encode())),
            guessing=float(sampling.get("temperature", 1.0)) < RANDOM,
        )

    def _describe(self, meta: dict[str, Any], job: Job, payload: Mapping[str, Any]) -> None:
        meta["cached_tokens"] = job.cached
        if job.began is not None:
            meta["queue_time"] = job.began - job.came
            meta["forward_entry_time"] = 1 + job.began
            meta["prefill_finished_time"] = 1 + job.prefilled
        if self.scheduler.flags.layer:
            meta["spec_verify_ct"] = job.verified
            meta["spec_num_proposed_drafts"] = job.drafted
            meta["spec_num_correct_drafts"] = job.accepted
        start = payload.get("logprob_start_len", -1)
        if payload.get("top_logprobs_num") and start >= 0:
            assert isinstance(self.writer, AlikeWriter)
            meta["input_top_logprobs"] = [None, *self.writer.reads(payload["input_ids"], start)]

    def abort(self, rid: str, everything: bool = False) -> None:
        if rid in self._open:
            self._aborted.add(rid)
            asyncio.get_running_loop().call_later(self.host / 2, self.scheduler.abort, rid)

    async def deliver(
        self, deliveries: Sequence[Delivery], timeout: float = LINE_SECONDS
    ) -> Sequence[tuple[str, str]]:
        """Sends drafted tokens to the server, as ``Scheduler.deliver`` takes them."""
        if self.scheduler.flags.layer != "fed":
            return await super().deliver(deliveries, timeout)
        await asyncio.sleep(DELIVERY)
        self.scheduler.deliver(deliveries)
        return []

    async def get(self, path: str, timeout: float = 10.0) -> dict[str, Any]:
        if path.startswith("/flush_cache"):
            self.cache.clear()
        return await super().get(path, timeout)


def scheduled_roles(
    times: Times,
    writer: AlikeWriter,
    flags: Mapping[str, Flags] | None = None,
    *,
    seeded: bool = True,
) -> dict[str, RuntimeBackend]:
    """Backends of three servers with these times, by role; on the loop of their first request.

    Args:
        flags: of the servers, by role.
        seeded: whether they honour seeds.
    """
    device = Device(times.share)
    servers = dict[str, tuple[ScheduledTransport, ServerFacts]]()
    for role in ROLES:
        own = (flags or {}).get(role, Flags(overlap=times.overlap))
        scheduler = Scheduler(times.roles[role], device if times.share else Device(), own)
        draws: Literal["seeds", "coins"] = "seeds" if seeded else "coins"
        facts = ServerFacts(
            context=CONTEXT,
            seeded=seeded,
            max_running_requests=own.max_running_requests,
            token_layer=own.layer,
            fed=FedLayer(own.draft_tokens + 1, draws) if own.layer == "fed" else None,
        )
        servers[role] = ScheduledTransport(role, writer, scheduler, times), facts
    return backends(servers)
