"""Replacements for parts of SGLang's program state that are slower, or would let a reader wait for ever."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any

from lr_sglang.sglang_api.interpreter import SglSamplingParams
from lr_sglang.steps.step import StepStop


class SamplingParams(SglSamplingParams):
    """The sampling parameters of a ``gen``."""

    @cached_property
    def sent(self) -> dict[str, Any]:
        """The parameters of /generate, without empty ones. Nothing may be changed afterwards."""
        sent = self.to_srt_kwargs() | {"no_stop_trim": isinstance(self.stop, StepStop)}
        return {key: value for key, value in sent.items() if value or value == 0}


class Flag:
    """An event without waiting, at a fraction of the cost of a ``threading.Event``."""

    _set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        return self._set


class TextEvent(threading.Event):
    """Set when a stream has new text; ``read`` once a reader has taken some."""

    read = False

    def clear(self) -> None:
        self.read = True
        super().clear()

    @property
    def unread(self) -> bool:
        """Whether the latest text has not been read yet."""
        return self.read and self.is_set()


class StreamedEvent(threading.Event):
    """Set when a streamed variable is complete. SGLang's readers leave when they see it set, so ``is_set`` is True
    only once they have read all.

    Args:
        news: set when there is more of the variable to read.
    """

    def __init__(self, news: threading.Event) -> None:
        super().__init__()
        self._news = news

    def is_set(self) -> bool:
        return super().is_set() and not self._news.is_set()


class FailedVariables(dict[str, Any]):
    """The variables of a failed state: existing ones stay, any other raises the failure."""

    def __init__(self, known: dict[str, Any], error: BaseException) -> None:
        super().__init__(known)
        self._error = error

    def __missing__(self, name: str) -> Any:
        raise self._error


class FailedText(str):
    """The text of a failed state, for readers of a stream, which slice it: a slice raises the failure."""

    def __new__(cls, text: str, error: BaseException) -> FailedText:
        made = super().__new__(cls, text)
        made._error = error
        return made

    _error: BaseException

    def __getitem__(self, key: Any) -> str:
        raise self._error
