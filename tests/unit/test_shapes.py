"""Shapes: models without weights; the directories that they become, the flags, and ids that no
tokenizer knows.
"""

import importlib
import itertools
import json
import shutil
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lr_sglang import pocket
from lr_sglang.cli import settings
from lr_sglang.config import Deployment, Runtime, TokenLayer
from lr_sglang.engine.tokenizer import ModelTokenizer
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.pocket import loader
from lr_sglang.pocket.body import Sizes, write_body
from lr_sglang.runtimes.attach import model_of, served_name
from lr_sglang.runtimes.launching import flags, fleet
from lr_sglang.runtimes.launching.flags import Platform
from lr_sglang.runtimes.placement import memory, models
from lr_sglang.runtimes.placement.models import prompt_for
from lr_sglang.steps.step import Ending, make_step, split_ids

GPU = Platform("cuda")


def config(name):
    return json.loads((models.make_shape(name) / "config.json").read_text())


@pytest.mark.parametrize("name", models.shapes())
def test_a_directory_has_a_configuration_and_a_tokenizer(name):
    folder = models.make_shape(name)
    assert models.locate(f"dummy:{name}") == str(folder)
    assert {*models.TOKENIZER_FILES, "config.json"} == {file.name for file in folder.iterdir()}
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


def test_a_shape_that_cannot_be_written_says_where(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SetupError, match=r"cannot be made.*\nHint: .*XDG_CACHE_HOME"):
        models.locate("dummy:qwen3-32b")


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


def test_records_name_them():
    given = {
        "mode": ("lookahead",),
        "target": "dummy:qwen3-32b",
        "draft": models.locate("dummy:qwen3-1.7b"),
        "verifier": "random:0.6",
    }
    plan = settings.settle(dict(**given))
    assert plan.models == {"target": "dummy:qwen3-32b", "draft": "dummy:qwen3-1.7b"}
    assert plan.configured("lookahead")["runtimes"]["draft"]["model"] == "dummy:qwen3-1.7b"


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


# -- pocket models in larger bodies


OWN = Sizes(128, 384, 2, 2, 64, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "lr-sglang" / "bodies"


@pytest.fixture
def here(monkeypatch):
    """Bodies are written in this process, not in one of their own that has to import
    torch first.
    """
    monkeypatch.setattr(models, "_write", write_body)


@pytest.mark.usefixtures("here")
def test_a_body_that_is_computed_has_the_weights_of_its_files(monkeypatch):
    """Those that SGLang's loader is handed, name by name and bit by bit; the folder has none."""
    from safetensors.torch import load_file

    written = Path(models.locate("pocket:draft@256x400x3"))
    folder = Path(models.locate("pocket:draft@256x400x3", in_memory=True))
    assert (
        folder != written
        and folder.name == written.name
        and not list(folder.glob("*.safetensors*"))
    )
    in_files = {
        name: tensor
        for file in written.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }
    with_default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # as SGLang has it while it loads
    try:
        computed = dict(loader.computed(folder, "cpu"))
    finally:
        torch.set_default_dtype(with_default)
    assert computed.keys() == in_files.keys()
    assert all(
        computed[name].dtype == it.dtype and computed[name].equal(it)
        for name, it in in_files.items()
    )
    for file in ("config.json", "tokenizer.json"):
        assert (folder / file).read_bytes() == (written / file).read_bytes()

    monkeypatch.delitem(sys.modules, loader.MODULE, raising=False)
    loader.plugin()
    assert importlib.import_module(loader.MODULE).PrivateModelLoader is loader.PrivateModelLoader, (
        "as SGLang does it"
    )


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("settings", "formats"),
    [
        ({"gpus": [0]}, ("private", "private")),
        ({"device": "cpu"}, (None, None)),
        ({"device": "cpu", "extra": {"load-format": "private"}}, ("private", "private")),
        ({"gpus": [0], "extra": {"load_format": "auto"}}, ("auto", None)),
    ],
)
def test_a_gpu_computes_its_bodies_and_a_cpu_reads_files(settings, formats, tmp_path):
    """As `launch --print` shows it; the flag of SGLang chooses the other way."""
    layer = {"algorithm": "standalone", "draft_model": "pocket:draft@128x384x3"}
    target = {"model": "pocket:draft@256x400x3", "token_layer": layer, **settings}
    deployment = Deployment.from_dict({"name": "one", "runtimes": {"target": target}}, "deployment")
    found = dict(itertools.pairwise(fleet.prepared(deployment, tmp_path)["target"].argv))
    assert (found.get("--load-format"), found.get("--speculative-draft-load-format")) == formats
    for folder in (found["--model-path"], found["--speculative-draft-model-path"]):
        assert any(Path(folder).glob("*.safetensors")) == (formats[0] != "private")


