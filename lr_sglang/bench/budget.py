"""What parallel work buys: speed-up against tokens of the target that were spent for each one delivered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lr_sglang.algorithm import policy
from lr_sglang.config import Lookahead, TokenLayer
from lr_sglang.results.expected import Expected
from lr_sglang.results.groups import Group
from lr_sglang.results.measures import Measures
from lr_sglang.results.report import Report
from lr_sglang.results.statistics import Estimate
from lr_sglang.results.tables import Table, times
from lr_sglang.runtimes.launching import token_layer


@dataclass(frozen=True)
class Spent:
    """One way to look ahead, and its price.

    Attributes:
        share: of the steps that the oracle accepts; None for another verifier.
        budget: M, the most tokens of the target in work at once: steps of all versions x tokens of a verification.
        spent: tokens that the target wrote or verified, for each in an answer.
    """

    name: str
    share: float | None
    depth: int
    concurrency: int
    budget: int
    spent: float
    speedup: Estimate
    expected: Expected | None


def spent(report: Report) -> list[Spent]:
    """What each group with lookahead cost and gained, if it has a baseline."""
    found = []
    for m in report.measures:
        look = m.group.records[0]["config"].get("lookahead")
        if look and m.speed is not None:
            found.append(_of(m, look, m.speed.tokens))
    return found


def _of(m: Measures, look: dict[str, Any], speedup: Estimate) -> Spent:
    ended = m.group.ended
    written = sum(_cost(branch) for record in ended for branch in record["branches"] if branch["role"] == "target")
    used = sum(record["tokens"]["used"] for record in ended)
    kind, _, share = str(look["verifier"]).partition(":")
    return Spent(
        m.group.name,
        float(share or 0.5) if kind in ("oracle", "random") else None,
        look["depth"],
        m.group.concurrency,
        _steps(look) * (_tokens(m.group) + 1),
        written / used if used else 0.0,
        speedup,
        m.expected,
    )


def _steps(look: dict[str, Any]) -> int:
    """k1: the number of steps that the target can write at a time, over all versions."""
    names: tuple[str, ...] = ("schedule", "depth", "width", "policy")
    known = {name: look[name] for name in names if name in look}
    return policy.in_flight(Lookahead.from_dict(known), "target")


def _tokens(group: Group) -> int:
    """Tokens that the target's token layer drafts for a verification; 0 without one."""
    target = (group.records[0]["config"].get("runtimes") or {}).get("target") or {}
    if "token_layer" in target:
        layer = TokenLayer.from_dict(target["token_layer"])
        algorithm = token_layer.BUILT_IN.get(layer.algorithm)
        width = algorithm.flags(layer).get("speculative-num-draft-tokens") if algorithm else None
        if width or layer.tokens or not layer.on:
            return width - 1 if width else layer.tokens or 0
    # The server was running already, or it drafts as its draft model was trained: what it did tells.
    counts = [record["tokens"]["target"].get("sd") or {} for record in group.records]
    verified, drafted = (sum(count.get(name, 0) for count in counts) for name in ("verified", "drafted"))
    return round(drafted / verified) if verified else 0


def _cost(branch: dict[str, Any]) -> int:
    """Tokens that one request cost: the generated ones and the rejected ones of the token layer."""
    _, drafted, accepted = branch.get("sd") or (0, 0, 0)
    return int(branch["generated"]) + drafted - accepted


def table(report: Report) -> Table | None:
    """Speed-up and price, by budget."""
    rows = [
        [
            one.name,
            str(one.budget),
            f"{one.spent:.2f}",
            times(one.speedup),
            times(one.expected.paper if one.expected else None),
            times(one.expected.slowdown if one.expected else None),
        ]
        for one in sorted(spent(report), key=lambda one: (one.share or 0, one.concurrency, one.budget))
    ]
    names = ["mode", "M", "spent", "speed-up, tokens/s", "paper", "+ verdicts, ends, slow-down"]
    note = (
        "M: the most tokens of the target in work at once (steps x tokens of a verification); spent: tokens that the"
        " target wrote or verified for each token of an answer; the last two are what the formulas expect"
    )
    return Table("Parallel budget", names, rows, note) if rows else None
