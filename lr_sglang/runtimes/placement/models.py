"""Where a model is: a path, a model that ships with the package or its body, a shape, or a name on
the hub.
"""

from __future__ import annotations

import json
import time
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from lr_sglang import plugin_files, pocket
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes.placement import bodies, shapes

POCKET = "pocket:"
FETCHING = 60.0  # seconds for which a download may make no progress


def is_pocket(model: str) -> bool:
    """True for a model that ships with the package."""
    return model.startswith(POCKET)


def prompt_for(judge: str) -> str:
    """The judge's prompt that suits a model, if the deployment file gives none."""
    return "pocket" if is_pocket(judge) else "paper"


def is_body(model: str) -> bool:
    """True for a pocket model in a larger body: ``pocket:target@qwen3-0.6b``."""
    return is_pocket(model) and "@" in model


def is_path(model: str) -> bool:
    """True for what can only be a path; ``a/b`` is a hub name unless there is such a directory
    here.
    """
    return model.startswith(("/", ".", "~"))


def locate(model: str, role: str | None = None, *, in_memory: bool = False) -> str:
    """The path or hub name that SGLang loads.

    Args:
        in_memory: for a body, a folder without its weights (see ``bodies.make``).

    Raises:
        ConfigError: a path, a pocket model, a body or a shape that does not exist. Hub names are
            left to SGLang.
        SetupError: a shape or a body cannot be written.
    """
    if model.startswith(shapes.PREFIX):
        return str(shapes.make(model, role))
    if is_pocket(model):
        return str(_pocket(model.removeprefix(POCKET), role, in_memory))
    path = plugin_files.expanded(model)
    if is_path(model):
        if not path.is_dir() and not (path.suffix == ".gguf" and path.is_file()):
            what = "is a file, not a model's directory" if path.exists() else "does not exist"
            raise ConfigError(
                f"model {model!r} {what}",
                role=role,
                hint="give a directory, a hub name (owner/name) or pocket:target",
            )
        return str(path.resolve())
    return str(path.resolve()) if path.is_dir() else model


def said(model: str, file: str, *keys: str) -> Any:
    """A value of a JSON file in a model's directory; None where it cannot be read
    without the hub.
    """
    try:
        return reduce(getitem, keys, json.loads(Path(model, file).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def being_fetched(model: str) -> bool:
    """Whether a model is being downloaded from the hub: a file in its cache has grown within the
    last minute.
    """
    from huggingface_hub import constants

    kept = Path(constants.HF_HUB_CACHE, f"models--{model.replace('/', '--')}", "blobs")
    try:
        return any(
            time.time() - file.stat().st_mtime < FETCHING for file in kept.glob("*.incomplete")
        )
    except OSError:  # a file was complete and renamed at this moment
        return True


def body_config(model: str) -> dict[str, object]:
    """The config.json of a body, without making the body.

    Raises:
        ConfigError: there is no such pocket model or architecture.
    """
    name, _, shape = model.removeprefix(POCKET).partition("@")
    source = _pocket(name, None)
    return bodies.config(source, bodies.sizes_of(shape, source))


def _pocket(name: str, role: str | None, in_memory: bool = False) -> Path:
    name, _, shape = name.partition("@")
    if name not in pocket.MODELS:
        raise ConfigError(
            f"no pocket model {name!r}", role=role, hint=f"there are {', '.join(pocket.MODELS)}"
        )
    path = Path(pocket.weights(name))
    if not path.is_dir():
        raise ConfigError(
            f"the pocket model {name!r} is not in this installation",
            role=role,
            hint="install lr-sglang from a complete checkout, or train it (make pocket)",
        )
    return bodies.make(path, shape, role, in_memory=in_memory) if shape else path
