"""Muon for the matrices of all layers at once, AdamW for the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tools.pocket.model import PocketModel

MUON_RATE, ADAM_RATE = 0.02, 3e-3
MOMENTUM, DECAY = 0.95, 0.01
NEWTON_SCHULZ = (
    3.4445,
    -4.7750,
    2.0315,
)  # Keller Jordan's quintic; five rounds bring singular values near one


def orthogonalise(stack: Tensor, rounds: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix of each (rows, columns) matrix of a stack, roughly."""
    a, b, c = NEWTON_SCHULZ
    x = stack.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised; parameters are stacks of matrices
    (layers, out, in).
    """

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - MOMENTUM)
                update = orthogonalise(p.grad.lerp(momentum, MOMENTUM))
                p.mul_(1 - group["lr"] * DECAY)
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5)


class Optimizer:
    """Both optimizers as one; ``rate`` scales both learning rates."""

    def __init__(self, model: PocketModel) -> None:
        named = dict(model.named_parameters())
        self.muon = Muon([named[n] for n in model.matrices], MUON_RATE)
        self.adam = torch.optim.AdamW(
            [p for n, p in named.items() if n not in model.matrices],
            ADAM_RATE,
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )

    def step(self, rate: float) -> None:
        for optimizer, full in ((self.muon, MUON_RATE), (self.adam, ADAM_RATE)):
            for group in optimizer.param_groups:
                group["lr"] = full * rate
            optimizer.step()
            optimizer.zero_grad()

    def state_dict(self) -> dict[str, object]:
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
