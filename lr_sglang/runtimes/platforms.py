"""What the machine is, and what SGLang needs on it."""

from __future__ import annotations

from lr_sglang.config import Runtime
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes.flags import Device, Platform


def device(runtime: Runtime, role: str | None = None) -> Device:
    """Where a runtime will run: what it asks for, or a GPU if there is one.

    Raises:
        ConfigError: it asks for a GPU and there is none.
    """
    if runtime.device == "cpu":
        return "cpu"
    if _gpus() > 0:
        return "cuda"
    if runtime.device == "cuda" or runtime.gpus:
        raise ConfigError("a GPU is asked for and PyTorch sees none", role=role, hint='set device = "cpu"')
    return "cpu"


def platform(kind: Device) -> Platform:
    """Flags and variables for servers on this kind of device."""
    if kind == "cuda":
        return Platform("cuda")
    return Platform(
        "cpu",
        flags={
            "dtype": "float32",
            "attention-backend": "intel_amx",
            "mem-fraction-static": 0.3,
            "max-total-tokens": 20000,
            "sleep-on-idle": True,
        },
        env={"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"},
        module="lr_sglang.runtimes.launcher",
    )


def _gpus() -> int:
    import torch  # a second to import, and only here

    return torch.cuda.device_count()
