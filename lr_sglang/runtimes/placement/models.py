"""Where a model is: a path, a model that ships with the package, a shape, or a name on the hub."""

from __future__ import annotations

from pathlib import Path

from lr_sglang import plugin_files
from lr_sglang.config import ROLES
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes.placement import shapes

POCKET = "pocket:"


def is_pocket(model: str) -> bool:
    """True for a model that ships with the package."""
    return model.startswith(POCKET)


def is_path(model: str) -> bool:
    """True for what can only be a path; ``a/b`` is a hub name unless there is such a directory here."""
    return model.startswith(("/", ".", "~"))


def locate(model: str, role: str | None = None) -> str:
    """What SGLang shall load.

    Raises:
        ConfigError: a path, a pocket model or a shape that does not exist. Hub names are left to SGLang.
        SetupError: a shape cannot be written.
    """
    if model.startswith(shapes.PREFIX):
        return str(shapes.make(model, role))
    if is_pocket(model):
        return str(_pocket(model.removeprefix(POCKET), role))
    path = plugin_files.expanded(model)
    if is_path(model):
        if not path.is_dir() and not (path.suffix == ".gguf" and path.is_file()):
            what = "is a file, not a model's directory" if path.exists() else "does not exist"
            raise ConfigError(
                f"model {model!r} {what}", role=role, hint="give a directory, a hub name (owner/name) or pocket:target"
            )
        return str(path.resolve())
    return str(path.resolve()) if path.is_dir() else model


def _pocket(name: str, role: str | None) -> Path:
    if name not in ROLES:
        raise ConfigError(f"no pocket model {name!r}", role=role, hint=f"there are {', '.join(ROLES)}")
    from lr_sglang import pocket

    path = Path(pocket.weights(name))
    if not path.is_dir():
        raise ConfigError(
            f"the pocket model {name!r} is not in this installation",
            role=role,
            hint="install lr-sglang from a complete checkout, or train it (see lr_sglang/pocket)",
        )
    return path
