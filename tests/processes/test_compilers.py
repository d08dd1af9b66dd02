"""The compiler of pip's packages of CUDA."""

import subprocess
from pathlib import Path

import pytest

from lr_sglang.runtimes.launching import compilers


@pytest.mark.skipif(compilers.packaged() is None, reason="pip's packages of CUDA are not installed")
def test_a_kernel_is_compiled_and_linked_with_pip_packages_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compilers, "DEFAULT_TOOLKIT", tmp_path / "default")
    home = Path(compilers.environment({"CUDA_HOME": str(tmp_path)})["CUDA_HOME"])
    source = tmp_path / "kernel.cu"
    source.write_text(
        "#include <cuda_runtime.h>\n__global__ void nothing() {}\nvoid run() { nothing<<<1, "
        "1>>>(); }\n"
    )
    compiled = [
        home / "bin" / "nvcc",
        "-arch=sm_90",
        "-Xcompiler",
        "-fPIC",
        "-c",
        source,
        "-o",
        tmp_path / "kernel.o",
    ]
    linked = [
        "c++",
        "-shared",
        "-Wl,-z,defs",
        tmp_path / "kernel.o",
        "-L",
        home / "lib64",
        "-lcudart",
    ]
    for command in (compiled, [*linked, "-o", tmp_path / "kernel.so"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
