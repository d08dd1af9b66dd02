"""Shapes: models without weights; the directories that they become, the flags, and ids that no
tokenizer knows.
"""

from __future__ import annotations

import itertools
import json

import pytest

from lr_sglang import pocket
from lr_sglang.cli import settings
from lr_sglang.config import Runtime, TokenLayer
from lr_sglang.engine.tokenizer import ModelTokenizer
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.runtimes import folders
from lr_sglang.runtimes.launching import flags
from lr_sglang.runtimes.launching.flags import Platform
from lr_sglang.runtimes.placement import models
from lr_sglang.steps.step import Ending, make_step, split_ids

GPU = Platform("cuda")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def config(name):
    return json.loads((models.make_shape(name) / "config.json").read_text())


@pytest.mark.parametrize("name", models.shapes())
def test_a_directory_has_a_configuration_and_a_tokenizer(name):
    folder = models.make_shape(name)
    assert models.locate(f"dummy:{name}") == str(folder)
    assert {*models.TOKENIZER_FILES, "config.json", folders.SIZES} == {
        file.name for file in folder.iterdir()
    }
    assert models.shape_of(str(folder)) == models.shape_of(f"{folder}/") == f"dummy:{name}"
    found = config(name)
    assert found["num_attention_heads"] % found["num_key_value_heads"] == 0
    assert found["vocab_size"] > 817  # the pocket tokenizer's


@pytest.mark.parametrize(
    ("head", "target"),
    [(name, name.removesuffix("-eagle3")) for name in models.shapes() if name.endswith("-eagle3")],
)
def test_a_head_fits_its_target(head, target):
    ours, theirs = config(head), config(target)
    assert all(
        ours[key] == theirs[key] for key in ("hidden_size", "vocab_size", "num_key_value_heads")
    )


def test_what_cannot_be(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="no shape 'qwen3-32'") as caught:
        models.locate("dummy:qwen3-32", "draft")
    assert caught.value.role == "draft" and "qwen3-32b?" in caught.value.hint
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SetupError, match="cannot be made") as late:
        models.locate("dummy:qwen3-32b")
    assert "XDG_CACHE_HOME" in late.value.hint


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen3-32B", "pocket:target", "./lr-sglang/shapes/mine", "/a/dummy:b", ""]
)
def test_other_models_are_no_shapes(model):
    assert not models.is_shape(model)


# -- flags


def line(runtime):
    """The flags of the command, models located as when it is launched."""
    layer = runtime.token_layer
    layer = (
        layer.replace(draft_model=models.locate(layer.draft_model)) if layer.draft_model else layer
    )
    argv = flags.command(
        runtime.replace(token_layer=layer), 1, GPU, model=models.locate(runtime.model)
    ).argv
    return dict(itertools.pairwise(argv))


@pytest.mark.parametrize(
    ("model", "draft", "target_format", "draft_format"),
    [
        ("owner/name", "", None, None),
        ("owner/name", "owner/head", None, None),
        ("dummy:qwen3-32b", "", "dummy", None),
        ("dummy:qwen3-32b", "dummy:qwen3-32b-eagle3", "dummy", "dummy"),
        ("owner/name", "dummy:qwen3-32b-eagle3", None, "dummy"),
        ("dummy:qwen3-32b", "owner/head", "dummy", "auto"),  # SGLang would take the target's
    ],
)
def test_random_weights_are_asked_for_where_there_are_none(
    model, draft, target_format, draft_format
):
    layer = TokenLayer("eagle3", draft_model=draft) if draft else TokenLayer()
    found = line(Runtime(model=model, token_layer=layer))
    assert (found.get("--load-format"), found.get("--speculative-draft-load-format")) == (
        target_format,
        draft_format,
    )


# -- records and warnings


def test_records_and_warnings_name_them():
    given = {
        "mode": ("sd", "lookahead"),
        "target": "dummy:qwen3-32b",
        "draft": models.locate("dummy:qwen3-1.7b"),
        "verifier": "random:0.6",
        "token_layer": "eagle3",
        "option": {
            "runtimes": {"target": {"token_layer": {"draft_model": "dummy:qwen3-32b-eagle3"}}}
        },
    }
    plan = settings.settle(dict(**given))
    assert plan.models == {"target": "dummy:qwen3-32b", "draft": "dummy:qwen3-1.7b"}
    assert plan.configured("lookahead")["runtimes"]["draft"]["model"] == "dummy:qwen3-1.7b"
    assert plan.shapes(["lookahead"]) == ["dummy:qwen3-1.7b", "dummy:qwen3-32b"]
    assert plan.shapes(["autoregressive", "sd"]) == ["dummy:qwen3-32b", "dummy:qwen3-32b-eagle3"]
    assert settings.settle({}).shapes(["lookahead"]) == []


# -- ids that the tokenizer does not know


@pytest.fixture(scope="module")
def tokenizer():
    return ModelTokenizer(str(pocket.weights("target")))


def test_unknown_ids_are_no_text_and_are_kept(tokenizer):
    known = tokenizer.encode("Ava has 4 boxes.\n\n")
    unknown = (151_935, 100_000, 900)
    assert tokenizer.decode(unknown) == ""
    mixed = (*unknown, *known, *unknown)
    assert tokenizer.decode(mixed) == "Ava has 4 boxes.\n\n"

    step = make_step(mixed, "length", None, tokenizer, frozenset({2}))
    assert step.ids == (*unknown, *known) and step.ending is Ending.DELIMITER
    capped = make_step(unknown, "length", None, tokenizer, frozenset({2}))
    assert (capped.text, capped.ids, capped.ending) == ("", unknown, Ending.CAP)
    assert sum((s.ids for s in split_ids(mixed, "length", tokenizer, frozenset({2}))), ()) == mixed