@pytest.mark.usefixtures("here")
def test_two_servers_that_need_one_make_it_once(cache, monkeypatch):
    made = []

    def write(source, folder, *given, _write=models._write):
        made.append(folder)
        _write(source, folder, *given)

    monkeypatch.setattr(models, "_write", write)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(models.locate, ["pocket:draft@128x384x2"] * 2))
    assert len(made) == 1 and next(cache.glob("*/draft@*")).is_dir()


def test_a_disk_without_room_is_named(cache, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**8))
    with pytest.raises(SetupError, match=r"it takes \d\d\.\d GB, and .* has 0\.1 GB left"):
        models.locate("pocket:target@qwen3-32b")
    assert not list(cache.glob("*/target*"))


def test_what_cannot_be_written_leaves_nothing(cache, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SetupError, match="cannot be made"):
        models.locate("pocket:draft@256x400x3")
    assert not list(cache.glob("*/.*")) and not list(cache.glob("*/draft*"))


@pytest.mark.parametrize(
    ("model", "said", "hint"),
    [
        ("dummy:qwen3-32", "no shape 'qwen3-32'", "qwen3-32b?"),
        ("pocket:target@qwen4", "no architecture 'qwen4'", ""),
        ("pocket:target@512x4096", "no architecture", ""),
        ("pocket:target@512x4096x4", "num_hidden_layers is 4, and the model itself has 28", ""),
        ("pocket:draft@200x400x3", "hidden_size 200 is no multiple of the model's own 128", ""),
        ("pocket:target-hybrid@512x4096x28", "it is a hybrid", ""),
        ("pocket:author@512x4096x28", "no pocket model 'author'", ""),
    ],
)
def test_what_is_no_shape_and_no_body(model, said, hint):
    with pytest.raises(ConfigError, match=said) as caught:
        models.locate(model, "draft")
    assert caught.value.role == "draft" and hint in caught.value.hint


def test_a_body_is_planned_by_its_sizes_and_known_by_its_folder(cache, monkeypatch):
    monkeypatch.setattr(flags, "_gpus", lambda: 1)
    body = Runtime(model="pocket:judge@qwen3-0.6b")
    assert (flags.device(body), flags.device(Runtime(model="pocket:judge"))) == (
        "cuda",
        "cpu",
    )
    assert memory.runtime_need(body, "judge").weights == pytest.approx(0.82, abs=0.02)
    assert not cache.exists(), "nothing was made for it"
    assert models.sizes_of("512x4096x28", pocket.weights("target")) == Sizes(
        512, 4096, 8, 4, 64, 28
    )
    folder = f"{cache}/0123456789abcdef/judge@qwen3-0.6b"
    assert model_of("judge", Runtime(model=folder)) == "pocket:judge@qwen3-0.6b"
    assert prompt_for("pocket:judge@qwen3-0.6b") == "pocket"


@pytest.mark.parametrize("name", pocket.MODELS)
def test_a_pocket_model_has_one_name_however_its_server_was_started(name):
    assert model_of("target", Runtime(model=str(pocket.weights(name)))) == f"pocket:{name}"
    assert served_name(f"pocket:{name}") == f"pocket:{name}"


def test_clients_know_a_model_without_its_place_on_this_machine(tmp_path, monkeypatch):
    (tmp_path / "mine" / "Qwen3-32B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine" / "Qwen3-32B")
    monkeypatch.setenv("HOME", str(tmp_path))
    places = (str(tmp_path / "mine" / "Qwen3-32B"), "~/mine/Qwen3-32B", ".", "../Qwen3-32B/")
    assert {served_name(place) for place in places} == {"Qwen3-32B"}
    assert served_name("/elsewhere/Qwen3-32B") == "Qwen3-32B", "a server on another machine"
    monkeypatch.chdir(tmp_path)
    assert served_name("mine/Qwen3-32B") == "Qwen3-32B"
    assert served_name("Qwen/Qwen3-32B") == "Qwen/Qwen3-32B"
    cached = "/srv/cache/huggingface/hub/models--Qwen--Qwen3-32B/snapshots/0a1b2c3d"
    assert model_of("target", Runtime(model=cached)) == "Qwen/Qwen3-32B"
