r"""Finding the final answer in what a model wrote. Every search here takes time in proportion to
the text's length.
"""

from __future__ import annotations

import re

from lr_sglang.tasks.boxed import boxed

OPENS, CLOSES = "<think>", "</think>"
LOOKED_AT = 200_000  # characters at the end, in which final answers are searched
_TOKEN = re.compile(r"\\boxed\s+([^\s{}$\\]{1,100})|\\boxed(\d)")
_MARK = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]{0,200})$", re.MULTILINE)
_SAYS = re.compile(r"\banswer\b[*_ ]{0,4}(?:is|:|=)[*_ :]{0,6}([^\n]{1,300})", re.IGNORECASE)
_SENTENCE = re.compile(r"\.(?:\s|$)")
_FENCE = re.compile(r"^[ \t]*+```[ \t]*+([\w+#.-]*+)[^\n`]*+$", re.MULTILINE)


def after_thinking(text: str) -> str:
    """The text after the thinking; empty if the thinking never ends."""
    rest = text.rpartition(CLOSES)[2]
    return "" if OPENS in rest else rest[-LOOKED_AT:]


def final_answer(text: str) -> str | None:
    r"""The last ``\boxed{...}`` after the thinking; or ``#### ...``, or what "the answer is"; None
    without any.
    """
    part = after_thinking(text)
    if (found := boxed(part)) is not None:
        return found
    if tokens := _TOKEN.findall(part):
        return str(tokens[-1][0] or tokens[-1][1]).rstrip(".,;")
    if "\\boxed" in part:  # a box that was cut off
        return None
    for pattern in (_MARK, _SAYS):
        if found_all := pattern.findall(part):
            return _SENTENCE.split(found_all[-1])[0].strip(" *_$") or None
    return None


def code(text: str, wanted: str = "") -> str | None:
    """The program: the last fenced block after the thinking, and the last that has ``wanted`` in it
    if any has.

    Without a fence it is all of the text, if that looks like a program.
    """
    part = after_thinking(text)
    fences = list(_FENCE.finditer(part))
    blocks = []
    opened = None
    for fence in fences:
        if opened is None:
            opened = fence
        elif not fence[1]:
            blocks.append((opened[1].lower(), part[opened.end() : fence.start()].strip("\n")))
            opened = None
        else:  # the open block was never closed
            opened = fence
    if opened is not None and not blocks:
        blocks.append((opened[1].lower(), part[opened.end() :].strip("\n")))
    ours = [body for language, body in blocks if language in ("", "python", "python3", "py")]
    if ours:
        return next((body for body in reversed(ours) if wanted and wanted in body), ours[-1])
    bare = re.search(r"^(?:def|class|import|from|    )[ \t]*+\S", part, re.MULTILINE)
    return part.strip("\n") if bare and not blocks else None
