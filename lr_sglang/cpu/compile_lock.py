"""One server at a time compiles what SGLang 0.5.16 compiles on first use: the corpus of its n-gram speculation."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def load_alone(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around load_jit, which loads a library as soon as its file is there: the linker may still be writing it."""
    folder = Path(os.environ.get("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lr-sglang.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also when the process is killed
        return load(*args, **kwargs)
