"""The folders in which servers keep what they have compiled at their first start, so that a later one need not."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Content:
    """Number of files in a folder and their size in bytes; both are 0 if there is no such folder."""

    files: int = 0
    size: int = 0


def folders(environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Folders of compiled kernels by compiler; SGLang 0.5.23 keeps all below ``sglang`` unless a variable is set."""
    home = Path(environ.get("HOME") or Path.home())
    cache = home / ".cache"
    extensions = Path(environ.get("XDG_CACHE_HOME") or cache) / "torch_extensions"
    inductor = Path(environ.get("TMPDIR") or tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    of: dict[str, tuple[str, Path | str]] = {
        "tvm-ffi": ("TVM_FFI_CACHE_DIR", cache / "tvm-ffi"),
        "triton": ("TRITON_CACHE_DIR", Path(environ.get("TRITON_HOME") or home) / ".triton" / "cache"),
        "torch inductor": ("TORCHINDUCTOR_CACHE_DIR", inductor),
        "torch extensions": ("TORCH_EXTENSIONS_DIR", extensions),
        "deep_gemm": ("SGLANG_DG_CACHE_DIR", cache / "deep_gemm"),
        "sglang": ("SGLANG_CACHE_DIR", cache / "sglang"),
        "sglang jit": ("SGLANG_JIT_CACHE_DIR", ""),  # where it is not set, below the one above
        "cuda": ("CUDA_CACHE_PATH", home / ".nv" / "ComputeCache"),
    }
    named = {name: environ.get(variable) or default for name, (variable, default) in of.items()}
    found = {name: Path(path).expanduser() for name, path in named.items() if path}
    return found | {"flashinfer": Path(environ.get("FLASHINFER_WORKSPACE_BASE") or home) / ".cache" / "flashinfer"}


def contents(of: Mapping[str, Path]) -> dict[str, Content]:
    """The present content of each folder."""
    return {name: _content(path) for name, path in of.items()}


def _content(folder: Path) -> Content:
    sizes = []
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.lstat(os.path.join(root, name)).st_size)
            except FileNotFoundError:  # a compiler's own, gone meanwhile
                continue
    return Content(len(sizes), sum(sizes))
