"""The judge runtime decides, with the paper's prompt and rule (appendix A)."""

from __future__ import annotations

import time
from typing import Any

from lr_sglang.backend import Generation, RuntimeBackend
from lr_sglang.dsl import Inquiry
from lr_sglang.errors import ConfigError
from lr_sglang.programs.judge import PROMPTS, JudgePrompt, agrees, judge
from lr_sglang.tree import Verdict

REST, LONGEST_REST = 2.0, 60.0  # seconds


class Judge:
    """Asks a chat model for one token. Versions identical after ``strip()`` need no question.

    A judge that fails counts as a rejection: slower, never wrong. One that is down or hangs is then left alone for a
    while, longer each time, so that it does not hold up every step.
    """

    name = "judge"

    def __init__(self, backend: RuntimeBackend, prompt: JudgePrompt) -> None:
        self.backend, self.prompt = backend, prompt
        self._failures, self._rests_until = 0, 0.0

    @classmethod
    def of(cls, backend: RuntimeBackend, prompt: str) -> Judge:
        """With one of the known prompts."""
        if prompt not in PROMPTS:
            raise ConfigError(f"no judge prompt is called {prompt!r}", hint=f"one of {', '.join(PROMPTS)}")
        return cls(backend, PROMPTS[prompt])

    def verify(self, inquiry: Inquiry) -> Verdict | None:
        target, draft = inquiry.pair.target.text.strip(), inquiry.pair.draft.text.strip()
        if target == draft:
            return Verdict(True, "identical")
        if time.monotonic() < self._rests_until:
            return Verdict(False, self.name, "the judge failed just now", failed=True)

        def heard(result: Any) -> None:
            if isinstance(result, Generation):
                self._failures = 0
                label = self.backend.tokenizer.decode(result.ids)
                inquiry.reply(Verdict(agrees(label), self.name, label.strip()))
                return
            if result.retryable:
                self._rests_until = time.monotonic() + min(LONGEST_REST, REST * 2**self._failures)
                self._failures += 1
            inquiry.reply(Verdict(False, self.name, str(result), failed=True))

        judge.run(target, draft, self.prompt, inquiry.begin(heard), backend=self.backend)
        return None
