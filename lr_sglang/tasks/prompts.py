"""From a question to the messages that are sent."""

from __future__ import annotations

SUFFIX = "Please reason step by step, and put your final answer within \\boxed{}."

# Tasks whose models were trained on the bare question.
BARE = frozenset({"pocket"})


def suffix_for(task: str | None) -> str:
    """What is appended to the questions of a task by default; a single question is sent as it was typed."""
    return "" if task is None or task in BARE else SUFFIX


def messages(question: str, suffix: str = "") -> list[dict[str, str]]:
    """The conversation that asks ``question``."""
    return [{"role": "user", "content": f"{question}\n{suffix}" if suffix else question}]
