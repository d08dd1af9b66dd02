"""SGLang's scheduler on the virtual clock: which requests are in which pass of a server, and how
long a pass takes.

As in ``sglang.srt.managers.scheduler``: all that waits is prefilled in one pass, before anything
is decoded; else one pass decodes a token, or verifies the guesses of a token layer, for all
requests that run. With overlap (the default on a GPU) a pass is chosen while the one before it
runs, so that a request which comes during a pass misses the next one too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lr_sglang.plugin.kept_lines import KeptLine
from lr_sglang.sglang_api.plugin_protocol import common_prefix
from tests.simulated.times import RoleTimes

Layer = Literal["", "standalone", "ngram", "fed"]


@dataclass(frozen=True)
class Flags:
    """What a server is started with, by SGLang's names.

    Attributes:
        layer: ``standalone``: its draft writes the guesses within the pass; ``ngram``: guesses of
            its own that cost nothing; ``fed``: ``ngram`` that guesses what is delivered, if there
            is any.
        draft_tokens: guessed tokens of a verification.
        layer_agreement: share of the layer's own guesses that are the target's.
        overlap: whether a pass is chosen while the one before it runs.
        prefill_decode_interval: passes that decode between two prefills, while at least
            ``prefill_decode_interval_min_bs`` requests run.
    """

    layer: Layer = ""
    draft_tokens: int = 0
    layer_agreement: float = 0.0
    max_running_requests: int | None = None
    overlap: bool = False
    prefill_decode_interval: int = 0
    prefill_decode_interval_min_bs: int = 0


class Device:
    """A GPU, or the cores of a machine, on which servers compute.

    Args:
        share: each further server that computes makes a pass take longer by this part.
    """

    def __init__(self, share: float = 0.0) -> None:
        self._share = share
        self._left: dict[asyncio.Future[None], float] = {}  # seconds of work of each pass
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def compute(self, seconds: float) -> None:
        """Waits until so many seconds of work are done."""
        done = asyncio.get_running_loop().create_future()
        self._settle()
        self._left[done] = seconds
        self._plan()
        await done

    @property
    def _speed(self) -> float:
        return 1 / (1 + self._share * max(0, len(self._left) - 1))

    def _settle(self) -> None:
        now = asyncio.get_running_loop().time()
        for done in self._left:
            self._left[done] -= (now - self._since) * self._speed
        self._since = now

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._left:
            after = max(0.0, min(self._left.values())) / self._speed
            self._timer = asyncio.get_running_loop().call_later(after, self._end)

    def _end(self) -> None:
        self._settle()
        for done in [one for one, left in self._left.items() if left <= 1e-9]:
            del self._left[done]
            if not done.done():
                done.set_result(None)
        self._plan()


@dataclass(eq=False)
class Job:
    """A request, whose tokens are known before its time has passed.

    Attributes:
        prompt: tokens of the prompt; ``cached`` of them are in the cache.
        find_cached, keep_prefilled: called when its prefill is chosen, to find ``cached``, and when
            it has ended. So requests of one prefill find nothing of each other.
        ids: all tokens that it will have if nothing stops it.
        most: its token limit, from which the scheduler sees that it will be done.
        written: number of tokens so far.
        line: what was delivered for it.
        guessing: whether the layer's guesses are drawn; False where they are never right.
        verified, drafted, accepted: as of SGLang's ``spec_verify_ct`` and its neighbours.
        passes: of decoding, in which it was.
        done: set at its end; the result is whether it was aborted.
    """

    rid: str
    prompt: int
    ids: tuple[int, ...]
    most: int
    done: asyncio.Future[bool]
    on_written: Callable[[int], None] | None = None
    cached: int = 0
    find_cached: Callable[[], int] | None = None
    keep_prefilled: Callable[[], None] | None = None
    noise: random.Random = field(default_factory=random.Random)
    guessing: bool = True
    written: int = 0
    line: KeptLine | None = None
    verified: int = 0
    drafted: int = 0
    accepted: int = 0
    passes: int = 0
    aborted: bool = False
    came: float = 0.0
    began: float | None = None
    prefilled: float = 0.0

    def guess(self, width: int) -> Sequence[int]:
        """The delivered tokens after those written, if the line agrees with these."""
        if self.line is None:
            return ()
        return self.line.following(self.written, lambda start, stop: [*self.ids[start:stop]], width)


@dataclass(frozen=True)
class Batch:
    """The requests of one pass."""

    jobs: tuple[Job, ...]
    prefill: bool


class Scheduler:
    """The loop of one server. Its requests are ``Job``s.

    Attributes:
        prefills, passes: number of passes that prefilled, and that decoded or verified.
        prefilled, decoded: seconds of them, as they took.
        late: delivered tokens that came after the target had written their place.
    """

    def __init__(self, times: RoleTimes, device: Device, flags: Flags = Flags()) -> None:
        self.times, self.device, self.flags = times, device, flags
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.prefills = self.passes = self.late = 0
        self.prefilled = self.decoded = 0.0
        self._jobs: dict[str, Job] = {}
        self._interval = 0
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, job: Job) -> None:
        """Adds a request."""
        job.came = asyncio.get_running_loop().time()
        self._jobs[job.rid] = job
        self.waiting.append(job)
        self._came.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def abort(self, rid: str) -> None:
        """Aborts a request: at once if it waits, else at the end of the pass that it is in."""
        for job in [one for name, one in self._jobs.items() if name.startswith(rid)]:
            job.aborted = True
            if job in self.waiting:
                self.waiting.remove(job)
                self._finish(job)

    def deliver(self, lines: Iterable[tuple[str, int, Sequence[int]]]) -> None:
        """Takes drafted tokens, to be verified in the next pass that is chosen.

        Args:
            lines: of each request, its id, the place of the first token (the number of its own
                tokens before it), and the tokens.
        """
        for rid, place, ids in lines:
            if (job := self._jobs.get(rid)) is not None:
                if job.line is None:
                    job.line = KeptLine(place, ids)
                else:
                    job.line.put(place, ids)
                self.late += job.line.late(job.written)

    async def _run(self) -> None:
        planned: Batch | None = None
        while True:
            batch, planned = planned or self._next(()), None
            if batch is None:
                if self.waiting or self.running:
                    continue
                self._came.clear()
                await self._came.wait()
                continue
            work = asyncio.ensure_future(self.device.compute(self._seconds(batch)))
            began = asyncio.get_running_loop().time()
            guesses = self._guesses(batch)
            if self.flags.overlap:
                planned = self._next(batch.jobs if batch.prefill else (), batch)
            await work
            seconds = asyncio.get_running_loop().time() - began
            if batch.prefill:
                self.prefills += 1
                self.prefilled += seconds
            else:
                self.passes += 1
                self.decoded += seconds
            self._end(batch, guesses)
            await asyncio.sleep(0)  # who was told may send the next request, or an abort

    def _next(self, merged: Sequence[Job], current: Batch | None = None) -> Batch | None:
        """The next pass: a prefill of all that waits and has room, else decoding.

        Args:
            merged: requests of a prefill that runs, which then decode.
            current: the pass that runs: requests whose token limit it reaches do not decode again.
        """
        room = self.flags.max_running_requests
        running = [*self.running, *(one for one in merged if one not in self.running)]
        if not self._defers(len(running)):
            free = len(self.waiting) if room is None else max(0, room - len(running))
            if chosen := tuple(self.waiting[:free]):
                del self.waiting[: len(chosen)]
                now = asyncio.get_running_loop().time()
                for job in chosen:
                    job.began = now
                    job.cached = job.find_cached() if job.find_cached else 0
                self._interval = self.flags.prefill_decode_interval
                return Batch(chosen, True)
        left = [one for one in running if not one.done.done()]
        if current is not None:
            left = [one for one in left if one not in current.jobs or one.most - one.written > 1]
        return Batch(tuple(left), False) if left else None

    def _defers(self, running: int) -> bool:
        """SGLang's ``_should_defer_prefill``."""
        if self._interval == 0:
            return False
        if running < max(1, self.flags.prefill_decode_interval_min_bs):
            self._interval = 0
            return False
        self._interval -= 1
        return True

    def _seconds(self, batch: Batch) -> float:
        times, flags = self.times, self.flags
        if batch.prefill:
            new = sum(max(1, one.prompt - one.cached) for one in batch.jobs)
            seconds = times.prefill(len(batch.jobs), new, max(one.cached for one in batch.jobs))
            return seconds + (times.layer_prefill if flags.layer == "standalone" else 0.0)
        if not flags.layer:
            return times.decode(len(batch.jobs))
        seconds = times.decode(len(batch.jobs), len(batch.jobs) * flags.draft_tokens)
        if flags.layer == "standalone":
            seconds += flags.draft_tokens * times.layer_token
        return seconds

    def _guesses(self, batch: Batch) -> list[int]:
        """Of each request of a pass, how many tokens it writes."""
        if batch.prefill or not self.flags.layer:
            return [1] * len(batch.jobs)
        found = []
        for job in batch.jobs:
            width, same = self.flags.draft_tokens, 0
            delivered = [*job.guess(width)]
            if delivered:
                same = common_prefix(delivered, [*job.ids[job.written :]])
            elif job.guessing:
                while same < width and job.noise.random() < self.flags.layer_agreement:
                    same += 1
            job.verified += 1
            job.drafted += width
            job.accepted += same
            found.append(same + 1)
        return found

    def _end(self, batch: Batch, written: Sequence[int]) -> None:
        now = asyncio.get_running_loop().time()
        for job, tokens in zip(batch.jobs, written, strict=True):
            if job.done.done():
                continue
            if batch.prefill:
                job.prefilled = now
                if job.keep_prefilled is not None:
                    job.keep_prefilled()
            else:
                job.passes += 1
            job.written = min(len(job.ids), job.written + tokens)
            if job.aborted or job.written >= len(job.ids):
                self._finish(job)
            elif job.on_written is not None:
                job.on_written(job.written)
        decoding = [*self.running, *(batch.jobs if batch.prefill else ())]
        self.running = [one for one in decoding if not one.done.done()]

    def _finish(self, job: Job) -> None:
        del self._jobs[job.rid]
        job.done.set_result(job.aborted and job.written < len(job.ids))
