"""From a question to the messages that are sent. There is no system message: models that reason advise against one."""

from __future__ import annotations

# Formatted by nobody: the braces are single on purpose, and the model sees \boxed{}.
SUFFIX = "Please reason step by step, and put your final answer within \\boxed{}."
CHOICE = "Please reason step by step, and put the letter of the right choice, and nothing else, within \\boxed{}."
CODE = "Please reason step by step, and end with the whole program, its imports too, in one ```python block."
FUNCTION = "Please reason step by step, and end with the whole function, its imports too, in one ```python block."


def suffix_for(task: str | None) -> str:
    """What is appended to the questions of a task by default; a single question is sent as it was typed.

    Raises:
        ConfigError: it names a task of a third party that cannot be loaded.
    """
    from lr_sglang.tasks.lookup import find

    if task is None:
        return ""
    found = find(task)
    return found.task.suffix if found else SUFFIX


def messages(question: str, suffix: str = "") -> list[dict[str, str]]:
    """The conversation that asks ``question``."""
    return [{"role": "user", "content": f"{question}\n{suffix}" if suffix else question}]
