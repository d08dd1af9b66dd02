"""A target in a larger body: at temperature 0 the same answers in every mode and layer."""

from __future__ import annotations

import pytest

from benchmarks.lossless import Comparison, variant
from lr_sglang import tasks
from lr_sglang.runtimes import load_deployment
from tests import FULL

pytestmark = [
    pytest.mark.skipif(not FULL, reason="minutes: only in test-full"),
    pytest.mark.timeout(1800),
]

QUESTIONS = tasks.load("pocket", limit=6)
GAP = 0.1  # of log-probabilities; logits in bfloat16 are up to 0.06 apart


@pytest.mark.parametrize("draft", ["pocket:draft", "pocket:target"])
def test_in_float32_every_layer_gives_plain_decodings_answers(draft: str) -> None:
    found = Comparison(
        variant(load_deployment("pocket-body"), draft=draft, dtype="float32"), QUESTIONS
    )
    assert found.equal == [len(QUESTIONS)] * len(found.equal)
    assert found.judged and (found.accepted or draft == "pocket:draft")


def test_in_bfloat16_they_differ_only_where_two_tokens_are_nearly_as_likely() -> None:
    found = Comparison(variant(load_deployment("pocket-body"), dtype="bfloat16"), QUESTIONS)
    assert found.gap <= GAP
