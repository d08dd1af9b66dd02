"""How much of a prompt could have come from the cache."""

from collections import deque
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr_sglang.engine.prefix_reuse import BATCH_SECONDS, RequestLog
from lr_sglang.steps.branch import Branch, settle_reuse


def noted(
    log: RequestLog, ids: str, entered: float, ended: float = 0.0, output: str = "", **meta: float
):
    """A request that was answered, by default at once; gives the tokens that it could share."""
    prompt, written = tuple(map(ord, ids)), tuple(map(ord, output))
    meta = {"prompt_tokens": len(ids), **meta}
    return log.add(prompt, written, meta, entered, ended or entered)


HEAD = "the question is: "


@pytest.mark.parametrize(("cached", "reused"), [(0, 0), (2, 2), (7, 3)])
def test_what_was_cached_does_not_say_what_could_be(cached, reused):
    """Three tokens are shared; what else is cached comes from others."""
    log = RequestLog()
    noted(log, HEAD[:3], 1)
    shared = noted(log, HEAD, 2, cached_tokens=cached)()
    branch = Branch("target", 0, cached_tokens=cached, shared_tokens=shared)
    assert (shared, branch.reused_tokens) == (3, reused)


def test_only_the_last_requests_are_remembered():
    log = RequestLog(size=2)
    noted(log, HEAD, 1)
    for n in range(2):
        noted(log, f"{n}" + HEAD, 2)
    assert noted(log, HEAD + "x", 9)() == 0


def test_long_prompts_are_forgotten_sooner():
    for n, shared in ((0, 0), (3, len(HEAD))):
        log = RequestLog(tokens=3 * len(HEAD))
        for number in range(4):
            noted(log, f"{number}{HEAD}"[: len(HEAD)], 1)
        assert noted(log, f"{n}{HEAD}"[: len(HEAD)] + "x", 9)() == shared


def test_what_was_never_prefilled_shares_nothing():
    log = RequestLog()
    log.add((1, 2), (), {}, 1, 2)  # aborted in the queue
    assert log.add((1, 2, 3), (), {"prompt_tokens": 3}, 3, 4)() == 0


def test_a_branch_is_settled_once_all_before_it_have_ended():
    log = RequestLog()
    first, second = (Branch("target", position, cached_tokens=0) for position in (0, 1))
    waiting = deque((first, second))
    second.shareable, second.ended = noted(log, "abc", 3), 4.0
    settle_reuse(waiting)
    assert second.shared_tokens is None, "the first may have been prefilled in time"
    first.shareable, first.ended = noted(log, "ab", 1, 2), 5.0
    settle_reuse(waiting)
    assert (first.shared_tokens, second.shared_tokens) == (0, 2) and not waiting
    assert first.shareable is second.shareable is None


def test_what_never_ended_is_settled_at_the_close():
    stuck, second = Branch("target", 0), Branch("target", 1, ended=1.0, cached_tokens=0)
    second.shareable = noted(RequestLog(), "ab", 1)
    settle_reuse(deque((stuck, second)), include_unfinished=True)
    assert second.shared_tokens == 0


def test_where_the_runtime_does_not_say_what_it_shared_nothing_is_looked_up():
    branch = Branch("target", 0, ended=1.0)
    branch.shareable = noted(RequestLog(), "ab", 1)
    settle_reuse(deque((branch,)))
    assert branch.shared_tokens is branch.shareable is None


ids = st.text("ab", max_size=6)
times = st.integers(0, 4)


@pytest.mark.parametrize("head", [1, 2, 32])
@given(st.lists(st.tuples(ids, times, times, ids, st.booleans()), min_size=1, max_size=9))
def test_it_equals_the_definition(head, requests):
    """Every request of the runtime compared in full, token by token. Some runtimes report when a
    request entered.
    """
    with patch("lr_sglang.engine.prefix_reuse.HEAD_TOKENS", head):
        log, made = RequestLog(), []
        for text, entered, ended, output, told in requests:
            meta = {"forward_entry_time": entered} if told and entered else {}
            prefilled = entered + BATCH_SECONDS if meta else ended
            shareable = noted(log, text, entered, ended or 0.5, output, **meta)
            made.append((shareable, (text, output, entered, prefilled or 0.5, ended or 0.5)))
        for shareable, one in made:
            assert shareable() == defined(one, [other for _, other in made if other is not one])


def defined(one, others):
    """By requests as (prompt, output, entered, prefilled, finished)."""
    prompt, _, entered, _, _ = one
    most = 0
    for text, output, _, prefilled, finished in others:
        if prefilled <= entered:
            known = text + (output[:-1] if finished <= entered else "")
            parted = (i for i, (a, b) in enumerate(zip(known, prompt, strict=False)) if a != b)
            most = max(most, next(parted, min(len(known), len(prompt))))
    return max(0, min(most, len(prompt) - 1))
