"""Real SGLang servers that cannot start: what is said, how soon, and that nothing is
left running.
"""

from __future__ import annotations

import shutil

import psutil
import pytest

from lr_sglang import pocket
from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import LaunchError
from lr_sglang.runtimes import launch
from tests import FULL

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not FULL, reason="each imports all of SGLang: only in test-full"),
]


@pytest.fixture
def nothing_left():
    before = psutil.Process().children(recursive=True)
    yield
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def alone(**settings: object) -> Deployment:
    return Deployment("alone", {"target": Runtime(device="cpu", **settings)})


def test_an_unknown_flag_is_refused_by_sglang_and_named(tmp_path, nothing_left):
    wrong = alone(model="pocket:target", extra={"schedule-polcy": "lpm"})
    with pytest.raises(LaunchError) as caught:
        launch(wrong, tmp_path / "logs", timeout=200)
    error = caught.value
    assert error.role == "target" and "--schedule-polcy" in error.message
    assert "'extra'" in error.hint


def test_a_model_without_weights_ends_while_loading(tmp_path, nothing_left):
    """It dies in the second process, the scheduler, while the first waits for it."""
    model = tmp_path / "model"
    shutil.copytree(pocket.weights("draft"), model, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(LaunchError) as caught:
        launch(alone(model=str(model)), tmp_path / "logs", timeout=200)
    assert caught.value.role == "target" and "weights" in caught.value.message
    assert "whole model" in caught.value.hint
