"""Settings with which several servers start fast and run together on few cores, without a GPU."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from lr_sglang.cpu import CPU_SWITCH

# Families that a CPU server of ours may load. SGLang imports all of its 200 model files when it
# starts: seconds. Any other model is refused by name; SGLang's fallback to transformers, slow and
# untested here, is left out too.
MODEL_FILES = frozenset(
    {"llama", "llama_eagle", "llama_eagle3", "qwen2", "qwen3", "qwen3_classification"}
)
# Families that are hybrids (Gated DeltaNet), and the files that others need beside those above.
HYBRIDS = frozenset({"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"})
MORE_FILES = {
    "qwen3_moe": frozenset({"qwen3_moe", "qwen2_moe"}),
    **dict.fromkeys(
        HYBRIDS, frozenset({"qwen3_5", "qwen3_5_text", "qwen3_next", "qwen2_moe", "qwen3_vl"})
    ),
}
# SGLang's variable for the type of the convolution's state, which it sets for hybrids only. In
# bfloat16, its default, a prefix from the cache would give other numbers than one that is computed.
CONV_DTYPE = "SGLANG_MAMBA_CONV_DTYPE"


def cpu_flags() -> dict[str, Any]:
    """Flags of `sglang.launch_server`, without their dashes; True is a bare flag."""
    return {
        "device": "cpu",
        # For models that fit into the processor's caches; larger ones are faster in bfloat16 (the
        # runtime's ``dtype``).
        "dtype": "float32",
        # The backend that calls our operators; the other one, torch_native, loops over the
        # sequences.
        "attention-backend": "intel_amx",
        # Without it, SGLang's scheduler keeps a core busy while it waits.
        "sleep-on-idle": True,
        # A share of the memory that is free at the start. max-total-tokens is the actual limit; a
        # small share would fail when other servers take memory while this one loads.
        "mem-fraction-static": 0.8,
        "max-total-tokens": 20_000,  # prefixes that are kept count too
        "max-running-requests": 32,  # in one batch; more wait
        # Without a second device to overlap with, it only delays every result by a step.
        "disable-overlap-schedule": True,
        # A new branch's few tokens share a pass with the next tokens of running branches, which
        # would wait otherwise: that is a tenth of the time of a lookahead answer.
        "enable-mixed-chunk": True,
        # Our own first request warms the server.
        "skip-server-warmup": True,
        # A line for every request and every 40 steps costs more than a step of a small model.
        "log-level": "warning",
    }


def cpu_environment(*, family: str = "llama") -> dict[str, str]:
    """Variables on top of the caller's own.

    Args:
        family: the model's type. SGLang imports the files of those that are known here, and every
            model that it knows for any other.
    """
    variables = {
        CPU_SWITCH: "1",
        # Servers that share cores slow each other down several times with two threads each.
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        # A step's inputs need no copy into the static buffers that CUDA graphs read.
        "SGLANG_EAGER_INPUT_NO_COPY": "1",
        # SGLang has small functions of speculative decoding compiled on first use: 20 to 40 s of
        # the first request, for what PyTorch does in microseconds.
        "TORCHDYNAMO_DISABLE": "1",
        # Makes glibc keep large blocks instead of returning them to the system: otherwise a batch
        # with long prefixes spends half of its attention in page faults.
        "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        # Empty is off: Python caches the bytecode of SGLang, torch and transformers. Compiling it
        # in every process is half of a cold start, and some container images switch the cache off.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    # it comes with SGLang, beside a Python that need not be on the path
    if shutil.which("ninja") is None:
        variables["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        )
    if family in HYBRIDS:
        variables[CONV_DTYPE] = "float32"
    if family in MODEL_FILES or family in MORE_FILES:
        files = MODEL_FILES | MORE_FILES.get(family, frozenset())
        variables["SGLANG_DISABLED_MODEL_ARCHS"] = ",".join(_other_model_files(files))
    return variables


def _other_model_files(files: frozenset[str]) -> list[str]:
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        return []
    models = Path(found.submodule_search_locations[0], "srt", "models")
    return sorted(
        path.stem for path in models.glob("*.py") if path.stem not in files | {"__init__"}
    )
