"""Whether a judge can judge: it is asked about pairs of steps that differ, and should accept none of them.

A small general model may accept nearly everything, and what a weak draft writes is then in the answer.
"""

from __future__ import annotations

import asyncio
import json
from importlib import resources

from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import sync
from lr_sglang.programs.judge import PROMPTS, agrees, judge
from lr_sglang.theory.shares import FalseAccepts


def pairs(prompt: str) -> list[tuple[str, str]]:
    """Pairs of steps that differ in what they say, such as a judge that is asked by this prompt is made for."""
    file = resources.files("lr_sglang.verifiers") / "pairs" / f"{prompt}.jsonl"
    rows = map(json.loads, file.read_text("utf-8").splitlines()) if file.is_file() else ()
    return [(row["target"], row["draft"]) for row in rows]


async def check(backend: RuntimeBackend, prompt: str) -> FalseAccepts | None:
    """Asks a judge about all of them, side by side; notes in its backend, and returns, how many it accepted.

    Call it on the loop on which the backend's other requests will be made. What it does not answer does not count. A
    simulated judge reads no text, and is not asked.

    Args:
        prompt: name of its prompt (``programs.judge.PROMPTS``).
    """

    async def accepts(target: str, draft: str) -> bool:
        state = judge.run(target, draft, PROMPTS[prompt], backend=backend)
        await sync(state)
        return bool(agrees(str(state["label"])))

    if backend.simulated:
        return None
    backend.bind(asyncio.get_running_loop())
    found = await asyncio.gather(*(accepts(*pair) for pair in pairs(prompt)), return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException) and not isinstance(error, LookaheadError):
            raise error
    told = [one for one in found if isinstance(one, bool)]
    backend.false_accepts = FalseAccepts.of(told) if told else None
    return backend.false_accepts


def distrust(found: FalseAccepts | None, most: float) -> str:
    """What to say of a judge that accepts too many; empty for one that is trusted."""
    if found is None or found.surely <= most:
        return ""
    return (
        f"judge: it accepted {found.accepted} of {found.asked} pairs of steps that differ; it is shown no draft, and "
        "the target answers alone (--max-false-accepts 1 trusts it all the same)"
    )
