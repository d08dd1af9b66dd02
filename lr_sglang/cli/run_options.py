"""The options of a command that say where and how answers are made, as one frozen value (see ``options``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from lr_sglang.config import Limits, Lookahead, Sampling, Schedule

PerRole = tuple[tuple[str | None, Any], ...]  # a role (None: those that it suits) and a value


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What was given on the command line; None and empty stand for what was not. ``settle`` checks it."""

    # Where the runtimes are.
    deployment: str | None = None
    attach: str | None = None
    target: str | None = None
    draft: str | None = None
    judge: str | None = None
    target_gpus: tuple[int, ...] | None = None
    draft_gpus: tuple[int, ...] | None = None
    judge_gpus: tuple[int, ...] | None = None
    judge_prompt: str | None = None
    # How they answer.
    mode: tuple[str, ...] = ()
    program: str | None = None
    schedule: Schedule | None = None
    depth: int | None = None
    width: int | None = None
    max_step_tokens: int | None = None
    half_sentence_guard: bool | None = None
    verifier: str | None = None
    gate: float | None = None
    calibration: str | None = None
    policy: str | None = None
    max_false_accepts: float | None = None
    reference_defaults: bool = False
    # Their token layers.
    token_layer: PerRole = ()
    sd_tokens: PerRole = ()
    sd_draft_model: PerRole = ()
    sd_steps: PerRole = ()
    sd_topk: PerRole = ()
    sd_ngram_max: PerRole = ()
    sd_accept_length: PerRole = ()
    # How tokens are drawn, and how many.
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_total_tokens: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Those of a command's options that are of this kind."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: given[name] for name in names if name in given})

    def of_kind(self, kind: type[Sampling | Lookahead | Limits]) -> dict[str, Any]:
        """The options that are fields of one kind of settings, by their common names."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(kind)}
