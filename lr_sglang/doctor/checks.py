"""Checks of this machine: what it can do, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from lr_sglang import hub as model_hub
from lr_sglang import pocket
from lr_sglang.doctor.finding import Finding, finding
from lr_sglang.results import machine
from lr_sglang.runtimes import built_in, load_deployment
from lr_sglang.runtimes.launching import compilers
from lr_sglang.runtimes.placement import gpus
from lr_sglang.runtimes.placement.gpus import Gpu
from lr_sglang.runtimes.placement.memory import fits
from lr_sglang.sglang_api import release

NEEDED_PACKAGES = ("torch", "transformers", "flashinfer-python", "sglang-kernel")
INSTALL_HINT = "pip install -c constraints.txt . in a checkout of lr-sglang"
# GiB: the servers of the pocket models take 3.5 (measured, with `launch`).
POCKET_MEMORY = 4.0
GLIBC = (2, 34)
# torch (2.11 and 2.14) is built for CUDA 13, which these drivers and those after them bring.
DRIVER = 580


@dataclass(frozen=True)
class Findings:
    """All checks and their result. ``cpu``: the embedded default can run; ``gpu``: models on a GPU
    can.
    """

    lines: list[Finding]
    cpu: bool
    gpu: bool
    presets: list[str]
    verdict: list[str]

    @property
    def able(self) -> bool:
        """Whether models can run here."""
        return self.cpu or self.gpu


def needed(name: str, good: bool, found: str, get: str) -> Finding:
    """``ok`` if it is good, else a fault with how to get it."""
    return finding("", name, good, found, get, "fault")


def system() -> Iterator[Finding]:
    """Python, the C library, the processor, the memory for the pocket models' servers."""
    import psutil  # type: ignore[import-untyped]  # SGLang brings it

    version = platform.python_version()
    yield needed(
        "Python", (3, 11) <= sys.version_info[:2] < (3, 13), version, "Python 3.11 or 3.12"
    )
    kind, libc = platform.libc_ver()
    numbers = tuple(int(part) for part in re.findall(r"\d+", libc)[:2])
    yield needed(
        "system",
        platform.machine() == "x86_64" and kind == "glibc" and numbers >= GLIBC,
        f"{platform.system()} {platform.machine()}, {kind or 'another C library'} {libc}",
        "Linux on x86-64 with glibc 2.34 or newer: Debian 12, Ubuntu 22.04",
    )
    yield Finding(
        "", "CPU", "ok", f"{machine.machine()['cpu']}, {len(os.sched_getaffinity(0))} cores"
    )
    total, free = (size / 2**30 for size in psutil.virtual_memory()[:2])
    yield needed(
        "memory",
        free >= POCKET_MEMORY,
        f"{total:.0f} GiB, {free:.0f} available",
        f"{POCKET_MEMORY:g} GiB for the three servers of the embedded default: end other programs",
    )


def installed_parts() -> Iterator[Finding]:
    """The installed parts: SGLang and what it needs (``pip check`` compares the versions), our
    package for CPUs as SGLang finds it, the pocket models' weights.
    """
    yield sglang()
    for name in NEEDED_PACKAGES:
        found = release.version(name)
        yield needed(name, bool(found), found or "not installed", INSTALL_HINT)
    groups = ("sglang.srt.platforms", "sglang.srt.plugins")
    lacking = [
        group
        for group in groups
        if not importlib.metadata.entry_points(group=group, name="lr_sglang_cpu")
    ]
    lacking += ["common_ops"] if importlib.util.find_spec("common_ops") is None else []
    yield needed(
        "CPU pack",
        not lacking,
        f"not found by SGLang: {', '.join(lacking)}" if lacking else "installed",
        "pip install -e . in the checkout: being on the path is not enough",
    )
    empty = [
        role for role in pocket.MAIN_MODELS if not list(pocket.weights(role).glob("*.safetensors"))
    ]
    yield needed(
        "pocket models",
        not empty,
        f"without weights: {', '.join(empty)}" if empty else "target, draft, judge",
        "install from a complete checkout, or make pocket (hours)",
    )


