"""The GPUs that this process may use: what ``nvidia-smi`` says, within CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from lr_sglang.errors import ConfigError

ASKED = "index,uuid,name,memory.total,memory.free,driver_version"


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in GiB."""

    name: str
    memory: float
    free: float
    driver: str = ""


def visible(environ: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The visible GPUs, in the order of a deployment's ``gpus``; empty without a driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return _from_torch()
    asked = [command, f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"]
    try:
        reply = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    # The table has no part of a GPU (MIG), and [N/A] for memory that GPU and processor share.
    return read_gpus(reply.stdout, environ.get("CUDA_VISIBLE_DEVICES")) or _from_torch()


def read_gpus(table: str, allowed: str | None) -> list[Gpu]:
    """The GPUs of the table that ``nvidia-smi`` prints for ``ASKED``, limited to those in
    CUDA_VISIBLE_DEVICES.
    """
    found: dict[str, Gpu] = {}
    by_uuid: dict[str, str] = {}
    for line in table.splitlines():
        # not a row, or memory is [N/A], for example on a GPU split by MIG
        with suppress(ValueError):
            index, uuid, name, total, free, driver = (cell.strip() for cell in line.split(","))
            found[index] = Gpu(name, float(total) / 1024, float(free) / 1024, driver)
            by_uuid[uuid] = index
    if allowed is None:
        return list(found.values())
    chosen = []
    for name in (part.strip() for part in allowed.split(",")):
        index = next(
            (index for uuid, index in by_uuid.items() if name and uuid.startswith(name)), name
        )
        if index not in found:
            break  # as CUDA, which ignores all names after an unknown one
        chosen.append(found[index])
    return chosen


_KIND = re.compile(r"(?:(\d{1,3})x)?(\d+(?:\.\d+)?)(?:GB)?", re.IGNORECASE)
# Share of a GPU's nominal memory, in GB as it is sold, that is free in GiB on an idle one: 79 of an
# H100 of 80 GB, 139 of an H200 of 141.
FREE_SHARE = 0.98


def described(text: str) -> list[Gpu]:
    """The GPUs of a machine that is not this one: ``4x80``, ``1x141``, ``2x80,2x24``, numbers of
    GPUs and the GB of each.

    Raises:
        ConfigError: it is written otherwise, or has no GPU.
    """
    found: list[Gpu] = []
    for part in text.split(","):
        kind = _KIND.fullmatch(part.strip())
        number, size = (int(kind[1] or 1), float(kind[2])) if kind else (0, 0.0)
        if not (number and size):
            raise ConfigError(
                f"--gpus {text}: {part.strip()!r} describes no GPUs",
                hint="NUMBERxGB, such as 4x80, or 2x80,1x24 for GPUs that differ",
            )
        found += [Gpu(f"{size:g} GB", size, FREE_SHARE * size)] * number
    return found


def _from_torch() -> list[Gpu]:
    """The GPUs as torch reports them, where ``nvidia-smi`` does not. Slow, so only if there are
    device files.
    """
    if not os.path.exists("/dev/nvidiactl"):
        return []
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(Gpu(torch.cuda.get_device_name(index), total / 2**30, free / 2**30))
    return found
