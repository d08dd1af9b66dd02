"""Agreement is identity: the same token ids, the end of sequence included. At temperature 0 nothing changes then."""

from __future__ import annotations

from lr_sglang.dsl import Inquiry
from lr_sglang.tree import Verdict


class Exact:
    """Compares token ids; needs no runtime."""

    name = "exact"

    def verify(self, inquiry: Inquiry) -> Verdict:
        target, draft = inquiry.pair.target, inquiry.pair.draft
        same = target.ids == draft.ids and target.vocabulary == draft.vocabulary
        return Verdict(same, self.name)
