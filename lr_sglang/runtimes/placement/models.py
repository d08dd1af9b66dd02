"""Where a model is: a path, a model that ships with the package or its body, a shape, or a name on
the hub.

A *shape* is a published architecture with random numbers, to see what starts and how fast it is.
``dummy:qwen3-32b`` is a directory with the architecture of Qwen3-32B and the tokenizer of the
pocket models, made on first use; SGLang fills in random weights (``--load-format dummy``). Nothing
is downloaded. Such a model writes random tokens, most of which the small tokenizer does not know
and decodes to nothing.

``shapes.json`` has the config.json of these models on the hub: Qwen/Qwen3-32B, -1.7B and -0.6B,
Qwen/Qwen2.5-7B-Instruct, deepseek-ai/DeepSeek-R1-Distill-Qwen-32B and -1.5B. The Eagle 3 heads are
SpecForge's (configs/qwen3-32b-eagle3.json) and AngelSlim's (configs/qwen3-1.7b-eagle3.json, untied,
as SGLang needs it for a vocabulary that is smaller than the target's). Heads for Qwen3-32B and -4B
were published with a head_dim of 80: hidden size by number of heads (AngelSlim issue 5).

A *body*, ``pocket:target@qwen3-0.6b``, has a pocket model's words at the cost of a larger
architecture (see ``pocket.body``). It is made on first use, in the user's cache folder, by a child
process, so that this one need not import torch. For a server that computes it in memory (see
``pocket.loader``), the folder has everything but the weights.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from lr_sglang import plugin_files, pocket
from lr_sglang.errors import ConfigError, did_you_mean
from lr_sglang.pocket.body import SOURCE, Sizes, describe_body
from lr_sglang.runtimes import folders
from lr_sglang.runtimes.placement.hybrid import linear_layers

SHAPE = "dummy:"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
# More than the 817 of the pocket tokenizer, so that small shapes too write ids that it does not
# know.
POCKET_VOCABULARY = 1024

_PATH = re.compile(r"(?:^|/)lr-sglang/shapes/[0-9a-f]{16}/([\w.-]+)/?$")
Config = dict[str, Any]


def _as_shape(role: str) -> Config:
    config: Config = json.loads((pocket.weights(role) / "config.json").read_text("utf-8"))
    return {**config, "vocab_size": POCKET_VOCABULARY}


@cache
def shapes() -> Mapping[str, Config]:
    """Architectures by the name that follows ``dummy:``."""
    published: dict[str, Config] = json.loads(
        Path(__file__).with_name("shapes.json").read_text("utf-8")
    )
    defaults = published.pop("defaults")
    target = _as_shape("target")
    eagle3 = {key: target[key] for key in published["qwen3-1.7b-eagle3"] if key in target}
    eagle3 |= {
        key: published["qwen3-1.7b-eagle3"][key]
        for key in ("architectures", "model_type", "num_hidden_layers")
    }
    return {
        **{name: {**defaults, **shape} for name, shape in published.items()},
        **{f"pocket-{role}": _as_shape(role) for role in pocket.MAIN_MODELS},
        "pocket-target-eagle3": {
            **defaults,
            **eagle3,
            "max_window_layers": 1,
            "draft_vocab_size": POCKET_VOCABULARY // 2,
        },
    }


def is_shape(model: str) -> bool:
    """True for a shape's name, and for the directory that ``make_shape`` made of it."""
    return bool(shape_of(model))


def shape_of(model: str) -> str:
    """The name of a shape (``dummy:qwen3-32b``), given that name or its directory; empty for every
    other model.
    """
    if model.startswith(SHAPE):
        return model
    made = _PATH.search(model)
    return SHAPE + made[1] if made else ""


def make_shape(name: str, role: str | None = None) -> Path:
    """The directory of a shape, made if it does not exist.

    Args:
        name: with or without ``dummy:``.

    Raises:
        ConfigError: there is no such shape.
        SetupError: it cannot be written.
    """
    name = name.removeprefix(SHAPE)
    if name not in shapes():
        raise ConfigError(
            f"no shape {name!r}",
            role=role,
            hint=did_you_mean(name, shapes(), f"one of {', '.join(shapes())}"),
        )
    source = pocket.weights("target")
    files = {file: (source / file).read_bytes() for file in TOKENIZER_FILES}
    special = {
        key: value
        for key, value in json.loads(files["generation_config.json"]).items()
        if "_id" in key
    }
    files["config.json"] = json.dumps({**shapes()[name], **special}, indent=1).encode()

    def fill(folder: Path) -> None:
        for file, content in files.items():
            (folder / file).write_bytes(content)

    digest = hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=8).hexdigest()
    return folders.cached("shapes", digest, name, fill, role)


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
    elif shape in shapes():
        sizes = Sizes.of(dict(shapes()[shape]))
    else:
        hint = f"one of {', '.join(shapes())}, or sizes such as 512x4096x28 (hidden, inner, layers)"
        raise ConfigError(f"no architecture {shape!r} for a body", role=role, hint=hint)
    if why := "it is a hybrid" if linear_layers(_config(source)) else sizes.mismatch(own):
        raise ConfigError(f"the pocket model does not fit into @{shape}: {why}", role=role)
    return sizes


def _config(source: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((source / "config.json").read_text("utf-8"))
    return found


def make_body(
    source: Path, shape: str, role: str | None = None, *, in_memory: bool = False
) -> Path:
    """The folder of a body, made if it does not exist.

    Args:
        in_memory: without the weights.

    Raises:
        ConfigError: as ``sizes_of``.
        SetupError: it cannot be written, or the disk has no room for it.
    """
    sizes = sizes_of(shape, source, role)

    def fill(folder: Path) -> None:
        if in_memory:
            describe_body(source, folder, sizes)
            (folder / SOURCE).write_text(json.dumps({"model": source.name}), "utf-8")
        else:
            _write(source, folder, sizes)

    weights = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()[:8]
    key = hashlib.sha256(repr((weights, sizes, *["in memory"] * in_memory)).encode()).hexdigest()[
        :16
    ]
    return folders.cached("bodies", key, f"{source.name}@{shape}", fill, role)


def _write(source: Path, folder: Path, sizes: Sizes) -> None:
    needed = 2 * sizes.parameters(_config(source)["vocab_size"])
    free = shutil.disk_usage(folder).free
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
        in_memory: for a body, a folder without its weights (see ``make_body``).

    Raises:
        ConfigError: a path, a pocket model, a body or a shape that does not exist. Hub names are
            left to SGLang.
        SetupError: a shape or a body cannot be written.
    """
    if model.startswith(SHAPE):
        return str(make_shape(model, role))
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


def is_on_hub(model: str) -> bool:
    """True for a name of the hub, under which there is nothing here."""
    ours = model.startswith(SHAPE) or is_pocket(model) or is_path(model)
    return not ours and not plugin_files.expanded(model).exists()


def said(model: str, file: str, *keys: str) -> Any:
    """A value of a JSON file of a model, in its directory or in the hub's cache; None where it
    cannot be read without the hub.
    """
    if is_on_hub(model):
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            found = try_to_load_from_cache(model, file)
        except HFValidationError:
            return None
        if not isinstance(found, str):
            return None
        model = str(Path(found).parent)
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
        return any(  # the clock may have been set back since
            abs(time.time() - file.stat().st_mtime) < FETCHING for file in kept.glob("*.incomplete")
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
    sizes = asdict(sizes_of(shape, source))
    return {**_config(source), **sizes, "tie_word_embeddings": False}


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
    return make_body(path, shape, role, in_memory=in_memory) if shape else path
