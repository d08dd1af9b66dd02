"""The kind of machine, and the flags and variables that SGLang needs on it."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from lr_sglang.config import Runtime
from lr_sglang.cpu import settings
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.runtimes.launching import compilers
from lr_sglang.runtimes.launching.flags import Device, Flags, Platform
from lr_sglang.runtimes.placement import gpus, models

HOPPER = re.compile(r"\bG?H\d+\b")  # H100, H200, GH200 and so on


def device(runtime: Runtime, role: str | None = None) -> Device:
    """Where a runtime will run: as it asks, else on a GPU if there is one. Pocket models gain
    nothing: on a CPU.

    Raises:
        ConfigError: it asks for a GPU and there is none.
    """
    small = models.is_pocket(runtime.model) and not models.is_body(runtime.model)
    if runtime.device == "cpu" or (runtime.device == "auto" and small and not runtime.gpus):
        return "cpu"
    if _gpus() > 0:
        return "cuda"
    if runtime.device == "cuda" or runtime.gpus:
        raise ConfigError(
            "a GPU is asked for and PyTorch sees none", role=role, hint="set device = 'cpu'"
        )
    return "cpu"


def platform(kind: Device, model: str) -> Platform:
    """Flags and variables for a server of this model (a path or a hub name) on this kind of device.

    Raises:
        SetupError: our CPU package is not installed for SGLang; or the folder of the CUDA
            toolkit cannot be written.
    """
    if kind == "cuda":
        # With metrics, a server reports when a request entered, so that prefix reuse is exact. On a
        # CPU they would cost a small model a twentieth of its speed.
        return Platform("cuda", {"enable-metrics": True, **_attention()}, compilers.environment())
    if not entry_points(group="sglang.srt.platforms", name="lr_sglang_cpu"):
        raise SetupError(
            "lr-sglang is not installed, only on the path: SGLang then does not find its "
            "operators for the CPU",
            hint="install it: pip install -e . in its checkout",
        )
    family = models.said(model, "config.json", "model_type")
    return Platform(
        "cpu",
        flags=settings.flags(),
        # TMPDIR: see guardian.py. On a GPU it stays: libraries keep there what they compiled.
        env={**settings.environment(all_models=family not in settings.MODEL_FILES), "TMPDIR": ""},
        module="lr_sglang.runtimes.launching.launcher",
    )


def _attention() -> Flags:
    """Triton attention on Hopper if fa3's library is missing: SGLang would choose fa3
    all the same.
    """
    kernels = find_spec("sgl_kernel")
    folders = kernels.submodule_search_locations if kernels is not None else None
    if any(list(Path(folder).glob("flash_ops*")) for folder in folders or ()):
        return {}
    return (
        {"attention-backend": "triton"}
        if any(HOPPER.search(gpu.name) for gpu in gpus.visible())
        else {}
    )


def _gpus() -> int:
    import torch  # a second to import, and only here

    return int(torch.cuda.device_count())
