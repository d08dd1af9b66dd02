"""Reading JSON from strangers: nothing that is not JSON, nothing too deep, and errors that say where."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class StrictRequest(Request):
    """A request whose body is JSON to the letter."""

    async def json(self) -> Any:
        """The body.

        Raises:
            json.JSONDecodeError: it is not JSON, or none that anybody would send.
        """
        body = await self.body()
        try:
            found = json.loads(body, parse_constant=_not_json)
            if b"\\ud" in body.lower():
                json.dumps(found, ensure_ascii=False).encode()  # half of a pair is no character
            return found
        except json.JSONDecodeError:
            raise
        except RecursionError:
            raise json.JSONDecodeError("it is nested too deeply", "", 0) from None
        except UnicodeError:
            raise json.JSONDecodeError("it is not UTF-8, or has half a surrogate pair", "", 0) from None
        except ValueError as error:  # a number of thousands of digits, NaN
            raise json.JSONDecodeError(str(error)[:100], "", 0) from None


class StrictRoute(APIRoute):
    """A route that reads so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly


def message_of(errors: Sequence[Any]) -> tuple[str, str | None]:
    """What is wrong with a body, and with which of its fields; nothing of what was sent."""
    found: dict[str, Any] = errors[0]
    if found["type"] == "json_invalid":
        return f"The body is not valid JSON: {found['ctx']['error']}", None
    # Where a field may be of several types, the errors of all come; the one of its own type says more than the others.
    same = [error for error in errors if _where(error)[:1] == _where(found)[:1]]
    found = next((error for error in same if not error["type"].endswith("_type")), found)
    where = _where(found)
    fields = [part for part in where if part.isdecimal() or part.isidentifier()]
    message = str(found["msg"]).removeprefix("Value error, ")
    if found["type"] == "extra_forbidden":
        message = "there is no such key"
    if not fields:
        name, _, rest = message.partition(": ")
        known = bool(rest) and name.replace("_", "").isalpha()
        return message, name if known else None
    return f"{'.'.join(fields)}: {message}", ".".join(fields)


def _where(error: Any) -> list[str]:
    return [str(part) for part in error["loc"] if part != "body"]


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
