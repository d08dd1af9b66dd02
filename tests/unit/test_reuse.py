"""How much of a prompt could have come from the cache."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr_sglang.engine.branch import Branch, PendingReuse
from lr_sglang.engine.prefix_reuse import LoggedRequest, RequestLog


def noted(
    log: RequestLog,
    ids: str,
    entered: float,
    prefilled: float = 0.0,
    finished: float = 0.0,
    output: str = "",
):
    """A request that has ended, at the given times."""
    entry = log.add(tuple(map(ord, ids)), entered)
    entry.prefilled, entry.finished = prefilled or entered, finished or entered
    entry.output = tuple(map(ord, output))
    log.longest_output = max(log.longest_output, len(output))
    return entry


HEAD = "the question is: "


def test_what_the_runtime_reports_as_cached_was_there_to_share():
    log = RequestLog()
    entry = noted(log, HEAD, 1)
    entry.cached = 7
    assert log.shareable(entry) == 7


def test_only_the_last_requests_are_remembered():
    log = RequestLog(size=2)
    noted(log, HEAD, 1)
    for n in range(2):
        noted(log, f"{n}" + HEAD, 2)
    assert log.shareable(LoggedRequest(log, tuple(map(ord, HEAD + "x")), 9)) == 0


def test_long_prompts_are_forgotten_sooner():
    log = RequestLog(tokens=3 * len(HEAD))
    for n in range(4):
        noted(log, f"{n}{HEAD}"[: len(HEAD)], 1)
    for n, shared in ((0, 0), (1, len(HEAD))):
        assert log.shareable(LoggedRequest(log, tuple(map(ord, f"{n}{HEAD}")), 9)) == shared


def test_a_branch_is_settled_once_all_before_it_have_ended():
    log, pending = RequestLog(), PendingReuse()
    first, second = (Branch("target", position, cached_tokens=0) for position in (0, 1))
    for branch in (first, second):
        pending.add(branch)
    first.entry, second.entry = log.add((1, 2), 1), log.add((1, 2, 3), 3)
    second.ended = 4.0
    pending.settle()
    assert second.shared_tokens is None, "the first may have been prefilled in time"
    first.entry.prefilled, first.ended = 2, 5.0
    pending.settle()
    assert (first.shared_tokens, second.shared_tokens) == (0, 2)
    assert first.entry is second.entry is None


def test_what_never_ended_is_settled_at_the_close():
    log, pending = RequestLog(), PendingReuse()
    stuck, second = Branch("target", 0), Branch("target", 1, ended=1.0, cached_tokens=0)
    pending.add(stuck)
    pending.add(second)
    second.entry = log.add((1, 2), 1)
    pending.settle(include_unfinished=True)
    assert second.shared_tokens == 0


ids = st.text("ab", max_size=6)
times = st.integers(0, 4)


@pytest.mark.parametrize("head", [1, 2, 32])
@given(st.lists(st.tuples(ids, times, times, times, ids), min_size=1, max_size=9), st.randoms())
def test_it_equals_the_definition(head, requests, order):
    """Every request of the runtime compared in full, token by token, whoever is asked
    about first.
    """
    with patch("lr_sglang.engine.prefix_reuse.HEAD", head):
        log = RequestLog()
        entries = []
        for text, entered, prefilled, finished, output in requests:
            entries.append(noted(log, text, entered, prefilled or 0.5, finished or 0.5, output))
        for one in order.sample(entries, len(entries)):
            assert log.shareable(one) == defined(
                one, [other for other in entries if other is not one]
            )


def defined(entry, others):
    most = 0
    for other in others:
        if other.prefilled <= entry.entered:
            known = other.prompt + (other.output[:-1] if other.finished <= entry.entered else ())
            parted = (
                i for i, (a, b) in enumerate(zip(known, entry.prompt, strict=False)) if a != b
            )
            most = max(most, next(parted, min(len(known), len(entry.prompt))))
    return max(0, min(most, len(entry.prompt) - 1))


def test_where_the_runtime_does_not_say_what_it_shared_nothing_is_looked_up():
    log, pending = RequestLog(), PendingReuse()
    branch = Branch("target", 0, ended=1.0)
    branch.entry = log.add((1, 2), 1)
    pending.add(branch)
    pending.settle()
    assert branch.shared_tokens is branch.entry is None
