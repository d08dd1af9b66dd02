"""Replacements for parts of SGLang's program state that are slower, or could make a reader wait for
ever.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from lr_sglang.sglang_api.interpreter import SglSamplingParams
from lr_sglang.steps.step import StepStop


class SamplingParams(SglSamplingParams):
    """The sampling parameters of a ``gen``.

    Attributes:
        more: of SGLang's, those for which ``gen`` has no option.
    """

    more: Mapping[str, Any] = {}

    @cached_property
    def sent(self) -> dict[str, Any]:
        """The parameters of /generate, without empty ones; cached, so change none afterwards."""
        sent = {
            **self.to_srt_kwargs(),
            "no_stop_trim": isinstance(self.stop, StepStop),
            **self.more,
        }
        return {key: value for key, value in sent.items() if value or value == 0}


class Flag:
    """An event whose ``wait`` returns at once; cheaper than ``threading.Event``."""

    _set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        return self._set


class TextEvent(threading.Event):
    """Set when a stream has new text; ``read`` is True after a reader has read some."""

    read = False

    def clear(self) -> None:
        self.read = True
        super().clear()

    @property
    def unread(self) -> bool:
        """Whether the latest text has not been read yet."""
        return self.read and self.is_set()


class StreamedEvent(threading.Event):
    """Set when a streamed variable is complete. SGLang's readers stop when ``is_set`` is True, so
    it becomes True only when they have read all text.

    Args:
        news: set when the variable has unread text.
    """

    def __init__(self, news: threading.Event) -> None:
        super().__init__()
        self._news = news

    def is_set(self) -> bool:
        return super().is_set() and not self._news.is_set()


class FailedVariables(dict[str, Any]):
    """The variables of a failed state: reading one that does not exist raises the failure."""

    def __init__(self, known: dict[str, Any], error: BaseException) -> None:
        super().__init__(known)
        self._error = error

    def __missing__(self, name: str) -> Any:
        raise self._error


class FailedText(str):
    """The text of a failed state; a slice, which SGLang's stream readers take, raises
    the failure.
    """

    def __new__(cls, text: str, error: BaseException) -> FailedText:
        made = super().__new__(cls, text)
        made._error = error
        return made

    _error: BaseException

    def __getitem__(self, key: Any) -> str:
        raise self._error
