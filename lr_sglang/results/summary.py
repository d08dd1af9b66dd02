"""Figures of many samples, separately for each mode and each role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from lr_sglang.config import ROLES
from lr_sglang.results.record import Brief
from lr_sglang.steps.trace import acceptance


def summarise(records: Iterable[Brief]) -> dict[str, dict[str, Any]]:
    """The figures of each mode (``of_mode``), in the order of the modes' first records."""
    modes: dict[str, list[Brief]] = {}
    for record in records:
        modes.setdefault(record["mode"], []).append(record)
    return {mode: of_mode(group) for mode, group in modes.items()}


def of_mode(records: Sequence[Brief]) -> dict[str, Any]:
    """Figures of one mode; None for a figure that was not measured.

    ``accuracy`` counts failed samples as wrong; ``interval`` is its 95 % interval over questions,
    as in a report, None for fewer than eight questions. ``alpha`` pools all judged steps.
    ``tokens_per_s`` is all tokens over all seconds; it and ``seconds_mean`` leave failed samples
    out. ``wasted`` is the share of generated tokens that are in no answer. By role: ``reuse`` is
    cached tokens over those that an earlier request shares, ``hit_rate`` cached tokens over all
    prompt tokens, ``sd`` the figures of the token layer.
    """

    def total(count: Callable[[Brief], Any], of: Sequence[Brief] = records) -> Any:
        return sum(map(count, of))

    ended = [r for r in records if r["error"] is None]
    graded = [r for r in records if r["correct"] is not None]
    right = sum(bool(r["correct"]) for r in graded)
    used, seconds = (
        total(lambda r: r["tokens"]["used"], ended),
        total(lambda r: r["seconds"], ended),
    )
    judged, accepted = total(lambda r: r["judged"]), total(lambda r: r["accepted"])
    wasted = total(lambda r: r["tokens"]["wasted"])
    known = [r["false_accepts"] for r in records if "false_accepts" in r]
    return {
        "samples": len(records),
        "errors": len(records) - len(ended),
        "graded": len(graded),
        "grading_failed": len(grading_failed(records)),
        "correct": right,
        "accuracy": _over(right, len(graded)),
        "interval": _interval(graded),
        "steps": total(lambda r: r.steps),
        "judged": judged,
        "accepted": accepted,
        "alpha": _over(accepted, judged),
        "cycles": total(lambda r: r["cycles"]),
        "tokens": used,
        "seconds": seconds,
        "seconds_mean": _over(seconds, len(ended)),
        "tokens_per_s": _over(used, seconds),
        "wasted_tokens": wasted,
        "wasted": _over(wasted, total(lambda r: r["tokens"]["generated"])),
        "cut_off": total(lambda r: r["finish"] == "length", ended),
        "judge_calls": total(lambda r: r["tokens"]["judge"]["calls"]),
        "false_accepts": max(known, key=lambda one: one["asked"], default=None),
        "failures": {
            role: n for role in ROLES if (n := sum(r["failures"].get(role, 0) for r in records))
        },
        "roles": {role: _role([r["tokens"][role] for r in records]) for role in ROLES},
    }


def grading_failed(records: Iterable[Brief]) -> list[Brief]:
    """Records without a verdict because grading itself failed."""
    return [r for r in records if (r.get("grade") or {}).get("failed")]


def _interval(graded: list[Brief]) -> tuple[float, float] | None:
    from lr_sglang.results.statistics import share  # it imports scipy, which takes a second

    samples: dict[Hashable, list[bool]] = defaultdict(list)
    for record in graded:
        samples[record["question_id"]].append(bool(record["correct"]))
    found = share({name: (sum(of), len(of)) for name, of in samples.items()})
    if found is None or found.low is None or found.high is None:
        return None
    return found.low, found.high


def _role(tokens: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("calls", "generated", "prompt", "cached", "shareable")
    sums: dict[str, Any] = {name: sum(one[name] for one in tokens) for name in names}
    counts = [[one["sd"][name] for name in ("verified", "drafted", "accepted")] for one in tokens]
    more = {
        "reuse": _over(sums["cached"], sums["shareable"]),
        "hit_rate": _over(sums["cached"], sums["prompt"]),
    }
    return sums | more | {"sd": acceptance(counts)}


def speed_up(records: Iterable[Brief], mode: str) -> float | None:
    """Summed seconds of autoregressive over those of a mode, of the samples that both have
    completed.
    """
    seconds: dict[str, dict[Any, float]] = {mode: {}, "autoregressive": {}}
    for record in records:
        if record["error"] is None and record["mode"] in seconds:
            seconds[record["mode"]][record["question_id"], record["sample"]] = record["seconds"]
    mine, plain = seconds[mode], seconds["autoregressive"]
    both = [key for key in mine if key in plain]
    return _over(sum(plain[k] for k in both), sum(mine[k] for k in both))


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole else None
