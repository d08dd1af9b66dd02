"""The command line over scripted runtimes: no server, no model. Run as a program it is such an
``lr-sglang``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

if __name__ == "__main__":  # before anything imports SGLang, as the command line does
    from lr_sglang.sglang_api.light_import import leave_torch_out

    leave_torch_out()

from lr_sglang.api import session
from lr_sglang.steps.step import DELIMITER
from tests.scripted import END, ScriptedTransport, deployment

LAST = "So the answer is \\boxed{17}."


def answers(draft: bool = False) -> Any:
    """Writes three steps and a boxed 17, the draft a wrong second step; knows where it is from the
    text so far.
    """
    steps = [
        "First this.",
        "Then that." if not draft else "Then something else.",
        "And so on.",
        LAST + chr(END),
    ]
    return lambda text, sampling: DELIMITER.join(steps[text.count(DELIMITER) :])


def aligned(text: str, sampling: dict[str, Any]) -> str:
    """A judge that agrees (it is asked for one token, which is one character here)."""
    return "a"


def transports(
    seconds: float = 0.01, quick: int = 0, later: float = 0.0
) -> dict[str, ScriptedTransport]:
    """Target, draft and judge; a request to the target takes ``seconds``, or ``later`` after
    ``quick`` of them.
    """

    takes = lambda text: later if quick and len(target.requests) > quick else seconds
    target = ScriptedTransport(answers(), takes)
    return {
        "target": target,
        "draft": ScriptedTransport(answers(draft=True), lambda text: seconds / 4),
        "judge": ScriptedTransport(aligned),
    }


class Servers:
    """Stands in for ``session.session``; counts how often it was asked, and keeps the
    deployments.
    """

    def __init__(self, **doubles: ScriptedTransport) -> None:
        self.transports = doubles or transports()
        self.started: list[Any] = []

    @contextmanager
    def __call__(
        self, wanted: Any, logs: Any, progress: Any, timeout: float, *, lean: bool
    ) -> Iterator[session.Session]:
        self.started.append(wanted)
        for role, transport in self.transports.items():
            runtime = wanted.runtime(role)
            transport.token_layer = (
                runtime.token_layer.algorithm if runtime and runtime.token_layer.on else ""
            )
        backend = deployment(**self.transports)
        yield session.Session(
            {role: b for role, b in backend.roles.items() if wanted.runtime(role)}
        )


if __name__ == "__main__":
    from lr_sglang.cli import main

    times = [float(part) for part in os.environ.get("SECONDS", "0").split(",")]
    session.session = Servers(**transports(*times))  # type: ignore[assignment, arg-type]
    main()
