"""The environment of a run: versions of the packages, and the machine's processors."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from lr_sglang.runtimes.placement import gpus
from lr_sglang.sglang_api import release

NOTED_PACKAGES = ("lr-sglang", "sglang", "torch", "transformers")


def versions() -> dict[str, str]:
    """Versions by package."""
    found = {"python": platform.python_version()}
    found |= {name.replace("-", "_"): release.version(name) for name in NOTED_PACKAGES}
    return found | {"sglang_tested": "yes" if release.is_tested(found["sglang"]) else "no"}


def machine() -> dict[str, Any]:
    """The operating system and the processors."""
    return {
        "system": platform.platform(),
        "cpu": cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpus": [gpu.name for gpu in gpus.visible()],
    }


def busy(seconds: float = 0.2) -> float:
    """The share of the processors that is in use, measured for so many seconds."""
    import psutil  # type: ignore[import-untyped]  # SGLang brings it

    return float(psutil.cpu_percent(seconds)) / 100


def cpuinfo(key: str) -> str:
    """The first processor's value of a key in /proc/cpuinfo; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
