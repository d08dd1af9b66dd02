"""A small Qwen3.5 for training on a CPU: of every four layers, three have Gated DeltaNet and one has
full attention.

It begins with the weights of a trained Qwen3 (``HybridModel.of``): its embeddings, MLPs and full
attention are taken over, and its other attention layers give the delta rule its queries, keys and
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.pocket.model import (
    DTYPE,
    EPSILON,
    HF_NAMES,
    MATRICES,
    PocketModel,
    Shape,
    _norm,
    _rotate,
)

EVERY = 4  # of so many layers, the last one has full attention
TAPS = 4  # inputs of the causal convolution
ATTENTION = ("q", "k", "v", "o", "q_norm", "k_norm", "open")
MLP = ("gate", "up", "down", "norm_in", "norm_mid")
DELTA = ("dq", "dk", "dv", "dz", "db", "da", "do", "d_norm", "conv", "A_log", "dt_bias")
#: names of the last ones inside a layer of transformers
DELTA_HF = {
    "dz": "in_proj_z.weight", "db": "in_proj_b.weight", "da": "in_proj_a.weight", "do": "out_proj.weight",
    "d_norm": "norm.weight", "A_log": "A_log", "dt_bias": "dt_bias",
}  # fmt: skip
#: norms whose weights Qwen3.5 has less one
NORMS = ("q_norm", "k_norm", "norm_in", "norm_mid")


def _mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, norm: Tensor) -> Tensor:
    a, b = F.linear(_norm(x, norm), torch.cat((gate, up)).to(x.dtype)).chunk(2, -1)
    return x + F.linear(F.silu(a) * b, down.to(x.dtype))


def _full(
    x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor,
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, q_norm: Tensor, k_norm: Tensor, opened: Tensor,
    gate: Tensor, up: Tensor, down: Tensor, norm_in: Tensor, norm_mid: Tensor,
) -> Tensor:  # fmt: skip
    """A layer of full attention, whose output has a gate."""
    rows, length, _ = x.shape
    made = F.linear(_norm(x, norm_in), torch.cat((q, k, v, opened)).to(x.dtype))
    queries, keys, values, gates = made.view(rows, length, 4, -1, q_norm.shape[-1]).unbind(2)
    queries = _rotate(_norm(queries, q_norm), cos, sin).transpose(1, 2)
    keys = _rotate(_norm(keys, k_norm), cos, sin).transpose(1, 2)
    scores = (queries @ keys.mT).float() * q_norm.shape[-1] ** -0.5 + mask
    mixed = (torch.softmax(scores, -1).to(x.dtype) @ values.transpose(1, 2)).transpose(1, 2)
    mixed = (mixed * torch.sigmoid(gates)).reshape(rows, length, -1)
    return _mlp(x + F.linear(mixed, o.to(x.dtype)), gate, up, down, norm_mid)


def _delta(
    x: Tensor, seen: Tensor, mask: Tensor,
    q: Tensor, k: Tensor, v: Tensor, z: Tensor, b: Tensor, a: Tensor, o: Tensor, norm: Tensor, conv: Tensor,
    A_log: Tensor, dt_bias: Tensor,
    gate: Tensor, up: Tensor, down: Tensor, norm_in: Tensor, norm_mid: Tensor,
) -> Tensor:  # fmt: skip
    """A layer of Gated DeltaNet, a whole row as one chunk; seen: (taps, rows, length, 1), one where
    the document has a token so many places before.
    """
    rows, length, _ = x.shape
    wide, size = len(q), norm.shape[-1]
    made = F.linear(_norm(x, norm_in), torch.cat((q, k, v, z, b, a)).to(x.dtype))
    mixed, gates, writes, decays = made.split([3 * wide, wide, len(b), len(a)], -1)
    taps = conv.to(x.dtype).flip(-1)
    padded = F.pad(mixed, (0, 0, TAPS - 1, 0))
    mixed = sum(
        padded[:, TAPS - 1 - back : TAPS - 1 - back + length] * seen[back] * taps[:, back]
        for back in range(TAPS)
    )
    heads = F.silu(mixed).view(rows, length, 3, -1, size).float().permute(2, 0, 3, 1, 4)
    queries, keys = (
        x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON) for x in (heads[0], heads[1])
    )
    decay = -A_log.exp() * F.softplus(decays.float() + dt_bias)
    total, strength = decay.cumsum(1).mT, torch.sigmoid(writes.float()).mT.unsqueeze(-1)
    between = torch.exp((total.unsqueeze(-1) - total.unsqueeze(-2)).clamp(max=0) + mask)
    system = (strength * between * (keys @ keys.mT)).tril(-1)
    u = torch.linalg.solve_triangular(system, strength * heads[2], upper=False, unitriangular=True)
    out = (between * (queries @ keys.mT) * size**-0.5) @ u
    out = F.rms_norm(out.transpose(1, 2), (size,), norm, EPSILON).to(x.dtype)
    out = (out * F.silu(gates.view(rows, length, -1, size))).reshape(rows, length, -1)
    return _mlp(x + F.linear(out, o.to(x.dtype)), gate, up, down, norm_mid)


@cache
def _compiled(layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
    made: Callable[..., Tensor] = torch.compile(layer, dynamic=False)
    return made


class HybridModel(PocketModel):
    """Qwen3.5 with tied embeddings; parameters of a kind are stacked over the layers that have
    them.
    """

    matrices = (*MATRICES, "dq", "dk", "dv", "dz", "do")

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        full = shape.layers // EVERY
        n, wide = shape.layers - full, shape.heads * shape.head_dim

        def matrix(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(n, rows, shape.hidden) * shape.hidden**-0.5)

        for name in ("q", "k", "v", "o", "q_norm", "k_norm"):
            setattr(self, name, nn.Parameter(getattr(self, name)[:full].detach().clone()))
        self.open = nn.Parameter(torch.zeros(full, wide, shape.hidden))
        self.dq, self.dk, self.dv, self.dz = (matrix(wide) for _ in range(4))
        self.db, self.da = (
            nn.Parameter(torch.zeros(n, shape.heads, shape.hidden)) for _ in range(2)
        )
        self.do = nn.Parameter(torch.zeros(n, shape.hidden, wide))
        self.d_norm = nn.Parameter(torch.ones(n, shape.head_dim))
        # A token's own input passes, and its state decays by some percent.
        self.conv = nn.Parameter(torch.randn(n, 3 * wide, TAPS) * 0.05)
        self.conv.data[..., -1] += 1
        self.A_log = nn.Parameter(torch.linspace(-4, -1, shape.heads).repeat(n, 1))
        self.dt_bias = nn.Parameter(torch.zeros(n, shape.heads))

    @classmethod
    @torch.no_grad()
    def of(cls, trained: PocketModel, layers: int) -> HybridModel:
        """A hybrid that begins with what a deeper Qwen3 has learnt."""
        trained = trained.shrink(layers)
        model = cls(trained.shape)
        for name in ("embed", "norm", *MLP):
            getattr(model, name).copy_(getattr(trained, name))
        last = torch.arange(layers) % EVERY == EVERY - 1
        for name in ("q", "k", "v", "o", "q_norm", "k_norm"):
            getattr(model, name).copy_(getattr(trained, name)[last])
        model.o.mul_(2)  # a gate is half open at first
        for name in ("q", "k", "v", "o"):
            getattr(model, f"d{name}").copy_(getattr(trained, name)[~last])
        return model

    def _layers(self) -> Iterator[tuple[Callable[..., Tensor], list[Tensor]]]:
        mlp = zip(*(getattr(self, name).unbind(0) for name in MLP), strict=True)
        full = zip(*(getattr(self, name).unbind(0) for name in ATTENTION), strict=True)
        delta = zip(*(getattr(self, name).unbind(0) for name in DELTA), strict=True)
        for number, rest in enumerate(mlp):
            if number % EVERY == EVERY - 1:
                yield _full, [*next(full), *rest]
            else:
                yield _delta, [*next(delta), *rest]

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, compiled: bool = True
    ) -> Tensor:
        cos, sin = self.rotation(positions)
        seen = torch.stack([positions >= back for back in range(TAPS)]).unsqueeze(-1).to(DTYPE)
        x = F.embedding(ids, self.embed).to(DTYPE)
        for layer, weights in self._layers():
            made = _compiled(layer) if compiled else layer
            x = made(x, *((cos, sin) if layer is _full else (seen,)), mask, *weights)
        return _norm(x, self.norm)

    def hf_config(self) -> dict[str, object]:
        """Fields of the equivalent ``Qwen3_5TextConfig``."""
        s, known = self.shape, super().hf_config()
        rope = {"rope_theta": s.rope_theta, "rope_type": "default", "partial_rotary_factor": 1.0}
        return known | {
            "rope_parameters": rope, "full_attention_interval": EVERY, "linear_conv_kernel_dim": TAPS,
            "linear_num_key_heads": s.heads, "linear_num_value_heads": s.heads,
            "linear_key_head_dim": s.head_dim, "linear_value_head_dim": s.head_dim,
        }  # fmt: skip

    def hf_state(self) -> dict[str, Tensor]:
        """Weights under the names of ``Qwen3_5ForCausalLM``."""
        state = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm - 1}
        layers = range(self.shape.layers)
        last = [i for i in layers if i % EVERY == EVERY - 1]
        others = [i for i in layers if i not in last]
        for name, hf_name in HF_NAMES.items():
            for i, value in zip(layers if name in MLP else last, getattr(self, name), strict=True):
                if name == "q":  # each head has its gate behind it
                    heads = (self.shape.heads, self.shape.head_dim, -1)
                    both = value.view(heads), self.open[i // EVERY].view(heads)
                    value = torch.cat(both, 1).flatten(0, 1)
                state[f"model.layers.{i}.{hf_name}.weight"] = value - 1.0 * (name in NORMS)
        for number, i in enumerate(others):
            inside = f"model.layers.{i}.linear_attn"
            for name, hf_name in DELTA_HF.items():
                state[f"{inside}.{hf_name}"] = getattr(self, name)[number]
            qkv = [getattr(self, name)[number] for name in ("dq", "dk", "dv")]
            state[f"{inside}.in_proj_qkv.weight"] = torch.cat(qkv)
            state[f"{inside}.conv1d.weight"] = self.conv[number].unsqueeze(1)
        return {name: value.detach().clone() for name, value in state.items()}
