"""The request for one answer: settings, verifiers and callbacks."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.algorithm.inquiry import Verifier
from lr_sglang.algorithm.policy import RunStatistics
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.steps.events import Event
from lr_sglang.steps.judge_check import JudgeCheck
from lr_sglang.steps.trace import StepRecord, Trace


@dataclass(eq=False)
class AnswerRequest:
    """The settings of one answer, with its callbacks and its record.

    Attributes:
        verifier: compares two versions of a step; the baseline needs none.
        question, sample: identify the answer; seeds are derived from them.
        experience: statistics shared by all answers of a run.
        on_step: called with each step as it is kept, on the event loop, which waits for it.
        on_event: called with each event while the answer is made, on the event loop, which waits
            for it.
        key: a router keeps requests with the same key on one worker; unique by default.
        check: the judge's measured false accepts, if the verifier may ask a judge.
        record: the trace; filled while the program runs, complete when the program has returned.
    """

    lookahead: Lookahead = field(default_factory=Lookahead)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    verifier: Verifier | None = None
    question: str = ""
    sample: int = 0
    experience: RunStatistics = field(default_factory=RunStatistics)
    on_step: Callable[[StepRecord], None] | None = None
    on_event: Callable[[Event], None] | None = None
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    check: JudgeCheck | None = None
    record: Trace = field(default_factory=Trace)
    _stopped: bool = False
    _wake: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def drafts(self) -> bool:
        """Whether steps are drafted; the target answers alone where the judge accepts too many
        pairs that differ.
        """
        return self.check is None or self.check.trusted(self.lookahead.max_false_accepts)

    def stop(self) -> None:
        """Ends the answer, from any thread: its requests are cancelled, and its program raises
        ``Cancelled``.
        """
        self._stopped = True
        if self._wake:
            self._wake()

    def listen(self, wake: Callable[[], None] | None) -> None:
        """Sets the function that ``stop`` calls; None when the answer has ended."""
        self._wake = wake
        if self._stopped and wake is not None:
            wake()

    def seed(self, *where: Any) -> int:
        """The seed of one branch, derived from the run's seed, the question, the sample and
        ``where``.
        """
        key = repr((self.sampling.seed, self.question, self.sample, *where)).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "big") >> 1
