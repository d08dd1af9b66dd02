"""What is needed of SGLang's insides."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.plugins.hook_registry import HookRegistry

from lr_sglang.cpu import hooks
from lr_sglang.plugin.hooks import need
from lr_sglang.sglang_api import release


def test_the_installed_sglang_is_tested():
    assert release.is_tested(release.version())
    assert not release.is_tested("0.5.24rc1") and release.is_tested("0.5.16+cu130")


def test_an_untested_release_that_lacks_what_is_hooked_is_not_run():
    """SGLang would log that a hook has no place, and answer without seeds, for example."""
    need(["json.decoder.JSONDecoder.decode"])
    for name in ("json.decoder.JSONDecoder.gone", "json.decoder.Gone.decode", "json.gone.It"):
        with pytest.raises(SystemExit, match=rf"this SGLang has no {name}; tested with"):
            need([name])


def test_a_server_lays_out_the_weight_of_the_vocabulary_as_those_of_the_layers(monkeypatch):
    """A tied weight is a table of rows too, which stay what they were."""
    found = {}
    monkeypatch.setattr(
        HookRegistry, "register", lambda name, hook, kind: found.update({name: hook})
    )
    monkeypatch.setattr(hooks, "_allow_intel_amx", lambda: None)
    hooks.install_cpu_hooks()
    laid_out = {name.split(".")[-2]: hook for name, hook in found.items() if "unquant" in name}
    experts = laid_out.pop("UnquantizedFusedMoEMethod")
    assert set(laid_out) == {"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"}
    for hook in laid_out.values():
        layer = torch.nn.Embedding(50, 8)
        rows = layer.weight.detach().clone()
        hook(None, None, layer)
        assert layer.weight.stride() == (1, 50)
        assert torch.equal(layer(torch.tensor([3, 49])), rows[[3, 49]])
    layer = SimpleNamespace(w13_weight=torch.rand(3, 6, 8), w2_weight=torch.rand(3, 8, 6))
    before = {name: weight.clone() for name, weight in vars(layer).items()}
    experts(None, None, layer)
    assert (layer.w13_weight.stride(), layer.w2_weight.stride()) == ((48, 1, 6), (48, 1, 8))
    assert all(torch.equal(weight, before[name]) for name, weight in vars(layer).items())
