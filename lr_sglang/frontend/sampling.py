"""The sampling parameters of a ``gen``, as a runtime gets them."""

from __future__ import annotations

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
