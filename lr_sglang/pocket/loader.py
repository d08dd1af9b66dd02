"""Computes a body's weights in the server, such as those of Qwen3-32B's sizes on a GPU, without a
file of 64 GB.

For ``--load-format private``, SGLang imports ``MODULE``, which it does not ship, and calls its
``PrivateModelLoader``. ``plugin``, which SGLang calls in every process of a server, registers this
module as ``MODULE``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lr_sglang import pocket
from lr_sglang.pocket import body

MODULE = "sglang.private.private_model_loader"


def plugin() -> None:
    """Entry point `sglang.srt.plugins`: registers the loader without importing anything else."""
    sys.modules.setdefault(MODULE, sys.modules[__name__])


def PrivateModelLoader(load_config: Any) -> Any:
    """SGLang's own loader, with computed weights."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    class BodyLoader(DefaultModelLoader):
        def _get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
            return computed(Path(model_config.model_path), str(next(model.parameters()).device))

    return BodyLoader(load_config)


def computed(folder: Path, device: str) -> Iterator[tuple[str, Any]]:
    """Every weight of a body by name, layer by layer, on a device.

    Args:
        folder: made by ``models.make_body``, without weights.
    """
    source = pocket.weights(json.loads((folder / body.SOURCE).read_text("utf-8"))["model"])
    sizes = body.Sizes.of(json.loads((folder / "config.json").read_text("utf-8")))
    for _, tensors in body.body_of(source, sizes, device).shards():
        yield from tensors.items()
