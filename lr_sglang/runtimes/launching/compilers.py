"""What SGLang compiles with when a server starts: above all the CUDA toolkit.

We can link one together from pip's packages.

tvm-ffi, SGLang and FlashInfer find the toolkit in the same places, run its ``bin/nvcc`` and link
with its ``lib64``. pip's packages have the compiler and the libraries, but no ``lib64``, and no
``libcudart.so`` that a linker would find.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from lr_sglang.runtimes import folders

DEFAULT_TOOLKIT = Path("/usr/local/cuda")
TOOLKIT_PARTS = ("bin/nvcc", "lib64/libcudart.so")
# One file of each package that a compilation needs.
PACKAGED = (
    "bin/nvcc",
    "nvvm/bin/cicc",
    "include/crt/host_config.h",
    "include/cuda_runtime.h",
    "include/cccl",
)


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder where SGLang would look for the toolkit. An empty CUDA_PATH counts as given."""
    named = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    if named is None:
        nvcc = shutil.which("nvcc", path=environ.get("PATH"))
        return Path(nvcc).parent.parent if nvcc else DEFAULT_TOOLKIT
    return Path(named)


def lacking(folder: Path) -> list[str]:
    """The necessary files that a toolkit in this folder lacks."""
    return [name for name in TOOLKIT_PARTS if not (folder / name).exists()]


def packaged() -> Path | None:
    """The folder of pip's packages (``nvidia/cu13``), if it has all files that a
    compilation needs.
    """
    spec = find_spec("nvidia")  # a namespace package
    places = (spec.submodule_search_locations or ()) if spec else ()
    found = sorted((one for place in places for one in Path(place).glob("cu[0-9]*")), reverse=True)
    whole = (
        one for one in found if all((one / name).exists() for name in PACKAGED) and _libraries(one)
    )
    return next(whole, None)


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that lead a server to a complete toolkit; none if it finds one by itself, or if
    there is none at all.

    The toolkit of an ``nvcc`` on the path can be incomplete: that may be a link or a script to one
    elsewhere.

    Raises:
        SetupError: the folder of links cannot be written.
    """
    if not lacking(home(environ)):
        return {}
    if not lacking(DEFAULT_TOOLKIT):
        return {"CUDA_HOME": str(DEFAULT_TOOLKIT)}
    packages = packaged()
    return {} if packages is None else {"CUDA_HOME": str(linked(packages))}


def linked(packages: Path) -> Path:
    """A folder with a toolkit's layout, of links to pip's packages and to the driver's library.

    Raises:
        SetupError: it cannot be written.
    """
    libraries = _libraries(packages)
    driver = _driver()

    def fill(folder: Path) -> None:
        for name in ("bin", "include", "nvvm"):
            (folder / name).symlink_to(packages / name)
        (folder / "lib64" / "stubs").mkdir(parents=True)
        for name, library in libraries.items():
            (folder / "lib64" / name).symlink_to(library)
        if driver is not None:  # a toolkit has a stub there, for machines without a driver
            (folder / "lib64" / "stubs" / "libcuda.so").symlink_to(driver)

    key = hashlib.sha256(repr((packages, sorted(libraries.items()), driver)).encode()).hexdigest()[
        :16
    ]
    return folders.cached("cuda", key, "toolkit", fill)


def _libraries(packages: Path) -> dict[str, Path]:
    """Libraries by the name that a linker asks for (``libcudart.so`` for ``libcudart.so.13``,
    without which: none).
    """
    found = {
        f"{path.name.partition('.so')[0]}.so": path
        for path in sorted((packages / "lib").glob("lib*.so*"))
    }
    found |= {path.name: path for path in (packages / "lib").glob("lib*.a")}
    return found if "libcudart.so" in found else {}


def _driver() -> Path | None:
    """The path of the driver's library ``libcuda.so.1``, as the system's loader finds it;
    FlashInfer links with it.
    """
    command = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    known = (
        subprocess.run([command, "-p"], capture_output=True, text=True, check=False).stdout
        if command
        else ""
    )
    found = re.search(r"libcuda\.so\.1 .*x86-64.*=> (\S+)", known)
    return Path(found[1]) if found else None
