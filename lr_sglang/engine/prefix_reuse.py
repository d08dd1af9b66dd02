"""The reuse of prefixes in a runtime: tokens that a request found in the cache over those that it
could have found there.

A request could have found the longest prefix that it shares with any request prefilled before, less
the one token that is always computed. An unfinished request shares its prompt only. Prompts and
outputs alone say this: what others left in the cache, or requests that are remembered no more,
counts neither way.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from lr_sglang.sglang_api.plugin_protocol import common_prefix

# requests that enter within this time may be one prefill batch, without a prefix to share
BATCH_SECONDS = 0.001
# Prompts are grouped by this number of first tokens.
HEAD_TOKENS = 32


class Prefilled(NamedTuple):
    """A request that a runtime has answered. Times are those that the runtime reports, or else when
    it was sent and when its reply came.

    Attributes:
        longest: size of the longest prompt so far with the same head.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    entered: float
    prefilled: float
    finished: float
    longest: int


class RequestLog:
    """The last requests of one runtime.

    Args:
        size: maximum number of requests.
        tokens: maximum number of tokens of all their prompts (eight bytes each).
    """

    def __init__(self, size: int = 1024, tokens: int = 2**19) -> None:
        self._entries: deque[Prefilled] = deque()
        # by head, so that few requests are compared
        self._alike: defaultdict[tuple[int, ...], deque[Prefilled]] = defaultdict(deque)
        self._size = size
        self._most = tokens
        self._tokens = 0
        self.longest_output = 0

    def add(
        self,
        prompt: tuple[int, ...],
        output: tuple[int, ...],
        meta: Mapping[str, Any],
        sent: float,
        now: float,
        most: int | None = None,
    ) -> Callable[[], int]:
        """Records a request when its reply has come.

        Args:
            meta: of the reply.
            most: tokens that may come from the cache: not those with log-probabilities.

        Returns:
            A function that gives the tokens of the prompt that an earlier request shares; to be
            called when all earlier requests have ended.
        """
        entered = sent
        prefilled = now
        if began := float(meta.get("forward_entry_time") or 0):  # reported with --enable-metrics
            # requests in later batches find the tokens of this prefill in the cache
            entered = began
            prefilled = began + BATCH_SECONDS
        alike = self._alike[_head(prompt)]
        longest = max(len(prompt), alike[-1].longest if alike else 0)
        entry = Prefilled(prompt, output, entered, prefilled, now, longest)
        if "prompt_tokens" in meta:  # otherwise it was aborted in the queue, before its prefill
            self._entries.append(entry)
            alike.append(entry)
            self._tokens += len(prompt)
            self.longest_output = max(self.longest_output, len(output))
        while len(self._entries) > self._size or (
            self._tokens > self._most and len(self._entries) > 1
        ):
            self._forget(self._entries.popleft())
        limit = len(prompt) - 1
        return partial(self._shareable, entry, limit if most is None else min(most, limit))

    def _forget(self, entry: Prefilled) -> None:
        self._tokens -= len(entry.prompt)
        head = _head(entry.prompt)
        alike = self._alike[head]
        alike.popleft()  # the oldest request is also the oldest with its head
        if not alike:
            del self._alike[head]

    def _shareable(self, entry: Prefilled, most: int) -> int:
        alike, short = (self._alike.get(head, deque()) for head in (_head(entry.prompt), ()))
        best = _longest(entry, alike, 0, most, self.longest_output)
        best = _longest(entry, short, best, most, self.longest_output)
        if best >= HEAD_TOKENS:
            return best  # prompts with another head share less
        return _longest(entry, self._entries, best, most, None)


def _head(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The first ``HEAD_TOKENS`` tokens; empty for a shorter prompt, which continues with
    generated tokens.
    """
    return prompt[:HEAD_TOKENS] if len(prompt) >= HEAD_TOKENS else ()


def _longest(
    entry: Prefilled, others: deque[Prefilled], best: int, most: int, output: int | None
) -> int:
    """Tokens that ``entry`` could share with one of the others, ``best`` to ``most``; ``output`` is
    the longest output.
    """
    prompt = entry.prompt
    if best >= most:
        return best
    following = prompt[best]
    for other in reversed(others):  # the latest share most, so the loop often ends early
        size = len(other.prompt)
        if best < size:
            if other.prompt[best] != following:
                continue
        elif output is not None and best >= other.longest + output:
            break  # older prompts are not longer
        elif best >= size + len(other.output) - 1:
            continue
        if other is entry or other.prefilled > entry.entered:
            continue
        length = common_prefix(prompt, other.prompt)
        if length == size and other.finished <= entry.entered:
            written = other.output[:-1]
            length += common_prefix(written, prompt[length : length + len(written)])
        best = max(best, min(length, most))
        if best >= most:
            break
        following = prompt[best]
    return best
