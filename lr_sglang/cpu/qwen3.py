"""Qwen3's forward pass for a CPU: the same arithmetic in about a third of the calls.

A small model on one core spends its time between the operators, not in them. This uses the weights
that SGLang has loaded, but the matrix products include the residual additions, queries and keys are
normed and rotated together, and values for all layers (rotary angles, the rows of the KV cache) are
computed once. Results equal those of SGLang's own layers up to rounding. With weights in bfloat16
the residual stream, norms and rotations stay float32, which SGLang rounds in every layer.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lr_sglang.cpu import products
from lr_sglang.cpu.attention import BatchedAttention
from lr_sglang.cpu.products import Product

_CACHE = "_lr_sglang_forward"


@dataclass(frozen=True)
class _Layer:
    """One layer's weights; the norms' are float32, `qk_norm` is [heads + kv_heads, head_dim]."""

    attention: Any
    input_norm: Tensor
    qkv: Product
    qk_norm: Tensor
    output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


def forward_qwen3(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Around Qwen3Model.forward: ours for a plain float32 or bfloat16 model on one worker, SGLang's
    for any other.
    """
    decoder = model.__dict__.get(_CACHE)
    if decoder is None:
        decoder = Qwen3Forward(model) if _is_plain(model) else False
        model.__dict__[_CACHE] = decoder
    if not decoder or kwargs.get("pp_proxy_tensors") is not None:
        return original(model, *args, **kwargs)
    given = {key: value for key, value in kwargs.items() if key != "pp_proxy_tensors"}
    return decoder(*args, captured=model.layers_to_capture, **given)


class Qwen3Forward:
    """Reads the weights when it is made: a server that replaces its weights later must be started
    again.
    """

    def __init__(self, model: Any) -> None:
        attention = model.layers[0].self_attn
        self._embed = model.embed_tokens
        self._heads = attention.num_heads
        self._kv_heads = attention.num_kv_heads
        self._head_dim = attention.head_dim
        self._cos_sin = _cos_sin(attention.rotary_emb)
        self._norm = model.norm.weight.float()
        self._dtype = attention.qkv_proj.weight.dtype
        self._eps = torch.full((1,), float(model.norm.variance_epsilon))
        self._layers = [_layer(layer) for layer in model.layers]

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
        captured: Collection[int] = (),
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Token ids and positions [tokens] -> normed hidden states [tokens, hidden], in the
        weights' type.

        If layers are `captured` (for an EAGLE3 head), also the input of each of them.
        """
        residual = (self._embed(input_ids) if input_embeds is None else input_embeds).float()
        tokens = residual.shape[0]
        dtype = self._dtype
        cos, sin = self._angles(positions)
        attend = self._attention(forward_batch, tokens)
        rotated = self._heads + self._kv_heads
        aux = []
        for i, layer in enumerate(self._layers):
            if i in captured:
                aux.append(residual.to(dtype))
            qkv = layer.qkv(self._rms_norm(residual, layer.input_norm).to(dtype))
            qkv = qkv.view(tokens, rotated + self._kv_heads, self._head_dim)
            qk = self._rms_norm(qkv[:, :rotated].float(), layer.qk_norm)
            qk = torch.addcmul(qk * cos, qk.roll(self._head_dim // 2, -1), sin).to(dtype)
            mixed = attend(
                layer.attention, qk[:, : self._heads], qk[:, self._heads :], qkv[:, rotated:]
            )
            residual = layer.output.added(residual, mixed)
            gate, up = layer.gate_up(self._rms_norm(residual, layer.mlp_norm).to(dtype)).chunk(
                2, -1
            )
            residual = layer.down.added(residual, F.silu(gate, inplace=True).mul_(up))
        hidden = self._rms_norm(residual, self._norm).to(dtype)
        return (hidden, aux) if aux else hidden

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return (x * self._scale(x)).mul_(weight)

    def _scale(self, x: Tensor) -> Tensor:
        """1 / root mean square of the last dimension. A matrix product would be slower and depend
        on the other rows.
        """
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self._eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, [tokens, 1, head_dim]: rotating is x * cos + (x's halves
        swapped) * sin.
        """
        cos, sin = self._cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, -1)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def _attention(self, forward_batch: Any, tokens: int) -> Callable[..., Tensor]:
        """The layers' attention: a direct call of BatchedAttention if SGLang uses that, else
        through SGLang.
        """
        from sglang.srt.model_executor.forward_context import get_attn_backend

        backend = get_attn_backend()
        mode = forward_batch.forward_mode
        batched = getattr(backend, "batched_attention", None)
        group = self._heads // self._kv_heads
        if isinstance(batched, BatchedAttention) and mode.is_decode():
            step = batched.decode_step(backend, forward_batch, group)
        elif isinstance(batched, BatchedAttention) and mode.is_extend(include_draft_extend_v2=True):
            step = batched.extend_step(backend, forward_batch, group)
        else:
            return lambda attention, q, k, v: attention(q.flatten(1), k, v, forward_batch)
        return lambda attention, q, k, v: step(attention.layer_id, attention.scaling, q, k, v).view(
            tokens, -1
        )


def _layer(layer: Any) -> _Layer:
    attention = layer.self_attn
    mlp = layer.mlp
    heads = attention.num_heads
    kv_heads = attention.num_kv_heads
    return _Layer(
        attention=attention.attn,
        input_norm=layer.input_layernorm.weight.float(),
        qkv=products.product_of(attention.qkv_proj),
        qk_norm=torch.cat(
            [
                attention.q_norm.weight.expand(heads, -1),
                attention.k_norm.weight.expand(kv_heads, -1),
            ]
        ).float(),
        output=products.product_of(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight.float(),
        gate_up=products.product_of(mlp.gate_up_proj),
        down=products.product_of(mlp.down_proj),
    )


def _cos_sin(rotary: Any) -> Tensor:
    """Cosines and sines by position, [positions, head_dim] float32; SGLang may keep them in the
    model's type.
    """
    cache: Tensor = rotary.cos_sin_cache
    return cache if cache.dtype == torch.float32 else rotary._compute_cos_sin_cache().float()


def _is_plain(model: Any) -> bool:
    """Whether the model is one that Qwen3Forward computes: of one type, no bias, adapter or split
    of any kind.
    """
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().tp_size != 1 or get_parallel().pp_size != 1:
        return False
    for layer in model.layers:
        attention = layer.self_attn
        mlp = layer.mlp
        linears = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
        if not all(
            isinstance(getattr(linear, "quant_method", None), UnquantizedLinearMethod)
            and linear.bias is None
            for linear in linears
        ):
            return False
    rotary = attention.rotary_emb
    dtypes = {parameter.dtype for parameter in model.parameters()}
    return (
        type(rotary) is RotaryEmbedding
        and rotary.is_neox_style
        and rotary.rotary_dim == attention.head_dim
        and attention.attn.logit_cap == 0
        and len(dtypes) == 1
        and dtypes.pop() in (torch.float32, torch.bfloat16)
    )
