"""The reuse of prefixes in a runtime: cached tokens over the tokens that a request could have found
in the cache.

A request could have found the longest prefix that it shares with any request prefilled before, less
the one token that is always computed. An unfinished request shares its prompt only.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# requests that enter within this time may be one prefill batch, without a prefix to share
BATCH_SECONDS = 0.001
# Prompts are grouped by this number of first tokens.
HEAD = 32


@dataclass(eq=False)
class LoggedRequest:
    """One request. Times are those that the runtime reports, or else when it was sent and when its
    reply came.
    """

    log: RequestLog = field(repr=False)
    prompt: tuple[int, ...]
    entered: float
    prefilled: float = float("inf")
    finished: float = float("inf")
    output: tuple[int, ...] | None = None
    cached: int = 0
    most: int | None = None  # tokens that may come from the cache: not those with log-probabilities
    size: int = 0  # tokens of the prompt
    longest: int = 0  # size of the longest prompt so far with the same head

    def ended(self, ids: tuple[int, ...], meta: Mapping[str, Any], sent: float, now: float) -> None:
        """Records the generated tokens and the times that the runtime reports."""
        self.output, self.cached, self.entered = ids, int(meta.get("cached_tokens") or 0), sent
        if "prompt_tokens" in meta:  # otherwise it was aborted in the queue, before its prefill
            self.prefilled = self.finished = now
        if began := float(meta.get("forward_entry_time") or 0):  # reported with --enable-metrics
            # requests in later batches find the tokens of this prefill in the cache
            self.entered, self.prefilled = began, began + BATCH_SECONDS
        if len(ids) > self.log.longest_output:
            self.log.longest_output = len(ids)


class RequestLog:
    """The last requests of one runtime.

    Args:
        size: maximum number of requests.
        tokens: maximum number of tokens of all their prompts (eight bytes each).
    """

    def __init__(self, size: int = 1024, tokens: int = 2**23) -> None:
        self._entries: deque[LoggedRequest] = deque()
        # by head, so that few requests are compared
        self._alike: defaultdict[tuple[int, ...], deque[LoggedRequest]] = defaultdict(deque)
        self._size, self._most, self._tokens = size, tokens, 0
        self.longest_output = 0

    def add(self, ids: tuple[int, ...], now: float, most: int | None = None) -> LoggedRequest:
        """Records a request that is about to be sent."""
        size = len(ids)
        entry = LoggedRequest(self, ids, now, most=most, size=size, longest=size)
        self._entries.append(entry)
        alike = self._alike[_head(ids)]
        if alike and alike[-1].longest > entry.longest:
            entry.longest = alike[-1].longest
        alike.append(entry)
        self._tokens += size
        while len(self._entries) > self._size or (
            self._tokens > self._most and len(self._entries) > 1
        ):
            self._forget(self._entries.popleft())
        return entry

    def _forget(self, entry: LoggedRequest) -> None:
        self._tokens -= len(entry.prompt)
        head = _head(entry.prompt)
        alike = self._alike[head]
        alike.popleft()  # the oldest request is also the oldest with its head
        if not alike:
            del self._alike[head]

    def shareable(self, entry: LoggedRequest) -> int:
        """Tokens of ``entry``'s prompt that could be in the cache; call it when all earlier
        requests have ended.
        """
        alike, short = (self._alike.get(head, deque()) for head in (_head(entry.prompt), ()))
        best = _longest(entry, alike, entry.cached, self.longest_output)
        best = _longest(entry, short, best, self.longest_output)
        if best >= HEAD:
            return best  # prompts with another head share less
        return _longest(entry, self._entries, best, None)


def _head(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The first ``HEAD`` tokens; empty for a shorter prompt, which continues with
    generated tokens.
    """
    return prompt[:HEAD] if len(prompt) >= HEAD else ()


def _longest(
    entry: LoggedRequest, others: deque[LoggedRequest], best: int, output: int | None
) -> int:
    """Tokens that ``entry`` could share with one of the others, at least ``best``; ``output`` is
    the longest output.
    """
    prompt, entered, most = entry.prompt, entry.entered, len(entry.prompt) - 1
    most = most if entry.most is None else min(most, entry.most)
    if best >= most:
        return best
    following = prompt[best]
    for other in reversed(others):  # the latest share most, so the loop often ends early
        if best < other.size:  # a call of len() would take half of the loop's time
            if other.prompt[best] != following:
                continue
        elif output is not None and best >= other.longest + output:
            break  # older prompts are not longer
        elif best >= other.size + len(other.output or ()) - 1:
            continue
        if other is entry or other.prefilled > entered:
            continue
        length = common_prefix(prompt, other.prompt)
        if length == other.size and other.output is not None and other.finished <= entered:
            written = other.output[:-1]
            length += common_prefix(written, prompt[length : length + len(written)])
        best = max(best, min(length, most))
        if best >= most:
            break
        following = prompt[best]
    return best


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:  # the usual case
        return high
    while low < high:  # comparing slices is fast
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
