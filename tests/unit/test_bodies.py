"""Pocket models in larger bodies: the same function, made once, whole or not at all."""

import importlib
import itertools
import shutil
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from lr_sglang import pocket
from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.pocket import loader
from lr_sglang.pocket.body import Sizes, write
from lr_sglang.runtimes import folders
from lr_sglang.runtimes.attach import model_of
from lr_sglang.runtimes.launching import flags, fleet
from lr_sglang.runtimes.placement import memory, models
from lr_sglang.runtimes.placement.models import prompt_for

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
    monkeypatch.setattr(models, "_write", write)


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
    argv = fleet.prepared(deployment, tmp_path)["target"].argv
    found = dict(itertools.pairwise(argv))
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
    threads = [
        threading.Thread(target=models.locate, args=("pocket:draft@128x384x2",)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and folders.is_whole(next(cache.glob("*/draft@*")))


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
    ("model", "said"),
    [
        ("pocket:target@qwen4", "no architecture 'qwen4'"),
        ("pocket:target@512x4096", "no architecture"),
        ("pocket:target@512x4096x4", "num_hidden_layers is 4, and the model itself has 28"),
        ("pocket:draft@200x400x3", "hidden_size 200 is no multiple of the model's own 128"),
        ("pocket:author@512x4096x28", "no pocket model 'author'"),
    ],
)
def test_what_is_no_body(model, said):
    with pytest.raises(ConfigError, match=said):
        models.locate(model)


def test_a_body_is_planned_by_its_sizes_and_known_by_its_folder(cache, monkeypatch):
    monkeypatch.setattr(flags, "_gpus", lambda: 1)
    body = Runtime(model="pocket:judge@qwen3-0.6b")
    assert (flags.device(body), flags.device(Runtime(model="pocket:judge"))) == (
        "cuda",
        "cpu",
    )
    assert memory.need(body, "judge").weights == pytest.approx(0.82, abs=0.02)
    assert not cache.exists(), "nothing was made for it"
    assert models.sizes_of("512x4096x28", pocket.weights("target")) == Sizes(
        512, 4096, 8, 4, 64, 28
    )
    folder = f"{cache}/0123456789abcdef/judge@qwen3-0.6b"
    assert model_of("judge", Runtime(model=folder)) == "pocket:judge@qwen3-0.6b"
    assert prompt_for("pocket:judge@qwen3-0.6b") == "pocket"
