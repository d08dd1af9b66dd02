"""A pocket model in a larger body: the same function, computed with the arithmetic of a larger
architecture.

``python -m lr_sglang.pocket.body SOURCE FOLDER SIZES`` writes the model; ``loader`` computes it
inside a server. It grows as in Net2Net (arXiv 1511.05641):

- The residual stream holds ``hidden / source hidden`` copies of the source's lanes. Layers read the
  first copy and write all copies, so that every RMSNorm has the same mean square.
- A wider head repeats each rotary pair at frequencies that the source does not have; ``q_norm`` is
  zero at these. Attention divides by the square root of the head's size, so ``q_norm`` grows by
  that of the ratio; it is stored in float32, and rounded only where the model runs in bfloat16 and
  the ratio is no power of four.
- Heads and lanes of the MLP that the source lacks have random weights, and their outputs are
  multiplied by zero, as are the outputs of layers that the source lacks.

All other weights are copied. One layer is in memory at a time.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
SOURCE = "source.json"  # replaces the weights: the name of the source model
Weights = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Qwen3 architecture, as config.json names them."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> Sizes:
        """The sizes in a config.json; ``head_dim`` is derived if it is missing."""
        derived = {"head_dim": config["hidden_size"] // config["num_attention_heads"]}
        return cls(**{name: (derived | config)[name] for name in cls.__dataclass_fields__})

    def parameters(self, vocabulary: int) -> int:
        """Number of parameters of such a model with untied embeddings."""
        hidden = self.hidden_size
        heads = self.num_attention_heads
        groups = self.num_key_value_heads
        attention = 2 * hidden * (heads + groups) * self.head_dim + 2 * self.head_dim
        layer = attention + 3 * hidden * self.intermediate_size + 2 * hidden
        return self.num_hidden_layers * layer + hidden * (2 * vocabulary + 1)

    def mismatch(self, source: Sizes) -> str:
        """The reason why the source does not fit into these sizes; empty if it does."""
        for name, least in asdict(source).items():
            if getattr(self, name) < least:
                return f"{name} is {getattr(self, name)}, and the model itself has {least}"
        for name in ("hidden_size", "head_dim"):
            if getattr(self, name) % getattr(source, name):
                return (
                    f"{name} {getattr(self, name)} is no multiple of the model's own "
                    f"{getattr(source, name)}"
                )
        if self.num_attention_heads % self.num_key_value_heads:
            return "num_attention_heads is no multiple of num_key_value_heads"
        return ""


class PocketBody:
    """Makes the weights of the larger model, with the source's device and, except for ``q_norm``,
    its type.

    Args:
        weights: the source's weights by name, all on one device.
        source, sizes: sizes of the source and of the larger model.
    """

    def __init__(self, weights: Weights, source: Sizes, sizes: Sizes) -> None:
        import torch

        self._torch = torch
        self._weights = weights
        self._from = source
        self._to = sizes
        self._copies = sizes.hidden_size // source.hidden_size
        self._ratio = sizes.head_dim // source.head_dim
        half = source.head_dim // 2
        # For each lane of a source head, its lane in the larger head, in the first copy of its
        # rotary pair.
        pairs = torch.arange(half) * self._ratio
        self._placed = {
            "device": weights["model.norm.weight"].device,
            "dtype": weights["model.norm.weight"].dtype,
        }
        self._lanes = torch.cat([pairs, sizes.head_dim // 2 + pairs]).to(self._placed["device"])

    def shards(self) -> Iterator[tuple[str, Weights]]:
        """Yields a name and the weights of every layer, then of the rest."""
        for number in range(self._to.num_hidden_layers):
            random = self._torch.Generator(self._placed["device"]).manual_seed(number)
            yield (
                f"layer-{number:03}",
                {
                    f"model.layers.{number}.{name}": tensor.contiguous()
                    for name, tensor in self._layer(f"model.layers.{number}.", random)
                },
            )
        tokens = self._weights["model.embed_tokens.weight"]
        norm = self._weights["model.norm.weight"]
        yield (
            "rest",
            {
                "model.embed_tokens.weight": tokens.repeat(1, self._copies),
                "model.norm.weight": norm.repeat(self._copies),
                "lm_head.weight": self._read(tokens),
            },
        )

    def _layer(self, prefix: str, random: Any) -> Iterator[tuple[str, Any]]:
        own = {
            name.removeprefix(prefix): tensor
            for name, tensor in self._weights.items()
            if name.startswith(prefix)
        }
        size = self._to.hidden_size
        heads = self._to.num_attention_heads
        groups = self._to.num_key_value_heads
        inner = self._to.intermediate_size
        each = self._to.head_dim
        placed = self._placed
        as_float = {**self._placed, "dtype": self._torch.float32}

        def noise(*shape: int) -> Any:
            return (
                self._torch.empty(*shape, **as_float)
                .normal_(0, 0.02, generator=random)
                .to(placed["dtype"])
            )

        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            yield name, own[name].repeat(self._copies) if own else self._torch.ones(size, **placed)
        for name, count, step in (
            ("q", heads, heads // groups),
            ("k", groups, 1),
            ("v", groups, 1),
        ):
            rows = noise(count * each, size)
            if own:
                self._heads(rows, own[f"self_attn.{name}_proj.weight"], step)
            yield f"self_attn.{name}_proj.weight", rows
        out = self._torch.zeros(size, heads * each, **placed)
        if own:
            given = own["self_attn.o_proj.weight"].repeat(self._copies, 1)
            for number, columns in enumerate(given.split(self._from.head_dim, dim=1)):
                out[:, number * (heads // groups) * each + self._lanes] = columns
        yield "self_attn.o_proj.weight", out
        for name in ("q", "k"):
            norm = self._torch.ones(each, **placed)
            if own:
                given = own[f"self_attn.{name}_norm.weight"]
                norm = (
                    self._torch.zeros(each, **placed)
                    if name == "q"
                    else self._wide(given[:, None])[:, 0]
                )
                if name == "q":
                    norm = norm.float()
                    given = given.float() * math.sqrt(self._ratio)
                norm[self._lanes] = given
            yield f"self_attn.{name}_norm.weight", norm
        down = self._torch.zeros(size, inner, **placed)
        for name in ("gate", "up"):
            rows = noise(inner, size)
            if own:
                rows[: self._from.intermediate_size] = self._read(own[f"mlp.{name}_proj.weight"])
            yield f"mlp.{name}_proj.weight", rows
        if own:
            down[:, : self._from.intermediate_size] = own["mlp.down_proj.weight"].repeat(
                self._copies, 1
            )
        yield "mlp.down_proj.weight", down

    def _read(self, rows: Any) -> Any:
        """Extends rows that read the residual stream by zeros, so that they use the first copy of
        its lanes.
        """
        return self._torch.nn.functional.pad(rows, (0, self._to.hidden_size - rows.shape[1]))

    def _wide(self, rows: Any) -> Any:
        """Repeats each row of one head for all copies of its rotary pair."""
        return rows.repeat_interleave(self._ratio, dim=0)

    def _heads(self, rows: Any, given: Any, step: int) -> None:
        """Puts the source's heads into every ``step``-th head of ``rows``."""
        for number, head in enumerate(given.split(self._from.head_dim)):
            first = number * step * self._to.head_dim
            rows[first : first + self._to.head_dim] = self._read(self._wide(head))


