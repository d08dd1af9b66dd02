"""What a target would have drawn at the places of a text that it has read.

For a prompt, SGLang returns the most probable tokens of every place with their log-probabilities.
With them and the answer's random numbers, the draw of the server's plugin
(`lr_sglang.plugin.seeds`) is made again here: the token with the largest probability /
-log(uniform) of those that the filters keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lr_sglang.config import Sampling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SEED_BITS = 2**63 - 1

Row = Sequence[tuple[float, int, Any]]  # log-probability, token id, text


def target_draws(
    rows: Sequence[Row], sampling: Sampling, seed: int, place: int, *, server_draws: bool = True
) -> list[int | None]:
    """The tokens that the target would have drawn.

    Args:
        rows: the most probable tokens of each place, with log-probabilities at temperature 1.
        seed: of the answer.
        place: of the first row: the number of the answer's tokens before it.
        server_draws: whether the server draws a token that is not decided here with the same
            number. If not, whether it is decided must not follow from the number: the tokens would
            have another distribution.

    Returns:
        The token of each place; None where these tokens do not decide it.
    """
    numbers = range(place, place + len(rows))
    return [
        _drawn(row, sampling, seed, number, server_draws)
        for row, number in zip(rows, numbers, strict=True)
    ]


def _drawn(row: Row, sampling: Sampling, seed: int, place: int, server_draws: bool) -> int | None:
    found = sorted(((float(one[0]), int(one[1])) for one in row), key=lambda one: (-one[0], one[1]))
    if len(found) < 2:
        return None
    logs = np.array([one[0] for one in found])
    ids = np.array([one[1] for one in found])
    if sampling.greedy:
        return int(ids[0]) if logs[0] > logs[1] else None
    fewest, most = _kept(logs, sampling)
    if not most or (fewest < most and not server_draws):
        return None
    weights = np.exp((logs[:most] - logs[0]) / sampling.temperature)
    race = weights / -np.log(uniform_of_ids(seed, place, ids[:most]))
    best = int(race.argmax())
    return int(ids[best]) if best < fewest else None


def _kept(logs: NDArray[np.float64], sampling: Sampling) -> tuple[int, int]:
    """The least and the largest number of the most probable tokens that the filters may keep; 0 and
    0 if they may keep others than these.
    """
    temperature = sampling.temperature
    weights = np.exp((logs - logs[0]) / temperature)
    kept = len(logs)
    bounded = 0 < sampling.top_k <= kept
    if bounded:
        kept = sampling.top_k
    if sampling.min_p > 0:
        passing = int((weights >= sampling.min_p).sum())
        bounded = bounded or passing < len(logs)
        kept = min(kept, passing)
    fewest = kept
    if sampling.top_p < 1:
        if temperature > 1:
            return 0, 0  # nothing bounds the weight of the tokens that are not here
        # Tokens that are not here are at most as probable as the last one; they have `rest`.
        rest = max(0.0, 1.0 - float(np.exp(logs).sum()))
        unseen = rest * float(np.exp(logs[-1] * (1 / temperature - 1) - logs[0] / temperature))
        before = weights.cumsum() - weights
        fewest = min(kept, int((before / weights.sum() <= sampling.top_p).sum()))
        most = int((before / (weights.sum() + unseen) <= sampling.top_p).sum())
        bounded = bounded or most < len(logs)
        kept = min(kept, most)
    return (fewest, kept) if bounded else (0, 0)


def uniform_of_ids(seed: int, place: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1), one for each token id, as `lr_sglang.plugin.seeds` has them."""
    with np.errstate(over="ignore"):
        key = _mix(_mix(np.uint64(seed & _SEED_BITS) + _GOLDEN) + np.uint64(place) * _GOLDEN)
        bits = _mix(key + ids.astype(np.uint64) * _GOLDEN)
    made: NDArray[np.float64] = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return made


def _mix(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
