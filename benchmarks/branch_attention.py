"""Measures attention in a pass in which one branch begins with 30 new tokens while others decode.

    python benchmarks/branch_attention.py

All share a prefix. ``apart``: each reads it for itself; ``together``: it is read once. Medians in
milliseconds, both in turns, of one layer of the pocket draft (2 heads of 64, float32) with one
thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import torch

from lr_sglang.cpu.decode import attend_decode
from lr_sglang.cpu.draft_pass import plan_drafted
from lr_sglang.cpu.extend import attend_extend, plan_extend

HEADS, DIM, NEW, TIMED = 2, 64, 30, 7


def milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
def main() -> None:
    torch.set_num_threads(1)
    for prefix in (2048, 8192, 32768):
        for branches in (1, 2, 7):
            new = torch.ones(branches, dtype=torch.int64)
            new[-1] = NEW
            own = torch.arange(prefix + 1, prefix + 1 + branches * NEW, dtype=torch.int32).view(
                branches, NEW
            )
            shared = torch.arange(1, prefix + 1, dtype=torch.int32).expand(branches, -1)
            table, requests, lens = (
                torch.cat([shared, own], 1),
                torch.arange(branches),
                prefix + new,
            )
            keys, values = (torch.randn(prefix + 1 + branches * NEW, HEADS, DIM) for _ in range(2))
            query = torch.randn(int(new.sum()), HEADS, DIM)
            output = torch.empty_like(query)
            plans = plan_extend(table, requests, lens, new, 1, 0, None)
            plan = plan_drafted(table, requests, lens, new, 1, None)
            assert plan is not None

            def apart() -> None:
                for one in plans:  # noqa: B023
                    attend_extend(one, query, None, None, keys, values, output, DIM**-0.5)  # noqa: B023

            def together() -> None:
                attend_decode(plan, query, keys, values, DIM**-0.5)  # noqa: B023

            took = [(milliseconds(apart), milliseconds(together)) for _ in range(1 + TIMED)][1:]
            both = (statistics.median(each) for each in zip(*took, strict=True))
            click.echo(
                f"{prefix:6} tokens, {branches} branches: apart {next(both):.1f}, together "
                f"{next(both):.1f} ms"
            )


if __name__ == "__main__":
    main()
