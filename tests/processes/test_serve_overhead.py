"""The benchmark of first bytes works: directly, and through the endpoint."""

from __future__ import annotations

import pytest

from benchmarks.first_byte import measure
from tests import FULL


@pytest.mark.skipif(not FULL, reason="a measurement: with LR_SGLANG_FULL=1")
def test_first_bytes_come_each_way_while_streams_are_open() -> None:
    """What the benchmark counts, on any machine."""
    found = measure(4, 5, 0.05)
    assert len(found.direct) == len(found.through) == 5 and min(found.through) > 0
