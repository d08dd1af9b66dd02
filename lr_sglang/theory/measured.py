"""The inputs of the formulas, measured from the records of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lr_sglang.config import Schedule
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES
from lr_sglang.theory.paper import expected_run, within

# Outcomes of branches that were not cancelled: the target's steps that are in the answer or whose
# draft is, the draft's steps with a verdict. Among the latter are late drafts, with the time until
# they were stopped.
_FINISHED = {"target": ("accepted", "corrected", "bonus"), "draft": ("accepted", "rejected")}
# ``Verdict.by`` of rejections without a verifier: the draft was late, or failed.
_NO_VERDICT = ("late", "draft")

AHEAD = tuple(name for name, mode in MODES.items() if mode.ahead)


@dataclass(frozen=True)
class Measured:
    """Means of a run. ``judge`` and ``c1`` are in units of ``step_seconds``, a target step among
    parallel branches.

    Attributes:
        alpha: share of judged steps that were accepted; a late draft counts as rejected.
        alpha2: acceptance rate of the token layer's drafts, if there is one (see
            ``token_acceptance``).
        judge: mean time of all verdicts, including those without a request.
        slowdown: seconds per token of such a target step over those of ``base``, the same mode
            without lookahead; None if the run does not include it. ``speedup``, in tokens per
            second, is also over ``base``.
        steps: steps per answer, rounded.
        schedule, depth, width: the settings of the run.
    """

    mode: str
    base: str
    alpha: float
    c1: float
    judge: float
    step_seconds: float
    alpha2: float | None
    slowdown: float | None
    speedup: float | None
    steps: int
    schedule: Schedule
    depth: int
    width: int
    samples: int
    judged: int


def measure(records: Iterable[Mapping[str, Any]], mode: str | None = None) -> Measured:
    """Measures one mode of a run, by default the first with lookahead.

    Raises:
        ConfigError: there are no such samples, or their settings differ.
    """
    ended = [r for r in records if r["error"] is None]
    modes = {r["mode"] for r in ended}
    mode = mode or next((m for m in AHEAD if m in modes), "lookahead")
    ahead = [r for r in ended if r["mode"] == mode]
    if not ahead:
        raise ConfigError(
            f"the records have no sample of mode {mode} without an error",
            hint="measure another run",
        )
    base = without(ahead)
    ways = {
        (c["schedule"], c["depth"], c["width"]) for c in (r["config"]["lookahead"] for r in ahead)
    }
    if len(ways) > 1:
        raise ConfigError(
            "the records have different schedules, depths or widths", hint="measure one run"
        )
    schedule, depth, width = ways.pop()
    judged, target = sum(r["judged"] for r in ahead), list(finished(ahead, "target"))
    seconds = [_seconds(branch) for branch in target]
    step = _mean(seconds, "target step")
    draft = _mean([_seconds(branch) for branch in finished(ahead, "draft")], "judged draft step")
    verdict = _mean(list(_verdicts(ahead)), "verdict")
    slowdown = speedup = None
    if alone := [r for r in ended if r["mode"] == base]:
        pace = sum(r["seconds"] for r in alone) / max(1, sum(r["tokens"]["used"] for r in alone))
        slowdown = sum(seconds) / max(1, sum(branch["generated"] for branch in target)) / pace
        speedup = pace * sum(r["tokens"]["used"] for r in ahead) / sum(r["seconds"] for r in ahead)
    return Measured(
        mode=mode,
        base=base,
        alpha=sum(r["accepted"] for r in ahead) / judged,
        c1=draft / step,
        judge=verdict / step,
        step_seconds=step,
        alpha2=_token_layer([branch["sd"] for branch in target if branch.get("sd")]),
        slowdown=slowdown,
        speedup=speedup,
        steps=max(1, round(sum(len(r["steps"]) for r in ahead) / len(ahead))),
        schedule="sync" if schedule == "sync" else "async",
        depth=depth,
        width=width,
        samples=len(ahead),
        judged=judged,
    )


def without(records: Sequence[Mapping[str, Any]]) -> str:
    """The mode without lookahead that has a token layer if these records, all of one mode, have
    one.
    """
    layered = MODES[records[0]["mode"]].token_layer
    if layered is None:
        target = (records[0]["config"].get("runtimes") or {}).get("target") or {}
        if "token_layer" in target:
            layered = target["token_layer"].get("algorithm", "none") != "none"
        else:  # the server was attached: its counts show whether it has a token layer
            roles = [record["tokens"].get("target") or {} for record in records]
            layered = any((role.get("sd") or {}).get("verified") for role in roles)
    return "sd" if layered else "autoregressive"


def token_acceptance(accepted: float, drafted: int) -> float:
    """alpha2 of a layer that accepts on average ``accepted`` of ``drafted`` tokens per
    verification.

    It is higher than their ratio, because all tokens after a rejected one are rejected too. It
    solves g's numerator: alpha2 + ... + alpha2^drafted = accepted.
    """
    within("drafted", drafted, drafted >= 1, "at least 1")
    within("accepted", accepted, 0 <= accepted <= drafted, f"in [0, {drafted}]")
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if expected_run(middle, drafted + 1) - 1 < accepted else (low, middle)
        )
    return high


def _token_layer(counts: list[list[int]]) -> float | None:
    verified, drafted, accepted = map(sum, zip(*counts, strict=True)) if counts else (0, 0, 0)
    if not verified or not drafted:
        return None
    width = max(1, round(drafted / verified))
    return token_acceptance(min(accepted / verified, width), width)


def _seconds(branch: dict[str, Any]) -> float:
    return float(branch["ended"] - branch["started"])


def finished(records: Iterable[Mapping[str, Any]], role: str) -> Iterator[dict[str, Any]]:
    """The branches of a role with one of the outcomes in ``_FINISHED``, and without an error."""
    for record in records:
        for branch in record["branches"]:
            whole = branch["ended"] is not None and not branch["error"]
            if whole and branch["role"] == role and branch["outcome"] in _FINISHED[role]:
                yield branch


def _verdicts(records: Iterable[Mapping[str, Any]]) -> Iterator[float]:
    said = (
        verdict for record in records for step in record["steps"] for verdict in step["verdicts"]
    )
    return (
        v["seconds"]
        for v in said
        if v is not None and not v["failed"] and v["by"] not in _NO_VERDICT
    )


def _mean(values: list[float], what: str) -> float:
    if not values or (what != "verdict" and not sum(values)):
        raise ConfigError(
            f"the records have no {what} with a time", hint="measure a run with more questions"
        )
    return sum(values) / len(values)
