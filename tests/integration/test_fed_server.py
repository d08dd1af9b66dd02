"""The plugin's layer `fed` with parts of the installed SGLang, which take processes of their own."""

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT

CPU = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}


def test_two_ranks_offer_the_same_tokens_at_the_same_pass(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ranks", str(rank), str(tmp_path / "store")],
            env=CPU,
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    first, second = map(json.loads, said)
    assert first == second
    assert first["counts"]["offered"] > 100 and first["counts"]["messages"] > 10
    assert first["counts"]["failures"] == 0


def test_the_layer_fits_the_installed_release():
    command = [sys.executable, "-m", "pytest", "-q", "tests/installed_fed.py"]
    done = subprocess.run(command, cwd=ROOT, env=CPU, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


LOADED = """
import json, sys
from sglang.srt.managers import io_struct
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
load_plugins()
found = {name: [source.plugin_name for _, _, source in hooks] for name, hooks in HookRegistry._hooks.items()}
json.dump([name for name, by in found.items() if "lr_sglang_fed" in by and name in HookRegistry._patched], sys.stdout)
"""


@pytest.mark.parametrize("value", ["1", "", "0"])
def test_sglang_loads_the_layer_beside_our_other_plugins_where_it_is_turned_on(value):
    """Whichever of them it loads first."""
    environment = {**CPU, "LR_SGLANG_FED": value}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, timeout=200
    )
    hooked = json.loads(done.stdout)
    assert len(hooked) == (5 if value == "1" else 0), done.stderr
