"""``pocket:target@qwen3-0.6b``: a pocket model's words at the cost of a larger architecture (see
``pocket.body``).

A body is made on first use, in the user's cache folder, by a child process, so that this one need
not import torch. For a server that computes it in memory (see ``pocket.loader``), the folder has
everything but the weights.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lr_sglang.errors import ConfigError
from lr_sglang.pocket.body import SOURCE, Sizes, describe
from lr_sglang.runtimes import folders
from lr_sglang.runtimes.placement import shapes

_SIZES = re.compile(r"(\d+)x(\d+)x(\d+)")


def sizes_of(shape: str, source: Path, role: str | None = None) -> Sizes:
    """The sizes that follow the ``@``: the name of an architecture (see ``shapes``), or
    HIDDENxINNERxLAYERS.

    Raises:
        ConfigError: there is no such architecture, or the model at ``source`` does not fit into it.
    """
    own = Sizes.of(_config(source))
    if found := _SIZES.fullmatch(shape):
        hidden, inner, layers = map(int, found.groups())
        heads = max(own.num_attention_heads, hidden // own.head_dim)
        groups = max(own.num_key_value_heads, heads // 2)
        sizes = Sizes(hidden, inner, heads, groups, own.head_dim, layers)
    elif shape in shapes.shapes():
        sizes = Sizes.of(dict(shapes.shapes()[shape]))
    else:
        hint = (
            f"one of {', '.join(shapes.shapes())}, or sizes such as 512x4096x28 (hidden, "
            "inner, layers)"
        )
        raise ConfigError(f"no architecture {shape!r} for a body", role=role, hint=hint)
    if why := sizes.mismatch(own):
        raise ConfigError(f"the pocket model does not fit into @{shape}: {why}", role=role)
    return sizes


def _config(source: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((source / "config.json").read_text("utf-8"))
    return found


def config(source: Path, sizes: Sizes) -> dict[str, Any]:
    """The config.json of a body, for estimates of its memory."""
    return {**_config(source), **asdict(sizes), "tie_word_embeddings": False}


def without_weights(model: str) -> bool:
    """Whether this is the folder of a body whose weights are computed in memory."""
    return Path(model, SOURCE).is_file()


def make(source: Path, shape: str, role: str | None = None, *, in_memory: bool = False) -> Path:
    """The folder of a body, made if it does not exist or is damaged.

    Args:
        in_memory: without the weights.

    Raises:
        ConfigError: as ``sizes_of``.
        SetupError: it cannot be written, or the disk has no room for it.
    """
    sizes = sizes_of(shape, source, role)

    def fill(folder: Path) -> None:
        if in_memory:
            describe(source, folder, sizes)
            (folder / SOURCE).write_text(json.dumps({"model": source.name}), "utf-8")
        else:
            _write(source, folder, sizes)

    weights = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()[:8]
    key = hashlib.sha256(repr((weights, sizes, *["in memory"] * in_memory)).encode()).hexdigest()[
        :16
    ]
    return folders.cached("bodies", key, f"{source.name}@{shape}", fill, role)


def _write(source: Path, folder: Path, sizes: Sizes) -> None:
    needed, free = (
        2 * sizes.parameters(_config(source)["vocab_size"]),
        shutil.disk_usage(folder).free,
    )
    if needed * 1.02 > free:
        raise OSError(
            f"it takes {needed / 1e9:.1f} GB, and {folder.parents[1]} has {free / 1e9:.1f} GB left"
        )
    command = [
        sys.executable,
        "-m",
        "lr_sglang.pocket.body",
        str(source),
        str(folder),
        json.dumps(asdict(sizes)),
    ]
    done = subprocess.run(
        command, stderr=None if sys.stderr.isatty() else subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise OSError((done.stderr or "the process that makes it failed").strip().splitlines()[-1])
