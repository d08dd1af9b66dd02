"""Says, before anything is answered, where a runtime runs fewer requests at a time than lookahead would use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from lr_sglang.algorithm import policy
from lr_sglang.api.configuration import Plan
from lr_sglang.cli.display import Display
from lr_sglang.cli.session import Session
from lr_sglang.config import Role
from lr_sglang.modes import MODES


def tell(shortages: Iterable[tuple[bool, str]], display: Display) -> None:
    """Each once: a warning where the branches of one answer do not fit, a note where those of all at a time do not."""
    for text, urgent in {text: urgent for urgent, text in shortages}.items():
        (display.warn if urgent else display.note)(text)


def shortages(plan: Plan, modes: Collection[str], live: Session, answers: int) -> Iterator[tuple[bool, str]]:
    """What each runtime lacks, and whether it lacks it for one answer alone.

    Args:
        answers: how many are made at a time.
    """
    ahead = [mode for mode in modes if MODES[mode].ahead]
    asked: dict[str, list[Role]] = {}
    for role in dict.fromkeys(role for mode in ahead for role in plan.roles(mode)):
        if live.fleet is not None and role in live.roles:
            asked.setdefault(live.fleet.urls[role], []).append(role)
    limits, held = plan.limits, live.roles["target"].kv_tokens
    wanted = max(limits.max_tokens or 0, limits.max_total_tokens or 0)
    if held is not None and held < wanted:
        text = f"target: its memory holds {held} tokens, so that an answer ends there and not at {wanted} "
        yield True, text + "(extra = {max-total-tokens = ...} of its runtime, where there is room for more)"
    for roles in asked.values():
        backend, one = live.roles[roles[0]], plan.branches(roles, ahead)
        most = policy.limit(backend.max_running_requests, backend.kv_tokens, plan.lookahead)
        if most is None or most >= answers * one:
            continue
        number, urgent = (1, True) if most < one else (answers, False)
        lacking = (
            f"{' and '.join(roles)}: {most} requests at a time, and {number} answer{'s' * (number > 1)} at "
            f"--depth {plan.lookahead.depth} can have {number * one} in flight: then less is looked ahead"
        )
        mend = f"its memory holds {backend.kv_tokens} tokens; a smaller --max-step-tokens takes less"
        if backend.max_running_requests == most:
            more = f"--max-running-requests {answers * one + policy.SPARE} where the server is started"
            mend = f"lr-sglang launch --concurrency {answers}, or {more}"
        yield urgent, f"{lacking} ({mend})"
