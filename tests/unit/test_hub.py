"""Whether a model is on the hub is asked before servers start."""

import os
import time

import pytest

from lr_sglang import hub
from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.runtimes import launch
from lr_sglang.runtimes.placement import models
from tests.stub import Handler, Stub, served

REPLIES = {
    "/api/models/owner/there": (200, {}, {"id": "owner/there"}),
    "/api/models/owner/gated": (403, {"X-Error-Code": "GatedRepo"}, {}),
    "/api/models/owner/nothing": (404, {"X-Error-Code": "RepoNotFound"}, {}),
    "/api/models/owner/hidden": (401, {"X-Error-Code": "RepoNotFound"}, {}),
    "/api/models/owner/trouble": (503, {}, {}),
}


class Hub(Handler):
    """A hub that knows the models of REPLIES."""

    def do_GET(self):
        status, headers, body = REPLIES.get(self.path, (404, {}, {}))
        self.reply(body, status, headers)

    do_HEAD = do_GET


@pytest.fixture
def there(monkeypatch, tmp_path):
    """A hub, with an empty cache."""
    with served(Stub(Hub)) as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [
        ("owner/nothing", ConfigError, "has no model 'owner/nothing'"),
        ("owner/hidden", ConfigError, "has no model"),
        ("owner/gated", SetupError, "refuses 'owner/gated'"),
        ("owner/na me", ConfigError, "is no name of a model"),
        ("a/b/c", ConfigError, "is no name of a model"),
    ],
)
def test_a_model_that_is_not_there_is_named_before_servers_start(
    model, kind, said, there, tmp_path
):
    runtimes = {"target": Runtime(model="pocket:target"), "draft": Runtime(model=model)}
    with pytest.raises(kind, match=rf"^draft: .*{said}.*\nHint: "):
        launch(Deployment(name="d", runtimes=runtimes), tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("model", ["owner/there", "owner/trouble", "s3://bucket/model"])
def test_what_the_hub_has_or_may_have_is_left_to_sglang(model, there):
    hub.check_model(model, "target")


def test_an_address_without_http_is_taken_for_one():
    for address in ("localhost:30000", "10.0.0.1:30000", "gpu-1.local:30000/x"):
        with pytest.raises(ConfigError, match=rf"no name of a model.*\nHint: .*http://{address}"):
            hub.check_model(address, "target")


def test_a_cached_model_needs_no_hub(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--owner--kept"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text("a" * 40)
    (kept / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (kept / "snapshots" / ("a" * 40) / "config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.check_model("owner/kept", "target")
    with pytest.raises(SetupError, match="HF_HUB_OFFLINE is set"):
        hub.check_model("owner/other", "target")


def test_a_silent_hub_is_named(there, monkeypatch):
    monkeypatch.setattr(hub, "answers", lambda: False)
    said = r"127\.0\.0\.1:[0-9]+ does not answer.*\nHint: .*HF_ENDPOINT"
    with pytest.raises(SetupError, match=said):
        hub.check_model("owner/there", "target")


@pytest.mark.parametrize(
    ("model", "expected"),
    [("owner/name", True), ("gpt2", True), ("pocket:target", False), ("dummy:qwen3-32b", False),
     ("./here", False), ("/there", False), ("~/there", False), ("owner", False)],
)  # fmt: skip
def test_what_is_a_name_of_the_hub(model, expected, here):
    (here / "owner").mkdir()
    assert models.is_on_hub(model) is expected


def test_an_unfinished_download_of_long_ago_is_none_whatever_the_clock_says(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    part = tmp_path / "models--owner--name" / "blobs" / "hash.incomplete"
    part.parent.mkdir(parents=True)
    part.touch()
    assert models.being_fetched("owner/name")
    for apart in (-3600, 3600):  # the clock was set back by an hour since
        os.utime(part, (time.time() + apart,) * 2)
        assert not models.being_fetched("owner/name")
