"""What a runtime answered to one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lr_sglang import stages
from lr_sglang.reuse import Entry
from lr_sglang.speculation import Speculation
from lr_sglang.tree import Branch


@dataclass(frozen=True)
class Generation:
    """What a runtime answered.

    Attributes:
        ids: generated token ids, all of them.
        finish: ``stop``, ``length`` or ``abort``.
        eos: the id that ended the sequence, if one did.
        cached_tokens: tokens of the prompt that were not computed again; None when the runtime did not say.
        meta: the runtime's own meta_info.
        logprobs: of the last tokens of the prompt, as many as were asked for.
    """

    ids: tuple[int, ...]
    finish: str
    eos: int | None
    prompt_tokens: int
    cached_tokens: int | None
    meta: dict[str, Any] = field(repr=False)
    entry: Entry | None = field(default=None, repr=False)
    logprobs: tuple[float, ...] = field(default=(), repr=False)

    def book(self, branch: Branch) -> None:
        """Enters in a branch's books what it took."""
        branch.prompt_tokens, branch.cached_tokens = self.prompt_tokens, self.cached_tokens
        branch.generated_tokens, branch.entry = len(self.ids), self.entry
        branch.speculation = self.speculation
        branch.queued, branch.prefill = stages.waits(self.meta)

    @property
    def speculation(self) -> Speculation:
        """What the runtime's token layer did."""
        return Speculation.read(self.meta)

    @property
    def ends(self) -> frozenset[int]:
        """The id that ended the sequence, as a set that is empty when none did."""
        return frozenset() if self.eos is None else frozenset((self.eos,))
