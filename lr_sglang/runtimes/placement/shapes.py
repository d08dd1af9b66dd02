"""Models without weights: published architectures with random numbers, to see what starts and how
fast it is.

``dummy:qwen3-32b`` is a directory with the architecture of Qwen3-32B and the tokenizer of the
pocket models, made on first use; SGLang fills in random weights (``--load-format dummy``). Nothing
is downloaded. Such a model writes random tokens, most of which the small tokenizer does not know
and decodes to nothing.

``shapes.json`` has the config.json of these models on the hub: Qwen/Qwen3-32B, -1.7B and -0.6B,
Qwen/Qwen2.5-7B-Instruct, deepseek-ai/DeepSeek-R1-Distill-Qwen-32B and -1.5B. The Eagle 3 heads are
SpecForge's (configs/qwen3-32b-eagle3.json) and AngelSlim's (configs/qwen3-1.7b-eagle3.json, untied,
as SGLang needs it for a vocabulary that is smaller than the target's). Heads for Qwen3-32B and -4B
were published with a head_dim of 80: hidden size by number of heads (AngelSlim issue 5).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lr_sglang import pocket
from lr_sglang.errors import ConfigError, did_you_mean
from lr_sglang.runtimes import folders

PREFIX = "dummy:"
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


def _pocket(role: str) -> Config:
    config: Config = json.loads((pocket.weights(role) / "config.json").read_text("utf-8"))
    return {**config, "vocab_size": POCKET_VOCABULARY}


@cache
def shapes() -> Mapping[str, Config]:
    """Architectures by the name that follows ``dummy:``."""
    published: dict[str, Config] = json.loads(
        Path(__file__).with_name("shapes.json").read_text("utf-8")
    )
    defaults, target = published.pop("defaults"), _pocket("target")
    eagle3 = {key: target[key] for key in published["qwen3-1.7b-eagle3"] if key in target}
    eagle3 |= {
        key: published["qwen3-1.7b-eagle3"][key]
        for key in ("architectures", "model_type", "num_hidden_layers")
    }
    return {
        **{name: {**defaults, **shape} for name, shape in published.items()},
        **{f"pocket-{role}": _pocket(role) for role in pocket.ROLES},
        "pocket-target-eagle3": {
            **defaults,
            **eagle3,
            "max_window_layers": 1,
            "draft_vocab_size": POCKET_VOCABULARY // 2,
        },
    }


def is_shape(model: str) -> bool:
    """True for a shape's name, and for the directory that ``make`` made of it."""
    return bool(name_of(model))


def name_of(model: str) -> str:
    """The name of a shape (``dummy:qwen3-32b``), given that name or its directory; empty for every
    other model.
    """
    if model.startswith(PREFIX):
        return model
    made = _PATH.search(model)
    return PREFIX + made[1] if made else ""


def make(name: str, role: str | None = None) -> Path:
    """The directory of a shape, made if it does not exist.

    Args:
        name: with or without ``dummy:``.

    Raises:
        ConfigError: there is no such shape.
        SetupError: it cannot be written.
    """
    name = name.removeprefix(PREFIX)
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
