"""What the machine itself has, for ``lr-sglang doctor``."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lr_sglang.errors import LookaheadError
from lr_sglang.results.machine import machine
from lr_sglang.runtimes.launching import ports
from lr_sglang.runtimes.launching.compiler import need_compiler
from lr_sglang.runtimes.placement.gpus import Gpu

# GiB: the servers of the pocket models take 3.5 of memory (measured, with `launch`); logs and records are small.
POCKET_MEMORY = 4.0
DISK = 2.0
GLIBC = (2, 34)
# torch (2.11 and 2.14) is built for CUDA 13, which these drivers and those after them bring.
DRIVER = 580


@dataclass(frozen=True)
class Check:
    """One line: ``ok``, ``missing`` (with how to ``get`` it), or ``note`` for what something can do without."""

    name: str
    status: Literal["ok", "missing", "note"]
    found: str
    get: str = ""


def needed(name: str, good: bool, found: str, get: str) -> Check:
    """One that something cannot do without."""
    return Check(name, "ok", found) if good else Check(name, "missing", found, get)


def system() -> Iterator[Check]:
    """Python, the C library, the processor."""
    version = platform.python_version()
    yield needed("Python", (3, 11) <= sys.version_info[:2] < (3, 13), version, "Python 3.11 or 3.12")
    kind, libc = platform.libc_ver()
    numbers = tuple(int(part) for part in re.findall(r"\d+", libc)[:2])
    good = platform.machine() == "x86_64" and kind == "glibc" and numbers >= GLIBC
    found = f"{platform.system()} {platform.machine()}, {kind or 'another C library'} {libc}"
    yield needed("system", good, found, "Linux on x86-64 with glibc 2.34 or newer: Debian 12, Ubuntu 22.04")
    about = machine()
    yield Check("CPU", "ok", f"{about['cpu']}, {len(os.sched_getaffinity(0))} cores, {_vectors()}")


def _vectors() -> str:
    """The units for wide arithmetic that the processor has."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return "vector units unknown"
    flags = set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX"}
    return ", ".join(name for flag, name in names.items() if flag in flags) or "no AVX2"


def memory() -> Check:
    """Of the machine."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) / 2**20 for line in lines}
        total, free = sizes["MemTotal"], sizes["MemAvailable"]
    except (OSError, LookupError, ValueError):
        return Check("memory", "note", "unknown")
    get = f"{POCKET_MEMORY:g} GiB for the three servers of the embedded default: end other programs"
    return needed("memory", free >= POCKET_MEMORY, f"{total:.0f} GiB, {free:.0f} available", get)


def disk() -> Check:
    """Where we are."""
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    if free < DISK:
        return Check("disk", "note", f"{free:.1f} GiB free here", "room for logs and records; models need much more")
    return Check("disk", "ok", f"{free:.0f} GiB free here")


def graphics(seen: list[Gpu]) -> Iterator[Check]:
    """The GPUs, their driver, and what compiles for them."""
    if not seen:
        get = "an NVIDIA GPU with its driver (580 or newer), if models larger than the pocket ones shall run here"
        yield Check("GPU", "note", "none", get)
        return
    for number, gpu in enumerate(seen):
        yield Check(f"GPU {number}", "ok", f"{gpu.name}, {gpu.memory:.0f} GiB, {gpu.free:.0f} free")
    driver = seen[0].driver
    major = int(driver.partition(".")[0]) if driver.partition(".")[0].isdigit() else None
    if major is not None:
        yield needed(
            "GPU driver", major >= DRIVER, driver, f"a driver of series {DRIVER} or newer, which CUDA 13 needs"
        )
    compiler = shutil.which("nvcc") or next(_packaged_nvcc(), None)
    if compiler is None:
        get = "install the CUDA toolkit, and set CUDA_HOME"
        yield Check("CUDA compiler", "note", "no nvcc: FlashInfer compiles some kernels on first use", get)
    else:
        yield Check("CUDA compiler", "ok", str(compiler))


def _packaged_nvcc() -> Iterator[Path]:
    home = os.environ.get("CUDA_HOME")
    if home and Path(home, "bin", "nvcc").is_file():
        yield Path(home, "bin", "nvcc")
    for folder in map(Path, sys.path):
        yield from folder.glob("nvidia/cu*/bin/nvcc")


def compiler() -> Check:
    """Of C++."""
    try:
        need_compiler()
    except LookaheadError as error:
        return Check("C++ compiler", "note", error.message, error.hint)
    return Check("C++ compiler", "ok", "there, with ninja (SGLang's n-gram speculation needs both)")


def code_execution() -> Check:
    """What would keep the code of answers apart."""
    from lr_sglang.grading import sandbox

    if found := sandbox.standing():
        return Check("code of answers", "ok", f"is kept apart by {found[0]}, if it may be run (grading of code)")
    get = "install bubblewrap (Debian, Ubuntu: apt install bubblewrap), or permit user namespaces"
    return Check("code of answers", "note", "nothing keeps it apart: it is not run", get)


def port() -> Check:
    """Whether servers can listen."""
    try:
        port = ports.Reservation()
    except LookaheadError as error:
        return Check("ports", "missing", error.message, "servers must be able to listen on 127.0.0.1")
    port.release()
    return Check("ports", "ok", f"free ones on {ports.HOST}")
