"""What is wrong with a request's body, in the words of who wrote the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# By pydantic's kinds of error; what stands in braces is the error's context.
_WORDS = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such key",
    "string_type": "must be text",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must not be empty",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
# Fields that may be of two types; an error of neither type says both.
_EITHER = {
    "content": 'must be text, or a list of parts such as {"type": "text", "text": "..."}',
    "stop": "must be text, or a list of texts",
    "prompt": "must be text, or a list of one text",
}


def message_of(errors: Sequence[Any]) -> tuple[str, str | None]:
    """What is wrong with a body, and with which of its fields; nothing of what was sent."""
    found: dict[str, Any] = errors[0]
    if found["type"] == "json_invalid":
        return f"The body is not valid JSON: {found['ctx']['error']}", None
    # Where a field may be of several types, the errors of all come; the one of its own type says more than the others.
    same = [error for error in errors if _where(error)[:1] == _where(found)[:1]]
    found = next((error for error in same if not error["type"].endswith("_type")), found)
    where = _where(found)
    if not where and isinstance(found.get("input"), bytes):
        return "The body is not read as JSON: send it with the header 'Content-Type: application/json'", None
    message = _said(found, where)
    if not where:
        name, _, rest = message.partition(": ")
        known = bool(rest) and name.replace("_", "").isalpha()
        return message if known else f"The body {message}", name if known else None
    return f"{'.'.join(where)}: {message}", ".".join(where)


def _said(error: dict[str, Any], where: list[str]) -> str:
    kind = error["type"]
    if where and kind.endswith("_type") and where[-1] in _EITHER:
        return _EITHER[where[-1]]
    if kind in _WORDS:
        return _WORDS[kind].format(**error.get("ctx", {}))
    return str(error["msg"]).removeprefix("Value error, ")


def _where(error: Any) -> list[str]:
    """The path of the field. Of one that may be of two types pydantic's also has the type, as ``stop.str``."""
    parts = [str(part) for part in error["loc"] if part != "body"]
    parts = [part for part in parts if part.isdecimal() or part.isidentifier()]
    return [part for before, part in zip(["", *parts], parts, strict=False) if part != "str" or before not in _EITHER]
