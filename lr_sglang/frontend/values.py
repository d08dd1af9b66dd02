"""What a state of a program is made of where SGLang's own is slower, or would let a reader wait for ever."""

from __future__ import annotations

import threading
from typing import Any

from lr_sglang.sglang_api.interpreter import SglSamplingParams


def overridden(defaults: SglSamplingParams, given: SglSamplingParams) -> SglSamplingParams:
    """What a ``gen`` asks for: a program's sampling parameters, but for those that it gives itself. Without the deep
    copy that SGLang makes, for nothing is changed in them."""
    made = object.__new__(SglSamplingParams)
    made.__dict__ = {**vars(defaults), **{name: value for name, value in vars(given).items() if value is not None}}
    return made


class Flag:
    """An event that nobody waits for: a small part of what a ``threading.Event`` costs."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        return self._set


class TextEvent(threading.Event):
    """There is news of a stream's text. ``read`` once somebody has taken some."""

    read = False

    def clear(self) -> None:
        self.read = True
        super().clear()

    @property
    def unread(self) -> bool:
        """Whether a reader has not taken the last news yet."""
        return self.read and self.is_set()


class StreamedEvent(threading.Event):
    """A streamed variable is complete. SGLang's readers leave when they see that; they see it once they have read all.

    Args:
        news: is set when there is more of the variable to read.
    """

    def __init__(self, news: threading.Event) -> None:
        super().__init__()
        self._news = news

    def is_set(self) -> bool:
        return super().is_set() and not self._news.is_set()


class FailedVariables(dict[str, Any]):
    """The variables of a failed state: what was there stays, and anything else is the failure."""

    def __init__(self, known: dict[str, Any], error: BaseException) -> None:
        super().__init__(known)
        self._error = error

    def __missing__(self, name: str) -> Any:
        raise self._error


class FailedText(str):
    """The text of a failed state, which whoever streams it reads in slices."""

    def __new__(cls, text: str, error: BaseException) -> FailedText:
        made = super().__new__(cls, text)
        made._error = error
        return made

    _error: BaseException

    def __getitem__(self, key: Any) -> str:
        raise self._error
