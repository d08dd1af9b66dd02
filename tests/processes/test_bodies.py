"""A body is written by a process of its own."""

import json

from lr_sglang.pocket.body import write
from lr_sglang.runtimes import folders
from lr_sglang.runtimes.placement import models


def test_a_body_is_made_once_and_again_when_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = models.locate("pocket:draft@256x400x3")
    (lock,) = tmp_path.glob("lr-sglang/bodies/*/lock")
    sums = json.loads((lock.parent / "draft@256x400x3" / folders.SIZES).read_text())
    assert str(lock.parent / "draft@256x400x3") == folder and not list(lock.parent.glob(".*"))
    before = (lock.parent / "draft@256x400x3" / "config.json").stat().st_ino
    assert models.locate("pocket:draft@256x400x3") == folder
    assert (lock.parent / "draft@256x400x3" / "config.json").stat().st_ino == before

    shard = lock.parent / "draft@256x400x3" / "model-layer-002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    monkeypatch.setattr(models, "_write", write)  # in this process
    models.locate("pocket:draft@256x400x3")
    assert json.loads((lock.parent / "draft@256x400x3" / folders.SIZES).read_text()) == sums, (
        "the same, byte for byte"
    )