def graphics(seen: list[Gpu]) -> Iterator[Finding]:
    """The GPUs, their driver, and what compiles for them."""
    if not seen:
        get = (
            "an NVIDIA GPU with its driver (580 or newer), if models larger than the pocket "
            "ones shall run here"
        )
        yield Finding("", "GPU", "warning", "none", get)
        return
    for number, gpu in enumerate(seen):
        yield Finding(
            "", f"GPU {number}", "ok", f"{gpu.name}, {gpu.memory:.0f} GiB, {gpu.free:.0f} free"
        )
    driver = seen[0].driver
    get = f"a driver of series {DRIVER} or newer, which CUDA 13 needs"
    if (major := driver.partition(".")[0]).isdigit():
        yield needed("GPU driver", int(major) >= DRIVER, driver, get)
    yield cuda_toolkit()


def cuda_toolkit() -> Finding:
    """The toolkit with which SGLang compiles kernels at its first start, or pip's packages in its
    place.
    """
    home = compilers.home()
    missing = " and ".join(compilers.lacking(home))
    if missing and not compilers.lacking(compilers.DEFAULT_TOOLKIT):
        return Finding(
            "", "CUDA toolkit", "ok", f"{compilers.DEFAULT_TOOLKIT}; servers get it as CUDA_HOME"
        )
    if missing and (packages := compilers.packaged()):
        return Finding(
            "",
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


def compiler() -> Finding:
    """Whether there is a C++ compiler."""
    command = os.environ.get("CXX", "c++")  # SGLang brings ninja, which builds with it
    get = "install one (on Debian or Ubuntu: apt-get install g++); n-gram speculation compiles C++"
    there = shutil.which(command.partition(" ")[0]) is not None
    return finding("", "C++ compiler", there, command if there else f"no {command}", get)


def sglang() -> Finding:
    """Whether the installed SGLang was tested."""
    found = release.version()
    if not found:
        return Finding("", "sglang", "fault", "not installed", INSTALL_HINT)
    said = release.describe_release(found)
    return finding("", "sglang", release.is_tested(found), said, INSTALL_HINT)


def hub() -> Finding:
    """Whether models can be downloaded; models at paths and the pocket models need no hub."""
    if model_hub.is_off():
        return Finding(
            "",
            "model hub",
            "warning",
            "offline mode (HF_HUB_OFFLINE)",
            "models by their path, or from the cache",
        )
    address = model_hub.address()
    if not model_hub.answers():
        get = "give models by their path, or set HF_ENDPOINT"
        return Finding("", "model hub", "warning", f"{address} does not answer", get)
    return Finding("", "model hub", "ok", address)


# What only servers on a GPU need (those on a CPU are kept from importing FlashInfer), and only the
# pocket models on a CPU.
FOR_GPUS = {"flashinfer-python", "GPU driver", "CUDA toolkit"}
FOR_CPU = {"memory", "CPU pack", "pocket models"}


def check_machine() -> Findings:
    """Runs all checks; a few seconds at most."""
    seen = gpus.visible()
    lines = [*system(), *installed_parts(), *graphics(seen), compiler(), hub()]
    missing = {check.name for check in lines if check.status == "fault"}
    cpu = not missing - FOR_GPUS
    gpu = bool(seen) and not missing - FOR_CPU
    presets = []
    for name in built_in() if gpu else ():
        one = load_deployment(name)
        target = one.runtimes["target"]
        if (target.gpus or target.device == "cuda") and fits(one, [gpu.memory for gpu in seen]):
            presets.append(name)
    return Findings(lines, cpu, gpu, presets, list(_verdict(cpu, gpu, presets)))


def _verdict(cpu: bool, gpu: bool, presets: list[str]) -> Iterator[str]:
    runs = "runs; try lr-sglang demo" if cpu else "cannot run until what is missing above is there"
    yield f"On this CPU: the embedded default {runs}"
    names = f"presets that fit: {', '.join(presets)} (lr-sglang launch NAME)"
    if gpu and not presets:
        names = "the presets need more memory (lr-sglang launch)"
    nothing = (
        "On a GPU: nothing, as none can be used here; a server elsewhere can be given by "
        "its URL (--target URL)"
    )
    yield f"On these GPUs: models of your own; {names}" if gpu else nothing
