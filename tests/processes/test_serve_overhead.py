"""The benchmark of first bytes works: directly, and through the endpoint."""

from __future__ import annotations

from benchmarks.first_byte import measure


def test_first_bytes_come_each_way_while_streams_are_open() -> None:
    """What the benchmark counts, on any machine."""
    found = measure(4, 5, 0.05)
    assert len(found.direct) == len(found.through) == 5 and min(found.through) > 0
