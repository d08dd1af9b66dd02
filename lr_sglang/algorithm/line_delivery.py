"""The delivery of a line to the server that runs its request."""

from __future__ import annotations

from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.steps.branch import Branch

# Passes in a row that gave one token though the line had the next one: the server has lost the
# line, and gets it again.
LOST = 3
# Tokens before the target's place that are delivered at most: where the line was wrong, the server
# still holds it for a pass.
BEHIND = 64


class LineDelivery:
    """Sends a server what is new of the line of one of its requests, and again what it has lost.

    Args:
        branch: of the request.
    """

    def __init__(self, target: RuntimeBackend, branch: Branch) -> None:
        self._target = target
        self._branch = branch
        self._rid = ""  # of the request that has the line
        self._sent = 0  # tokens that the server has
        self._sent_before = 0  # the same when the target's last pass ended
        self._ignored = 0  # passes in a row that did not use the line

    def send(self, ids: list[int], written: int) -> None:
        """Sends what is new of the line ``ids``, of which the target has written so many tokens."""
        if not self._branch.rid or self._branch.done:
            return
        if self._rid != self._branch.rid:  # the request was sent, or sent again
            self._rid = self._branch.rid
            self._sent = 0
        if len(ids) > max(self._sent, written):
            first = max(self._sent, written - BEHIND)
            self._target.lines.put(self._rid, first, ids[first:])
            self._sent = len(ids)

    def passed(self, written: int, tokens: int, same: int, *, parted: bool) -> None:
        """Notes a pass of the target.

        Args:
            written: tokens before it.
            tokens: that it gave, ``same`` of them as in the line.
            parted: whether the line had another token after those.
        """
        unused = tokens == 1 and same == 1 and self._sent_before > written
        self._ignored = self._ignored + 1 if unused else 0
        if parted:
            self._sent = min(self._sent, written + same)
        if self._ignored > 0 and self._ignored % LOST == 0:
            self._sent = written + tokens
        self._sent_before = self._sent

    def close(self) -> None:
        """Drops what has not been sent."""
        self._target.lines.drop(self._rid)
