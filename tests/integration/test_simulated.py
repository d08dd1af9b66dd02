"""The benchmark of the controller works: the real programs over simulated runtimes, on the real
clock.
"""

import json
import subprocess
import sys

import pytest

from tests import FULL
from tests.serving import ROOT


def controller(*options):
    """The figures of benchmarks/controller.py, in a process of its own."""
    command = [sys.executable, ROOT / "benchmarks" / "controller.py", *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


if FULL:  # minutes, and a machine with nothing else to do

    @pytest.mark.parametrize(("count", "least"), [(1, 0.98), (64, 0.95)])
    def test_the_controller_is_near_its_bound(count, least):
        words = "--alpha .62 --c1 .1 --step-seconds .2 --depth 6 --judge-seconds 0 --steps 60"
        tried = (controller(*words.split(), "--questions", str(count)) for _ in range(3))
        assert any(found["efficiency"] > least for found in tried)


# -- over HTTP
