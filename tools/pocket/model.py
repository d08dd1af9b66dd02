"""A small Qwen3 for training on a CPU: weights of all layers stacked, so that depth can grow and
Muon works in batches.

Compute is bfloat16 over float32 master weights. Attention is written out, because for rows of a few
hundred tokens the compiled plain form is nearly twice as fast on a CPU as the fused one, and
because packed rows need a mask.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

EPSILON = 1e-6
DTYPE = torch.bfloat16
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
#: our stacked names -> names inside a Qwen3 decoder layer
HF_NAMES = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "norm_in": "input_layernorm", "norm_mid": "post_attention_layernorm",
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """The size of a model."""

    layers: int
    hidden: int = 128
    mlp: int = 384
    heads: int = 2
    head_dim: int = 64
    vocabulary: int = 1024
    rope_theta: float = 10_000.0


def _sources(few: int, many: int) -> list[int]:
    """For each layer of a deepened model, the layer that it is a copy of; the first has no other."""
    return [0, *(1 + i * (few - 1) // (many - 1) for i in range(many - 1))]


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), EPSILON)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _layer(
    x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor,
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, gate: Tensor, up: Tensor, down: Tensor,
    norm_in: Tensor, norm_mid: Tensor, q_norm: Tensor, k_norm: Tensor, head_dim: int,
) -> Tensor:  # fmt: skip
    """One decoder layer. x: (rows, length, hidden); mask: (rows, 1, length, length),
    zero or -inf.
    """
    rows, length, _ = x.shape
    qkv = F.linear(_norm(x, norm_in), torch.cat((q, k, v)).to(x.dtype)).view(
        rows, length, 3, -1, head_dim
    )
    queries = _rotate(_norm(qkv[:, :, 0], q_norm), cos, sin).transpose(1, 2)
    keys = _rotate(_norm(qkv[:, :, 1], k_norm), cos, sin).transpose(1, 2)
    scores = (queries @ keys.transpose(-1, -2)).float() * head_dim**-0.5 + mask
    mixed = torch.softmax(scores, -1).to(x.dtype) @ qkv[:, :, 2].transpose(1, 2)
    x = x + F.linear(mixed.transpose(1, 2).reshape(rows, length, -1), o.to(x.dtype))
    a, b = F.linear(_norm(x, norm_mid), torch.cat((gate, up)).to(x.dtype)).chunk(2, -1)
    return x + F.linear(F.silu(a) * b, down.to(x.dtype))


@cache
def _compiled() -> Callable[..., Tensor]:
    """The compiled layer, made at the first step of training because the compiler takes seconds to
    import.
    """
    made: Callable[..., Tensor] = torch.compile(_layer, dynamic=False)
    return made


class PocketModel(nn.Module):
    """Qwen3 with tied embeddings; parameters of a kind are stacked over layers: ``(layers, out,
    in)``.
    """

    matrices: tuple[str, ...] = MATRICES  # that Muon trains

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        h, n, wide = shape.hidden, shape.layers, shape.heads * shape.head_dim

        def matrix(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(n, rows, columns) * scale * columns**-0.5)

        out = (2 * n) ** -0.5
        self.embed = nn.Parameter(torch.randn(shape.vocabulary, h) * h**-0.5)
        self.q, self.k, self.v, self.o = (
            matrix(wide, h),
            matrix(wide, h),
            matrix(wide, h),
            matrix(h, wide, out),
        )
        self.gate, self.up, self.down = (
            matrix(shape.mlp, h),
            matrix(shape.mlp, h),
            matrix(h, shape.mlp, out),
        )
        self.norm_in, self.norm_mid = nn.Parameter(torch.ones(n, h)), nn.Parameter(torch.ones(n, h))
        self.q_norm, self.k_norm = (
            nn.Parameter(torch.ones(n, shape.head_dim)),
            nn.Parameter(torch.ones(n, shape.head_dim)),
        )
        self.norm = nn.Parameter(torch.ones(h))

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding, (rows, length, 1, head_dim / 2)."""
        half = torch.arange(0, self.shape.head_dim, 2) / self.shape.head_dim
        angles = positions[..., None] * self.shape.rope_theta**-half
        return angles.cos().to(DTYPE)[:, :, None], angles.sin().to(DTYPE)[:, :, None]

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, compiled: bool = True
    ) -> Tensor:
        """Final hidden states, (rows, length, hidden). ids and positions: (rows, length)."""
        cos, sin = self.rotation(positions)
        layer: Callable[..., Tensor] = _compiled() if compiled else _layer
        names = (*MATRICES, "norm_in", "norm_mid", "q_norm", "k_norm")
        x = F.embedding(ids, self.embed).to(DTYPE)
        for weights in zip(*(getattr(self, name).unbind(0) for name in names), strict=True):
            x = layer(x, cos, sin, mask, *weights, self.shape.head_dim)
        return _norm(x, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed.to(hidden.dtype)).float()

    @torch.no_grad()
    def grow(self, layers: int) -> Self:
        """A deeper model that computes nearly the same.

        Each layer but the first becomes several copies, whose output matrices are divided by their
        number, like smaller steps of one integration. So every layer contributes from the start;
        new layers that began at zero stayed near zero. The first layer, which turns embeddings into
        features, is not copied.
        """
        deep = type(self)(replace(self.shape, layers=layers))
        source = _sources(self.shape.layers, layers)
        share = torch.tensor([1.0 / source.count(i) for i in source])
        for name, parameter in deep.named_parameters():
            value = getattr(self, name)
            if name in ("embed", "norm"):
                parameter.copy_(value)
            elif name in ("o", "down"):
                parameter.copy_(value[source] * share[:, None, None])
            else:
                parameter.copy_(value[source])
        return deep

    @torch.no_grad()
    def shrink(self, layers: int) -> PocketModel:
        """The shallower model that ``grow`` would deepen to this one: the copies of a layer become
        their mean, and their output matrices are added.
        """
        small = PocketModel(replace(self.shape, layers=layers))
        source = torch.tensor(_sources(layers, self.shape.layers))
        for name, parameter in small.named_parameters():
            value = getattr(self, name)
            if name in ("embed", "norm"):
                parameter.copy_(value)
                continue
            for index in range(layers):
                copies = value[source == index]
                parameter[index] = copies.sum(0) if name in ("o", "down") else copies.mean(0)
        return small

    def hf_config(self) -> dict[str, object]:
        """Fields of the equivalent ``Qwen3Config``."""
        s = self.shape
        return {
            "vocab_size": s.vocabulary, "hidden_size": s.hidden, "intermediate_size": s.mlp,
            "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "num_key_value_heads": s.heads,
            "head_dim": s.head_dim, "rms_norm_eps": EPSILON, "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": s.rope_theta, "rope_type": "default"},
        }  # fmt: skip

    def hf_state(self) -> dict[str, Tensor]:
        """Weights under the names of ``Qwen3ForCausalLM``."""
        state = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm}
        for name, hf_name in HF_NAMES.items():
            for index, value in enumerate(getattr(self, name).unbind(0)):
                state[f"model.layers.{index}.{hf_name}.weight"] = value
        return {name: value.detach().clone() for name, value in state.items()}

    @classmethod
    @torch.no_grad()
    def of_hf(cls, folder: Path) -> Self:
        """The model that ``Qwen3ForCausalLM`` wrote to ``folder``."""
        c = json.loads((folder / "config.json").read_text())
        model = cls(
            Shape(
                c["num_hidden_layers"], c["hidden_size"], c["intermediate_size"], c["num_attention_heads"],
                c["head_dim"], c["vocab_size"], c["rope_parameters"]["rope_theta"],
            )
        )  # fmt: skip
        state = load_file(folder / "model.safetensors")
        model.embed.copy_(state["model.embed_tokens.weight"])
        model.norm.copy_(state["model.norm.weight"])
        for name, hf_name in HF_NAMES.items():
            layers = [
                state[f"model.layers.{i}.{hf_name}.weight"] for i in range(model.shape.layers)
            ]
            getattr(model, name).copy_(torch.stack(layers))
        return model

    def describe(self) -> dict[str, object]:
        return asdict(self.shape) | {"parameters": sum(p.numel() for p in self.parameters())}
