"""The sampling parameters of a ``gen``, as a runtime gets them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from lr_sglang.errors import ConfigError
from lr_sglang.sglang_api.interpreter import SglSamplingParams
from lr_sglang.steps.step import StepStop


class SamplingParams(SglSamplingParams):
    """The sampling parameters of a ``gen``.

    Attributes:
        more: of SGLang's, those for which ``gen`` has no option.
    """

    more: Mapping[str, Any] = {}

    def check(self) -> None:
        """Raises ``ConfigError`` for an option that would have no effect."""
        if self.n != 1:
            hint = f"s.fork({self.n}), and a gen in each of the forks"
            raise ConfigError(f"gen(n={self.n}): a gen writes one text", hint=hint)
        for name in ("top_logprobs_num", "return_text_in_logprobs", "logprob_start_len"):
            if getattr(self, name) is not None and not self.return_logprob:
                hint = "return_logprob=True as well"
                raise ConfigError(f"gen({name}=...): no log-probabilities are asked for", hint=hint)

    @cached_property
    def sent(self) -> dict[str, Any]:
        """The parameters of /generate, without empty ones; cached, so change none afterwards."""
        sent = {
            **self.to_srt_kwargs(),
            "no_stop_trim": isinstance(self.stop, StepStop),
            **self.more,
        }
        return {key: value for key, value in sent.items() if value or value == 0}
