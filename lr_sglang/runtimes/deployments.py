"""Reads deployments from TOML files, built-in ones by name and others by path, and applies the
command line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.config import ROLES, Deployment, Runtime
from lr_sglang.errors import ConfigError, did_you_mean
from lr_sglang.runtimes.placement.models import POCKET, prompt_for

# What is an address of a server and no model, with or without its scheme.
_ADDRESS = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d+(?:/.*)?")
BUILT_IN = (Path(__file__).parent, Path(__file__).parent / "presets")
DEFAULT_DEPLOYMENT = "pocket"


def built_in() -> list[str]:
    """Names of the deployments that come with the package."""
    return sorted(file.stem for folder in BUILT_IN for file in folder.glob("*.toml"))


def deployment_file(name_or_path: str | Path) -> Path:
    """The file of a built-in deployment, or the path itself."""
    ours = (
        folder / f"{name_or_path}.toml" for folder in BUILT_IN if str(name_or_path) in built_in()
    )
    return next((file for file in ours if file.is_file()), plugin_files.expanded(name_or_path))


def summary(name_or_path: str | Path) -> str:
    """A deployment's purpose: the first comment line of its file."""
    text = plugin_files.text_of(deployment_file(name_or_path))
    return text.split("\n", 1)[0].removeprefix("#").strip() if text.startswith("#") else ""


def load_deployment(name_or_path: str | Path = DEFAULT_DEPLOYMENT) -> Deployment:
    """Reads a deployment.

    A role may be a table, ``[runtimes.judge]``, or under ``[runtimes]`` the name of another role
    whose runtime it shares: ``judge = "target"``. Paths of models that begin with a dot are
    relative to the file.

    Args:
        name_or_path: a built-in name (see ``built_in``) or the path of a TOML file.

    Raises:
        ConfigError: no such file, not TOML, or an invalid key or value; the message begins with the
            file's name.
    """
    path = deployment_file(name_or_path)
    try:
        table = tomllib.loads(plugin_files.text_of(path))
    except OSError as error:
        near = (
            f"built-in deployments: {', '.join(built_in())}; anything else is the path of a "
            "TOML file"
        )
        hint = did_you_mean(str(name_or_path), built_in(), near, cutoff=0.75)
        raise ConfigError(
            f"{path}: cannot read the deployment: {error.strerror}", hint=hint
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path.name}: this is not TOML: {error}", hint="see https://toml.io"
        ) from error
    try:
        return _deployment({"name": path.stem, **table}, path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(
            f"{path.name}: {error.message}", role=error.role, hint=error.hint
        ) from error


def custom(target: str) -> Deployment:
    """A deployment of a target, given as a URL or a model; a pocket model has the pocket judge,
    which knows what such models write.
    """
    runtimes = {"target": _other(None, target)}
    if target.startswith(POCKET):
        runtimes["judge"] = load_deployment().runtimes["judge"]
    return Deployment(name="custom", runtimes=runtimes)


def override_all(deployment: Deployment, models: Mapping[str, str | None]) -> Deployment:
    """A copy in which roles have other models or runtimes; None leaves a role as it is.

    Args:
        models: by role, a URL to attach to; another role's name, to share its runtime; or a model:
            a path, a hub name or ``pocket:draft``. A new model keeps the runtime's other settings,
            except for the tokenizer.

    Raises:
        ConfigError: there is no such role.
    """
    runtimes, shared = dict(deployment.runtimes), dict(deployment.shared)
    for role, other in models.items():
        if role not in ROLES:
            raise ConfigError(f"no role {role!r}", hint=f"roles are {', '.join(ROLES)}")
        if other == role:
            raise ConfigError("a role cannot share a runtime with itself", role=role)
        if other in ROLES:
            runtimes.pop(role, None)
            shared[role] = other
        elif other is not None:
            shared.pop(role, None)
            runtimes[role] = _other(runtimes.get(role), other)
    return deployment.replace(runtimes=runtimes, shared=shared)


def _other(runtime: Runtime | None, model_or_url: str) -> Runtime:
    if "://" in model_or_url or _ADDRESS.fullmatch(model_or_url):
        new = Runtime(url=model_or_url)
        if runtime is None:
            return new
        return new.replace(timeout=runtime.timeout, api_key_env=runtime.api_key_env)
    if runtime is None or runtime.url:
        return Runtime(model=model_or_url)
    return runtime.replace(model=model_or_url, tokenizer="")


def on_gpus(runtime: Runtime, role: str, gpus: tuple[int, ...]) -> Runtime:
    """A copy on these GPUs, which are divided among tensor parallelism and the given data
    parallelism.

    Raises:
        ConfigError: the runtime is not ours to place, or the GPUs cannot be divided.
    """
    if runtime.url:
        raise ConfigError(
            "GPUs are given, but the runtime at a URL is not ours to place", role=role
        )
    if not gpus or len(gpus) % runtime.data_parallel:
        hint = f"a multiple of {runtime.data_parallel}, its data_parallel"
        raise ConfigError(f"GPUs {list(gpus)} cannot be used here", role=role, hint=hint)
    device = "cuda" if runtime.device == "cpu" else runtime.device
    return runtime.replace(
        gpus=gpus, tensor_parallel=len(gpus) // runtime.data_parallel, device=device
    )


def _deployment(table: dict[str, Any], folder: Path) -> Deployment:
    made = Deployment.from_dict({"runtimes": {}, **table})
    runtimes = {role: _rooted(runtime, folder) for role, runtime in made.runtimes.items()}
    made = made.replace(runtimes=runtimes)
    judge = made.runtime("judge")
    if made.judge_prompt or (judge and judge.url):  # that is asked for its model later
        return made
    return made.replace(judge_prompt=prompt_for(judge.model if judge else ""))


def _rooted(runtime: Runtime, folder: Path) -> Runtime:
    """Makes relative paths absolute from the file's folder, also in the token layer and
    ``extra``.
    """

    def root(value: str) -> str:
        return str(folder / value) if value.startswith(".") else value

    extra = {
        key: root(value) if isinstance(value, str) and value.startswith(("./", "../")) else value
        for key, value in runtime.extra.items()
    }
    layer = runtime.token_layer
    rooted = {
        "model": root(runtime.model),
        "tokenizer": root(runtime.tokenizer),
        "extra": extra,
        "token_layer": layer.replace(draft_model=root(layer.draft_model)) if layer.on else layer,
    }
    return runtime.replace(**{k: new for k, new in rooted.items() if new != getattr(runtime, k)})
