r"""Finding the final answer in what a model wrote. Every search here takes time in proportion to
the text's length.
"""

from __future__ import annotations

import re

from lr_sglang.steps.step import text_after_thinking
from lr_sglang.tasks.boxed import boxes

SEARCHED_CHARACTERS = 200_000  # characters at the end, in which final answers are searched
_TOKEN = re.compile(r"\\boxed\s+([^\s{}$\\]{1,100})|\\boxed(\d)")
# Between boxes that are parts of one answer, such as "2, 11 and 13".
_BETWEEN = re.compile(
    r"(?:[\s$*~,;&]|\\[()\[\],;:!]|\\q?quad|\\(?:text|mathrm)\s*\{[\s,]*(?:and|or)[\s,]*\}|and\b|or\b){1,40}"
)
_JOINS = re.compile("[,;]|and|or")
_STATED = (  # in the order in which they are believed
    re.compile(r"<answer>\s*+([^<]{1,300})</answer>", re.IGNORECASE),
    re.compile(r"^[ \t]*####[ \t]*(\S[^\n]{0,200})$", re.MULTILINE),
    re.compile(
        r"(?:\banswer\b|答案)[*_ ]{0,4}(?:is|(?:seems|appears|has) to be|(?:must|should|would) be"
        r"|:|=|\s[-–—]\s|是|为|：)[*_ :]{0,6}\n{0,2}[*_ ]{0,4}(?=([^\n]{1,300}))",
        re.IGNORECASE,
    ),
    re.compile(
        r"^[#*_ \t]{0,8}(?:final |correct )?answer[*_ ]{0,4}\n{1,2}([^\n]{1,300})",
        re.IGNORECASE | re.MULTILINE,
    ),
)
_SENTENCE = re.compile(r"\.(?:\s|$)|。")
_BOLD_ENDS = re.compile(r"\*\*(?=[\s!?,;:.)]|$)")
_FENCE_IN_LINE = re.compile(r"(?<=[^\s`])(?=```(?:python|py)\w*[ \t]*\n)")
_BARE = re.compile(r"\n*(?:def|class|import|from) [ \t]*+\S")  # a program without a fence
_PYTHON = re.compile(r"(?:python|py)[\d.]*")


def after_thinking(text: str) -> str:
    """The text after the thinking; empty if the thinking never ends."""
    return text_after_thinking(text)[-SEARCHED_CHARACTERS:]


def final_answer(text: str) -> str | None:
    r"""The last ``\boxed{...}`` after the thinking, or the last ones if commas or "and" join them;
    or ``#### ...``, or what "the answer is"; None without any.
    """
    part = after_thinking(text)
    if found := _boxed(part):
        return found[-1][1]
    if tokens := _TOKEN.findall(part):
        return str(tokens[-1][0] or tokens[-1][1]).rstrip(".,;")
    if "\\boxed" in part:  # a box that was cut off
        return None
    for pattern in _STATED:
        if stated := pattern.findall(part):
            return _sentence(stated[-1]) or None
    return None


def statements(text: str, *patterns: re.Pattern[str]) -> list[str]:
    """All that is stated as the answer after the thinking, in the order of the text.

    Args:
        patterns: what states an answer too, in one of its groups.
    """
    part = after_thinking(text)
    found = _boxed(part)
    for pattern in (*_STATED, *patterns):
        for match in pattern.finditer(part):
            said = next(filter(None, match.groups()), "")
            found.append((match.start(), _sentence(said)))
    return [said for _, said in sorted(found)]


def _sentence(text: str) -> str:
    """The first sentence, without marks of layout around it."""
    return _SENTENCE.split(_BOLD_ENDS.split(text)[0])[0].strip(" *_$")


def _boxed(text: str) -> list[tuple[int, str]]:
    """Boxes with their places, in the order of the text; those that are joined are one."""
    groups: list[tuple[int, list[str]]] = []
    ended = -1
    for begins, start, end in sorted(boxes(text)):
        content = text[start:end].strip()
        between = text[ended:begins]
        if groups and _BETWEEN.fullmatch(between) and _JOINS.search(between):
            groups[-1][1].append(content)
        else:
            groups.append((begins, [content]))
        ended = end + 1
    return [(begins, ", ".join(dict.fromkeys(contents))) for begins, contents in groups]


def code(text: str, wanted: str = "") -> str:
    """The program: of the fenced blocks after the thinking the last that has ``wanted`` in it, else
    the last that is said to be Python, else the last of no language. A text that begins as a
    program is one, up to a fence. Empty if there is none.
    """
    from markdown_it import MarkdownIt  # rich brings it

    part = _FENCE_IN_LINE.sub("\n", after_thinking(text))
    if _BARE.match(part):
        return part.partition("\n```")[0].strip("\n")
    found = MarkdownIt("zero").enable(["fence", "list"]).parse(part)
    blocks = [(one.info.strip(), one.content.strip("\n")) for one in found if one.type == "fence"]
    named = [body for language, body in blocks if _PYTHON.fullmatch(language)]
    ours = [body for language, body in blocks if not language or _PYTHON.fullmatch(language)]
    fitting = [body for body in ours if wanted and wanted in body]
    return ([""] + (fitting or named or ours))[-1]
