"""What the endpoint adds to a step, over simulated runtimes: the benchmark's two ways, side by
side.
"""

from __future__ import annotations

import os
import statistics

import pytest

from benchmarks.endpoint import compare
from benchmarks.first_byte import measure

full = os.environ.get("LR_SGLANG_FULL") == "1"
# Answers at a time, steps of each, seconds of a step, and what may be added to one on average.
SIZES = (16, 12, 1.0, 0.005) if full else (4, 6, 0.2, 0.02)


@pytest.mark.timeout(400)
def test_the_endpoint_adds_little_to_a_step() -> None:
    """The first step of an answer included. A machine that is busy for a moment is asked again."""
    at_once, steps, seconds, most = SIZES
    for _ in range(3):
        inside, outside = compare("autoregressive", at_once, steps, 1, seconds)
        assert len(inside.gaps) == len(outside.gaps) == at_once * steps
        if (added := statistics.mean(outside.gaps) - statistics.mean(inside.gaps)) < most:
            break
    assert added < most


@pytest.mark.skipif(not full, reason="it compares milliseconds, which takes a quiet machine")
def test_the_first_byte_of_what_is_passed_on_comes_little_later() -> None:
    """While 64 streams are open."""
    assert measure(64, 200, 0.5).added < 0.002


def test_first_bytes_come_each_way_while_streams_are_open() -> None:
    """What the benchmark counts, on any machine."""
    found = measure(4, 5, 0.05)
    assert len(found.direct) == len(found.through) == 5 and min(found.through) > 0
