"""The checks of ``lr-sglang doctor``: the machine, the installed parts of lr-sglang, and what it
can reach.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Literal

from lr_sglang import pocket
from lr_sglang.results.machine import machine
from lr_sglang.runtimes.launching import compilers
from lr_sglang.runtimes.placement.gpus import Gpu
from lr_sglang.sglang_api import release

HUB_SECONDS = 3.0
PACKAGES = ("torch", "transformers", "flashinfer-python", "sglang-kernel")
INSTALL = "pip install -c constraints.txt . in a checkout of lr-sglang"
# GiB: the servers of the pocket models take 3.5 (measured, with `launch`).
POCKET_MEMORY = 4.0
GLIBC = (2, 34)
# torch (2.11 and 2.14) is built for CUDA 13, which these drivers and those after them bring.
DRIVER = 580


@dataclass(frozen=True)
class Check:
    """One line: ``ok``, ``missing`` (with how to ``get`` it), or ``note`` if only some features
    need it.
    """

    name: str
    status: Literal["ok", "missing", "note"]
    found: str
    get: str = ""


@dataclass(frozen=True)
class Findings:
    """All checks and their result. ``cpu``: the embedded default can run; ``gpu``: models on a GPU
    can.
    """

    checks: list[Check]
    cpu: bool
    gpu: bool
    presets: list[str]
    verdict: list[str]


def needed(
    name: str, good: bool, found: str, get: str, otherwise: Literal["missing", "note"] = "missing"
) -> Check:
    """``ok`` if it is good, else ``missing`` with how to get it."""
    return Check(name, "ok", found) if good else Check(name, otherwise, found, get)


def system() -> Iterator[Check]:
    """Python, the C library, the processor."""
    version = platform.python_version()
    yield needed(
        "Python", (3, 11) <= sys.version_info[:2] < (3, 13), version, "Python 3.11 or 3.12"
    )
    kind, libc = platform.libc_ver()
    numbers = tuple(int(part) for part in re.findall(r"\d+", libc)[:2])
    good = platform.machine() == "x86_64" and kind == "glibc" and numbers >= GLIBC
    found = f"{platform.system()} {platform.machine()}, {kind or 'another C library'} {libc}"
    yield needed(
        "system", good, found, "Linux on x86-64 with glibc 2.34 or newer: Debian 12, Ubuntu 22.04"
    )
    yield Check("CPU", "ok", f"{machine()['cpu']}, {len(os.sched_getaffinity(0))} cores")


def memory() -> Check:
    """Whether the pocket models' servers fit into the memory."""
    import psutil  # type: ignore[import-untyped]  # SGLang brings it

    total, free = (size / 2**30 for size in psutil.virtual_memory()[:2])
    get = f"{POCKET_MEMORY:g} GiB for the three servers of the embedded default: end other programs"
    return needed("memory", free >= POCKET_MEMORY, f"{total:.0f} GiB, {free:.0f} available", get)


def graphics(seen: list[Gpu]) -> Iterator[Check]:
    """The GPUs, their driver, and what compiles for them."""
    if not seen:
        get = (
            "an NVIDIA GPU with its driver (580 or newer), if models larger than the pocket "
            "ones shall run here"
        )
        yield Check("GPU", "note", "none", get)
        return
    for number, gpu in enumerate(seen):
        yield Check(f"GPU {number}", "ok", f"{gpu.name}, {gpu.memory:.0f} GiB, {gpu.free:.0f} free")
    driver, get = seen[0].driver, f"a driver of series {DRIVER} or newer, which CUDA 13 needs"
    if (major := driver.partition(".")[0]).isdigit():
        yield needed("GPU driver", int(major) >= DRIVER, driver, get)
    yield cuda_toolkit()


def cuda_toolkit() -> Check:
    """The toolkit with which SGLang compiles kernels at its first start, or pip's packages in its
    place.
    """
    home = compilers.home()
    missing = " and ".join(compilers.lacking(home))
    if missing and not compilers.lacking(compilers.DEFAULT):
        return Check("CUDA toolkit", "ok", f"{compilers.DEFAULT}; servers get it as CUDA_HOME")
    if missing and (packages := compilers.packaged()):
        return Check(
            "CUDA toolkit",
            "ok",
            f"pip's packages in {packages}; servers get a folder of links to them",
        )
    found = (
        f"{home} lacks {missing}, with which SGLang compiles its kernels" if missing else str(home)
    )
    get = (
        "install NVIDIA's CUDA toolkit and set CUDA_HOME to its folder, or all of SGLang's "
        "packages from pip"
    )
    return needed("CUDA toolkit", not missing, found, get)


def compiler() -> Check:
    """Whether there is a C++ compiler."""
    command = os.environ.get("CXX", "c++")  # SGLang brings ninja, which builds with it
    get = "install one (on Debian or Ubuntu: apt-get install g++); n-gram speculation compiles C++"
    there = shutil.which(command.partition(" ")[0]) is not None
    return needed("C++ compiler", there, command if there else f"no {command}", get, "note")


def sglang() -> Check:
    """Whether the installed SGLang was tested."""
    found = release.version()
    if not found:
        return Check("sglang", "missing", "not installed", INSTALL)
    return needed("sglang", release.is_tested(found), release.describe(found), INSTALL, "note")


def packages() -> Iterator[Check]:
    """What SGLang needs beside itself; ``pip check`` compares the versions."""
    for name in PACKAGES:
        try:
            yield Check(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "missing", "not installed", INSTALL)


def pack() -> Check:
    """Whether SGLang finds our package for CPUs."""
    groups = ("sglang.srt.platforms", "sglang.srt.plugins")
    lacking = [
        group
        for group in groups
        if not importlib.metadata.entry_points(group=group, name="lr_sglang_cpu")
    ]
    lacking += ["common_ops"] if importlib.util.find_spec("common_ops") is None else []
    found = f"not found by SGLang: {', '.join(lacking)}" if lacking else "installed"
    return needed(
        "CPU pack",
        not lacking,
        found,
        "pip install -e . in the checkout: being on the path is not enough",
    )


def pocket_models() -> Check:
    """Whether their weights are installed."""
    lacking = [
        role for role in pocket.ROLES if not list(pocket.weights(role).glob("*.safetensors"))
    ]
    found = f"without weights: {', '.join(lacking)}" if lacking else "target, draft, judge"
    return needed(
        "pocket models",
        not lacking,
        found,
        "install from a complete checkout, or make pocket (hours)",
    )


def hub() -> Check:
    """Whether models can be downloaded; models at paths and the pocket models need no hub."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Check(
            "model hub",
            "note",
            "offline mode (HF_HUB_OFFLINE)",
            "models by their path, or from the cache",
        )
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:  # by the environment's proxy, if any, as for downloads of models
        urllib.request.urlopen(
            urllib.request.Request(address, method="HEAD"), timeout=HUB_SECONDS
        ).close()
    except urllib.error.HTTPError:
        pass  # it answers
    except (OSError, ValueError, HTTPException):
        get = "give models by their path, or set HF_ENDPOINT"
        return Check("model hub", "note", f"{address} does not answer", get)
    return Check("model hub", "ok", address)
