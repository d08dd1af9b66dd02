"""A body is written by a process of its own."""

import json
from pathlib import Path

import pytest
import torch

from lr_sglang import pocket
from lr_sglang.pocket.body import Sizes, write_body
from lr_sglang.runtimes.placement import models
from tests import FULL


def test_a_body_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = Path(models.locate("pocket:draft@256x400x3"))
    (lock,) = tmp_path.glob("lr-sglang/bodies/*/lock")
    assert lock.parent / "draft@256x400x3" == folder
    assert not list(lock.parent.glob(".*"))
    before = (folder / "config.json").stat().st_ino
    assert models.locate("pocket:draft@256x400x3") == str(folder)
    assert (folder / "config.json").stat().st_ino == before


# -- in transformers


def computed(folder):
    """What a model makes of some tokens: logits in float32, and the greedy text."""
    from transformers import AutoModelForCausalLM

    ids = torch.arange(3, 700, 7)[None]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    counted = sum(weights.numel() for weights in model.parameters())
    with torch.no_grad():
        text = model.generate(ids, max_new_tokens=12, do_sample=False)
        return model(ids).logits, text, counted, model.config.to_dict()


@pytest.fixture
def small(monkeypatch):
    """An architecture with heads of another size and more of them, small enough for a test."""
    config = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 128}
    config |= {"hidden_size": 256, "intermediate_size": 400, "num_hidden_layers": 3}
    monkeypatch.setattr(models, "shapes", lambda: {"small": config})
    return "small"


@pytest.mark.parametrize("role", pocket.MAIN_MODELS if FULL else ["draft"])
def test_a_body_computes_what_the_model_does(role, small, tmp_path):
    """Width, heads, their size, layers: logits to rounding in float32, and the same greedy text."""
    source = pocket.weights(role)
    layers = Sizes.of(json.loads((source / "config.json").read_text())).num_hidden_layers
    logits, text, *_ = computed(source)
    for shape in (f"384x500x{layers + 1}", *([small] if layers < 4 else [])):
        (tmp_path / shape).mkdir()
        write_body(source, tmp_path / shape, models.sizes_of(shape, source))
        other, written, counted, config = computed(tmp_path / shape)
        assert (logits - other).abs().max() < 1e-4 and (text == written).all()
        assert counted == Sizes.of(config).parameters(config["vocab_size"])
