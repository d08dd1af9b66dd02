"""The plugin's layer `fed` with parts of the installed SGLang, which take processes of their own."""

import json
import os
import subprocess
import sys

from tests import ROOT
from tests.called import python

CPU = {"SGLANG_USE_CPU_ENGINE": "1"}


def test_two_ranks_offer_the_same_tokens_at_the_same_pass(tmp_path, popen):
    ranks = [
        popen(
            [sys.executable, "-m", "tests.ranks", str(rank), str(tmp_path / "store")],
            env={**os.environ, **CPU},
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=280)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    first, second = map(json.loads, said)
    assert first == second
    assert first["counts"]["offered"] > 100 and first["counts"]["messages"] > 10
    assert first["counts"]["failures"] == 0


def test_the_layer_fits_the_installed_release():
    python("-m", "pytest", "-q", "tests/installed_fed.py", **CPU)


LOADED = """
import json, sys
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
load_plugins()
ours = {
    name
    for name, hooks in HookRegistry._hooks.items()
    for _, _, source in hooks
    if source.plugin_name == "lr_sglang_fed"
}
json.dump(sorted(ours & HookRegistry._patched), sys.stdout)
"""


def test_sglang_loads_the_layer_after_our_other_plugins_too():
    assert len(json.loads(python("-c", LOADED, **CPU, LR_SGLANG_FED="1").stdout)) == 5


def test_the_plugin_does_nothing_unless_it_is_turned_on():
    code = (
        "import sys, lr_sglang.plugin as it; it.plugin(); "
        "assert 'lr_sglang.plugin.hooks' not in sys.modules"
    )
    for value in ("", "0"):
        python("-c", code, LR_SGLANG_FED=value, LR_SGLANG_SEEDS=value)
