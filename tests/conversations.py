"""Texts and conversations in which tokenizers and chat templates differ."""

from typing import Any

TEXTS = (
    "Okay, let's see.\n\nWhat is 12 + 1234567?  Two spaces, tab\tand é 中文 😀👩‍👩‍👧\n",
    "a\r\nb\n\n\n\nc\n \nd\n\t\ne",
    " leading and trailing ",
    "def f(x):\n\treturn x**2  # <table><td>\n",
    "First, x = 1.\n\n- a\n- b\n\n\nThen:\n\n```\ncode\n\n```\n\n中文。\n\n😀\n\n é\n\n",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city, such as Köln",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}


def says(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


THOUGHT = "<think>\nHm.\n\nYes.\n</think>\n\nIt is 3."
TALK = [says("user", TEXTS[0]), says("assistant", TEXTS[1]), says("user", TEXTS[4])]
CONVERSATIONS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    *(([says("user", text)], {}) for text in ("", *TEXTS)),
    (TALK, {}),
    ([says("system", TEXTS[1]), *TALK], {}),
    ([says("user", "1 + 2?"), says("assistant", THOUGHT), says("user", "Sure?")], {}),
    (TALK, {"enable_thinking": False}),
    (TALK, {"enable_thinking": True}),
    ([says("system", "Be brief."), *TALK[:1]], {"tools": [TOOL]}),
    (
        [TALK[0], says("assistant", None, tool_calls=[CALL]), says("tool", "rain\n\n\n")],
        {"tools": [TOOL]},
    ),
]
