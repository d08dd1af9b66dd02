"""The checks of ``lr-sglang doctor`` together, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lr_sglang.cli import doctor_checks as checks
from lr_sglang.cli.doctor_checks import Check
from lr_sglang.runtimes import built_in, load_deployment
from lr_sglang.runtimes.placement import assign, gpus

FOR_GPUS = "flashinfer-python"  # servers on a CPU are kept from importing it


@dataclass(frozen=True)
class Findings:
    """All checks, and what follows. ``cpu``: the embedded default can run; ``gpu``: models on a GPU can."""

    checks: list[Check]
    cpu: bool
    gpu: bool
    presets: list[str]
    verdict: list[str]


def examine() -> Findings:
    """Runs all checks; a few seconds at most."""
    both = [*checks.system(), *checks.sglang(), *checks.packages(), checks.port()]
    for_cpu = [checks.memory(), checks.pack(), checks.pocket_models()]
    seen = gpus.visible()
    for_gpu = list(checks.graphics(seen))
    also = [checks.disk(), checks.compiler(), checks.code_execution(), checks.hub()]
    cpu = not any(check.status == "missing" for check in (*both, *for_cpu) if check.name != FOR_GPUS)
    gpu = bool(seen) and not any(check.status == "missing" for check in (*both, *for_gpu))
    presets = _presets(seen) if gpu else []
    return Findings([*both, *for_cpu, *for_gpu, *also], cpu, gpu, presets, list(_verdict(cpu, gpu, presets)))


def _verdict(cpu: bool, gpu: bool, presets: list[str]) -> Iterator[str]:
    yield (
        "On this CPU: the embedded default runs; try lr-sglang demo"
        if cpu
        else "On this CPU: the embedded default cannot run until what is missing above is there"
    )
    if gpu and presets:
        yield f"On these GPUs: models of your own; presets that fit: {', '.join(presets)} (lr-sglang launch NAME)"
    elif gpu:
        yield "On these GPUs: models of your own (lr-sglang launch); the presets need more memory"
    else:
        yield "On a GPU: nothing, as none can be used here; a server elsewhere can be given by its URL (--target URL)"


def _presets(seen: list[gpus.Gpu]) -> list[str]:
    ours = {name: load_deployment(name) for name in built_in()}
    memory = [gpu.memory for gpu in seen]
    on_gpus = {name: one for name, one in ours.items() if one.runtimes["target"].gpus}
    return [name for name, one in on_gpus.items() if assign.fits(one, memory)]