def body_of(source: Path, sizes: Sizes, device: str = "cpu") -> PocketBody:
    """The body of these sizes for the model in a folder, computed on a device."""
    from safetensors.torch import load_file

    config = json.loads((source / "config.json").read_text("utf-8"))
    return PocketBody(load_file(source / "model.safetensors", device), Sizes.of(config), sizes)


def write_body(source: Path, folder: Path, sizes: Sizes) -> None:
    """Writes the model into an empty folder, with a progress bar on a terminal.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    import click
    from safetensors.torch import save_file

    where: dict[str, str] = {}
    label = f"pocket model, {sizes.hidden_size} x {sizes.num_hidden_layers}"
    count = sizes.num_hidden_layers + 1
    with click.progressbar(
        body_of(source, sizes).shards(), length=count, label=label, file=sys.stderr
    ) as shards:
        for name, tensors in shards:
            save_file(tensors, folder / f"model-{name}.safetensors", metadata={"format": "pt"})
            where.update(dict.fromkeys(tensors, f"model-{name}.safetensors"))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}), "utf-8")
    describe_body(source, folder, sizes)


def describe_body(source: Path, folder: Path, sizes: Sizes) -> None:
    """Writes a model without its weights: the architecture and the tokenizer.

    Raises:
        OSError: the folder cannot be written.
    """
    config = json.loads((source / "config.json").read_text("utf-8"))
    kinds = {
        "layer_types": ["full_attention"] * sizes.num_hidden_layers,
        "max_window_layers": sizes.num_hidden_layers,
    }
    grown = {**config, **asdict(sizes), **kinds, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(grown, indent=1), "utf-8")
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja") and file.name not in ("config.json", "training.json"):
            shutil.copy(file, folder)


if __name__ == "__main__":
    write_body(Path(sys.argv[1]), Path(sys.argv[2]), Sizes(**json.loads(sys.argv[3])))
