"""Checks the method of ``policies.py adaptive``: its search, its lengths of answers, and its spread
over seeds.

python -m benchmarks.adaptive_check   # 24 of its 256 cases, five minutes on two cores

For each case: the best of all fixed choices, each tried on whole answers, and the best that the
search finds; also adaptive / best with three other seeds, and once for answers three times as long.
"""

from __future__ import annotations

import statistics
from typing import Any

import click

from benchmarks.policies import (
    ALPHAS,
    C1S,
    FIXED,
    LENGTHS,
    MAX_AT_ONCE,
    SLOWDOWN,
    Conditions,
    adapt,
    at_once,
    search,
    show,
)
from lr_sglang.api.runner import keep_what_is_imported

CASES = [
    (load, ALPHAS[(3 * n + by) % 8], C1S[(n + by) % 4])
    for n, load in enumerate(LENGTHS)
    for by in (0, 2, 5)
]


def checked(load: int, alpha: float, c1: float) -> tuple[Any, ...]:
    """A row of the table."""
    scene = Conditions(alpha, c1, load, LENGTHS[load], slowdown=SLOWDOWN, width=3)
    every = {(d, w): 0.0 for d, w in FIXED if w == 1 or load * w ** (d - 1) <= MAX_AT_ONCE}
    every = {(0, 1): 1.0} | {(d, w): scene.run(told=True, depth=d, width=w)[0] for d, w in every}
    found = search(scene)
    best, other = (max(of, key=of.__getitem__) for of in (every, found))
    again = [adapt(load, alpha, c1, seed=seed) for seed in (0, 1, 2, 3)]
    ratios = [one.found / one.fixed for one in again]
    longer = adapt(load, alpha, c1, steps=3 * LENGTHS[load])
    names = [
        f"{depth} x {width} {of[depth, width]:.3f}"
        for of, (depth, width) in ((every, best), (found, other))
    ]
    each = f"{ratios[0]:.3f}", f"{statistics.mean(ratios):.3f}", f"{statistics.stdev(ratios):.3f}"
    return (
        load,
        alpha,
        c1,
        *names,
        f"{found[other] / every[best]:.3f}",
        *each,
        f"{longer.found / longer.fixed:.3f}",
    )


def main() -> None:
    """Prints the table."""
    keep_what_is_imported()
    head = (
        "load",
        "alpha",
        "c1",
        "best of all",
        "best found",
        "found / all",
        "adaptive / best",
        "mean of 4",
        "sd",
        "3x longer",
    )
    show(head)
    show(["-"] * len(head))
    for row in at_once(checked, CASES):
        show(row)


if __name__ == "__main__":
    click.echo(__doc__)
    main()
