"""The judge runtime decides, with the paper's prompt and rule (appendix A)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.judge import JudgePrompt, agrees, judge
from lr_sglang.steps.branch import Generation
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers.asking import Asking
from lr_sglang.verifiers.verifier_registry import Setup


class Judge(Asking):
    """Asks a chat model for one token; accepts versions that are identical after ``strip()``
    without asking.
    """

    name = "judge"

    def __init__(self, backend: RuntimeBackend, prompt: JudgePrompt) -> None:
        super().__init__(backend)
        self.prompt = prompt

    @classmethod
    def make(cls, setup: Setup) -> Judge:
        return cls(setup.backend("judge"), setup.prompt())

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        target = inquiry.pair.target.text.strip()
        draft = inquiry.pair.draft.text.strip()
        return (
            Verdict(True, "identical")
            if target == draft
            else self._judge(inquiry, target, draft, self._read)
        )

    def _judge(
        self, inquiry: Inquiry, target: str, draft: str, read: Callable[[Generation], Verdict]
    ) -> Verdict | Awaitable[Verdict]:
        return self.ask(
            inquiry, lambda: judge.run(target, draft, self.prompt, backend=self.backend), read
        )

    def _read(self, generation: Generation) -> Verdict:
        label = self.backend.tokenizer.decode(generation.ids)
        return Verdict(agrees(label), self.name, label.strip())
