"""``pocket:target@qwen3-0.6b``: a pocket model's words at the cost of a larger architecture (see ``pocket.body``).

A body is made on first use, in the user's cache folder, by a process of its own: this one need not import torch. For a
server that computes it in memory (see ``pocket.loader``), the folder has all but the weights.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.pocket.body import SOURCE, Sizes, describe
from lr_sglang.runtimes import folders
from lr_sglang.runtimes.placement import shapes

SUMS = "checksums.json"  # written last: sizes in bytes and SHA-256 of the other files
_SIZES = re.compile(r"(\d+)x(\d+)x(\d+)")


def sizes_of(shape: str, source: Path, role: str | None = None) -> Sizes:
    """The sizes that follow the ``@``: the name of an architecture (see ``shapes``), or HIDDENxINNERxLAYERS.

    Raises:
        ConfigError: there is no such architecture, or the model at ``source`` does not fit into it.
    """
    own = Sizes.of(json.loads((source / "config.json").read_text("utf-8")))
    if found := _SIZES.fullmatch(shape):
        hidden, inner, layers = map(int, found.groups())
        heads = max(own.num_attention_heads, hidden // own.head_dim)
        groups = max(own.num_key_value_heads, heads // 2)
        sizes = Sizes(hidden, inner, heads, groups, own.head_dim, layers)
    elif shape in shapes.shapes():
        sizes = Sizes.of(dict(shapes.shapes()[shape]))
    else:
        hint = f"one of {', '.join(shapes.shapes())}, or sizes such as 512x4096x28 (hidden, inner, layers)"
        raise ConfigError(f"no architecture {shape!r} for a body", role=role, hint=hint)
    if why := sizes.mismatch(own):
        raise ConfigError(f"the pocket model does not fit into @{shape}: {why}", role=role)
    return sizes


def config(source: Path, sizes: Sizes) -> dict[str, object]:
    """The config.json of a body, for estimates of its memory."""
    return {**json.loads((source / "config.json").read_text("utf-8")), **asdict(sizes), "tie_word_embeddings": False}


def without_weights(model: str) -> bool:
    """Whether this is the folder of a body whose weights are computed in memory."""
    return Path(model, SOURCE).is_file()


def make(source: Path, shape: str, role: str | None = None, *, in_memory: bool = False) -> Path:
    """The folder of a body, made if it is not there yet or is damaged.

    Args:
        in_memory: without the weights.

    Raises:
        ConfigError: as ``sizes_of``.
        SetupError: it cannot be written, or the disk has no room for it.
    """
    sizes = sizes_of(shape, source, role)
    weights = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()[:8]
    digest = hashlib.sha256(repr((weights, sizes, *["in memory"] * in_memory)).encode()).hexdigest()[:16]
    folder = folders.of_user("XDG_CACHE_HOME", ".cache") / "bodies" / digest / f"{source.name}@{shape}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several servers may need it at once
            if not _is_whole(folder):
                _make(source, folder, sizes, in_memory)
    except OSError as error:
        hint = "set XDG_CACHE_HOME to a directory of yours"
        raise SetupError(f"the body {shape!r} cannot be made: {error}", role=role, hint=hint) from error
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether all files are there, in the sizes that they were written in."""
    try:
        sums = json.loads((folder / SUMS).read_text("utf-8"))
        return all((folder / name).stat().st_size == size for name, (size, _) in sums.items())
    except (OSError, ValueError):
        return False


def _make(source: Path, folder: Path, sizes: Sizes, in_memory: bool) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        if in_memory:
            describe(source, partial, sizes)
            (partial / SOURCE).write_text(json.dumps({"model": source.name}), "utf-8")
        else:
            _write(source, partial, sizes)
        sums = {file.name: (file.stat().st_size, _sha256(file)) for file in sorted(partial.iterdir())}
        (partial / SUMS).write_text(json.dumps(sums, indent=1), "utf-8")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(source: Path, folder: Path, sizes: Sizes) -> None:
    config = json.loads((source / "config.json").read_text("utf-8"))
    needed, free = 2 * sizes.parameters(config["vocab_size"]), shutil.disk_usage(folder).free
    if needed * 1.02 > free:
        raise OSError(f"it takes {needed / 1e9:.1f} GB, and {folder.parent} has {free / 1e9:.1f} GB left")
    command = [sys.executable, "-m", "lr_sglang.pocket.body", str(source), str(folder), json.dumps(asdict(sizes))]
    done = subprocess.run(command, stderr=None if sys.stderr.isatty() else subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise OSError((done.stderr or "the process that makes it failed").strip().splitlines()[-1])


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
