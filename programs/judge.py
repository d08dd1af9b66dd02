"""The LLM judge (paper, appendix A): do two versions of a step mean the same? One generated token
decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import sglang as sgl
from sglang.lang.interpreter import ProgramState


@dataclass(frozen=True)
class JudgePrompt:
    """A prompt for the judge. ``question`` contains {target} and {draft}; ``opening`` is the
    beginning of its reply.
    """

    question: str
    opening: str = "["
    system: str = ""

    def ask(self, target: str, draft: str) -> str:
        """The user message, made without ``str.format`` because steps contain braces."""
        before, rest = self.question.split("{target}")
        between, after = rest.split("{draft}")
        return before + target + between + draft + after


PROMPTS = {
    # The paper's question in our own words; its labels and its order (s1 is the target's) are kept.
    "paper": JudgePrompt(
        "You are given two versions of one step of a solution. Decide whether they mean "
        "exactly the same: the same "
        "main idea and key points, the same message, the same logical structure and the same "
        "numeric results. "
        "Judge the meaning, not the wording.\n"
        "Reply with [aligned] if the meaning and every calculated result are the same, and "
        "with [unaligned] if they "
        "differ or if it is too hard to tell. Reply with the label only.\n\n"
        "<start_s1>\n{target}\n<end_s1>\n\n<start_s2>\n{draft}\n<end_s2>",
    ),
    "pocket": JudgePrompt("Step 1: {target}\nStep 2: {draft}"),
}


@sgl.function
def judge(s: ProgramState, target: str, draft: str, prompt: JudgePrompt) -> None:
    """Generates the judge's label."""
    if prompt.system:
        s += sgl.system(prompt.system)
    s += sgl.user(prompt.ask(target, draft))
    s += sgl.assistant_begin()
    s += prompt.opening
    s += sgl.gen("label", max_tokens=1, temperature=0.0)


def agrees(label: str) -> bool:
    """The paper's rule: an accepting label contains "ali" and not "un"."""
    return "ali" in label and "un" not in label
