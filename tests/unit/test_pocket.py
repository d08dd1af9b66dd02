"""Properties of the pocket problems, their tokenizer and the weights that ship with the package."""

from __future__ import annotations

import json

import pytest

from lr_sglang.pocket import MODELS, weights
from tools.pocket.heldout import TASK_FILE, held_out_problems, task_lines
from tools.pocket.problems import (
    compute,
)


def test_task_file_is_what_the_generator_writes_and_is_held_out():
    chosen = held_out_problems()
    for o in chosen[0].operations:
        assert o.result == compute(o.operator, o.a, o.b)
    assert TASK_FILE.read_text() == task_lines(chosen)
    rows = [json.loads(line) for line in TASK_FILE.read_text().splitlines()]
    assert len(rows) == len({p.structure for p in chosen}) == 200
    assert all(p.held_out for p in chosen)
    assert rows[0]["id"] == "pocket-0001" and set(rows[0]) == {
        "id",
        "question",
        "answer",
        "operations",
    }


def test_weights_are_small_and_share_a_tokenizer():
    assert sum((weights(r) / "model.safetensors").stat().st_size for r in MODELS) < 31_000_000
    assert len({(weights(r) / "tokenizer.json").read_text() for r in MODELS}) == 1


def test_unknown_role_is_refused():
    with pytest.raises(ValueError, match="target, draft, judge"):
        weights("teacher")
