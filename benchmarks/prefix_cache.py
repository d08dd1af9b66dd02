"""Measures the cost of SGLang's prefix cache in an answer of 1,000 tokens, and of 32,000.

    python benchmarks/prefix_cache.py            # the default cache of the installed release
    python benchmarks/prefix_cache.py --python   # 0.5.23: the cache that it takes where the one in
    Rust does not run python benchmarks/prefix_cache.py --cpp      # 0.5.16:
    SGLANG_EXPERIMENTAL_CPP_RADIX_TREE=1

The class alone, without a model: a chain with a node for each step of 32 tokens. A request whose
prompt is one step longer does match, lock, insert and unlock; each is measured in milliseconds, as
the median over eight steps. The last figure is the memory that the process has allocated meanwhile,
for an answer of 32,768 tokens.
"""

from __future__ import annotations

import random
import resource
import statistics
import time
from array import array
from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import click
import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey

STEP, NEAR = 32, 8  # tokens of a step; number of steps for the median
POSITIONS = (1024, 2048, 4096, 8192, 16384, 32768)


class NoMemory:
    """Stands in for the memory of the KV cache, which neither walk touches."""

    device = "cpu"

    def get_kvcache(self) -> None:
        """There is no KV cache."""

    def free(self, indices: Any) -> None:
        """Nothing is freed."""

    def free_segment(self, indices: Any, start_pos: int) -> None:
        """Nothing is freed."""


def cache(python: bool, cpp: bool) -> Any:
    """The cache that a server of this release has by default, or another."""
    params: Any = CacheInitParams(False, None, NoMemory(), 1)
    if cpp:
        from sglang.srt.mem_cache.radix_cache_cpp import RadixCacheCpp

        tree = RadixCacheCpp(
            params, SimpleNamespace(hicache_write_policy="", enable_hierarchical_cache=False)
        )
        tree.insert = lambda order: tree._insert(order.key, order.value)
        return tree
    if find_spec("sglang.srt.mem_cache.unified_cache") is None:  # before 0.5.23
        from sglang.srt.mem_cache.radix_cache import RadixCache

        return RadixCache(params)
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    params.tree_components, params.tree_core_backend = (
        (ComponentType.FULL,),
        "python" if python else None,
    )
    return UnifiedRadixCache(params)


def request(tree: Any, ids: array[int]) -> list[float]:
    """Milliseconds of match, lock, insert and unlock by a request whose last step is new."""
    known, value, at = len(ids) - STEP, torch.arange(len(ids)), [time.perf_counter()]
    found = tree.match_prefix(MatchPrefixParams(key=RadixKey(ids[:known])))
    unified = hasattr(tree, "tree_core")
    shared = tree.path_device_indices(found.last_device_node) if unified else found.device_indices
    at.append(time.perf_counter())
    lock = tree.inc_lock_ref(found.last_device_node)
    at.append(time.perf_counter())
    tree.insert(InsertParams(key=RadixKey(ids), value=value, prev_prefix_len=known))
    at.append(time.perf_counter())
    tree.dec_lock_ref(found.last_device_node, *([lock.to_dec_params()] if unified else []))
    at.append(time.perf_counter())
    if len(shared) != known:
        raise click.ClickException(f"{len(shared)} of {known} tokens were found")
    return [1000 * (end - begin) for begin, end in pairwise(at)]


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.option("--python", is_flag=True, help="Not the tree in Rust.")
@click.option("--cpp", is_flag=True, help="The tree in C++.")
def main(python: bool, cpp: bool) -> None:
    torch.set_num_threads(1)
    tree, draw = cache(python, cpp), random.Random(0)
    ids = array("q", (draw.randrange(150_000) for _ in range(POSITIONS[-1] + NEAR * STEP)))
    click.echo(f"{type(tree).__name__} {type(getattr(tree, 'tree_core', None)).__name__}")
    tree.insert(InsertParams(key=RadixKey(ids[:STEP]), value=torch.arange(STEP)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took = {end: request(tree, ids[:end]) for end in range(2 * STEP, len(ids) + 1, STEP)}
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    for position in POSITIONS:
        rows = [took[position + number * STEP] for number in range(1, NEAR + 1)]
        match, lock, insert, unlock = (
            statistics.median(column) for column in zip(*rows, strict=True)
        )
        whole = statistics.median(map(sum, rows))
        click.echo(
            f"{position:6}: {whole:.2f} = match {match:.2f}, lock {lock:.2f}, insert "
            f"{insert:.2f}, {unlock:.2f}"
        )
    click.echo(f"memory: {grown:.0f} MB")


if __name__ == "__main__":
    main()
