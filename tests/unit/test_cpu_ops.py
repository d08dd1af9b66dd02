"""The CPU pack: attention against a plain reference, and seeds against the distribution."""

from types import SimpleNamespace

import pytest
import scipy.stats
import torch

from lr_sglang.cpu import seeds, settings
from lr_sglang.cpu.decode import Together, plan_decode
from lr_sglang.sglang_api import draws
from tests.attention import reference, registered, same_numbers  # noqa: F401

ROWS = 3000


class Cache:
    """A KV cache with a table of rows, and sequences in it."""

    def __init__(self, seq_lens: list[int], kv_heads: int, dim: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.k = torch.randn(ROWS, kv_heads, dim, generator=generator)
        self.v = torch.randn(ROWS, kv_heads, dim, generator=generator)
        self.seq_lens = torch.tensor(seq_lens)
        self.requests = torch.randperm(len(seq_lens) + 2, generator=generator)[: len(seq_lens)]
        self.table = torch.zeros(len(seq_lens) + 2, max(seq_lens) + 3, dtype=torch.int32)
        free = torch.randperm(ROWS - 1, generator=generator) + 1
        for request, length in zip(self.requests.tolist(), seq_lens, strict=True):
            self.table[request, :length], free = free[:length].int(), free[length:]

    def rows(self, sequence: int) -> torch.Tensor:
        return self.table[self.requests[sequence], : self.seq_lens[sequence]].long()


def decode(cache, query, key, value, *, window=0, cap=0.0, sinks=None, cross=False):
    """Write each sequence's newest token and attend."""
    output = torch.empty_like(query)
    loc = torch.stack([cache.rows(i)[-1] for i in range(len(cache.seq_lens))])
    scratch = torch.empty(0)
    torch.ops.sgl_kernel.decode_attention_cpu(
        query, cache.k, cache.v, output, key, value, loc, scratch, cache.table, cache.requests, cache.seq_lens,
        0.3, cap, cross, window, None, sinks,
    )  # fmt: skip
    return output


def extend(
    cache, query, key, value, lens, *, window=0, cap=0.0, sinks=None, cross=False, tree=None,
    function=None,
):  # fmt: skip
    output, lens = torch.empty_like(query), torch.tensor(lens, dtype=torch.int32)
    (function or torch.ops.sgl_kernel.extend_attention_cpu)(
        query, key, value, output, cache.k, cache.v, cache.table, cache.requests, cache.seq_lens, lens,
        lens.cumsum(0) - lens, int(lens.max()), 0.3, cap, cross, window, None, sinks, tree,
    )  # fmt: skip
    return output


@pytest.mark.parametrize(
    "option",
    [{"window": 7}, {"cap": 2.0}, {"sinks": torch.ones(4)}, {"cross": True}],
    ids=lambda it: next(iter(it)),
)
def test_attention_that_is_not_plain_is_refused(option):
    cache = Cache([3], 2, 16)
    for call in (decode, lambda *given, **more: extend(*given, [1], **more)):
        with pytest.raises(NotImplementedError, match="has no CPU version in lr-sglang"):
            call(cache, torch.randn(1, 4, 16), None, None, **option)


def test_more_new_tokens_than_the_sequence_has_are_refused():
    with pytest.raises(ValueError, match="shorter than"):
        extend(Cache([3], 1, 8), torch.randn(9, 2, 8), None, None, [9])


@pytest.mark.parametrize(
    ("where", "heads", "kv_heads", "dim"),
    [
        ("side by side", 4, 2, 16),
        ("shared prefix", 4, 2, 16),
        ("shared but scattered", 4, 2, 16),
        ("apart", 4, 2, 32),
        ("apart", 6, 6, 16),
        ("apart", 8, 1, 64),
        ("alone", 4, 2, 32),
    ],
)
def test_decode_is_attention_whichever_way_is_cheapest_to_read_the_rows(
    where, heads, kv_heads, dim
):
    lens = {"apart": [1, 37, 5, 16, 33], "alone": [100]}.get(where, [60, 64, 70, 61])
    cache = Cache(lens, kv_heads, dim, seed=heads)
    for i, (request, length) in enumerate(zip(cache.requests.tolist(), lens, strict=True)):
        ways = {
            "side by side": (0, 1, 1 + sum(lens[:i])),
            "shared prefix": (50, 1, 100 + 40 * i),
            "shared but scattered": (50, 7, 11 + i),
        }
        if where in ways:  # else the rows are scattered over the cache
            shared, step, tail = ways[where]
            own = [torch.arange(shared) * step + 10, torch.arange(length - shared) * step + tail]
            cache.table[request, :length] = torch.cat(own).int()
    plan = plan_decode(cache.table, cache.requests, cache.seq_lens, heads // kv_heads)
    kind = type(plan.rows) if isinstance(plan, Together) else type(plan)
    assert kind is {
        "side by side": slice,
        "shared prefix": slice,
        "shared but scattered": torch.Tensor,
    }.get(where, kind)
    query, key, value = (torch.randn(len(lens), n, dim) for n in (heads, kv_heads, kv_heads))
    output = decode(cache, query, key, value)
    for i, length in enumerate(lens):
        rows = cache.rows(i)
        assert torch.equal(cache.k[rows[-1]], key[i]) and torch.equal(cache.v[rows[-1]], value[i])
        seen = torch.ones(1, length, dtype=torch.bool)
        expected = reference(query[[i]], cache.k[rows], cache.v[rows], seen, 0.3)
        torch.testing.assert_close(output[[i]].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "lens,prefixes", [([4], [0]), ([3, 3], [9, 0]), ([1, 20, 5], [30, 0, 17]), ([2, 1], [0, 15])]
)
@pytest.mark.parametrize("option", ["plain", "tree"])
@pytest.mark.parametrize("heads,kv_heads,free", [(4, 2, 1 << 18), (3, 3, 1 << 18), (4, 2, 0)])
def test_extend_is_attention(lens, prefixes, option, heads, kv_heads, free, monkeypatch):
    monkeypatch.setattr(
        "lr_sglang.cpu.extend.FREE_CELLS", free
    )  # 0: unlike sequences apart, however small
    dim, totals = 16, [a + b for a, b in zip(lens, prefixes, strict=True)]
    cache = Cache(totals, kv_heads, dim, seed=len(lens))
    tokens = sum(lens)
    query = torch.randn(tokens, heads, dim)
    key, value = torch.randn(tokens, kv_heads, dim), torch.randn(tokens, kv_heads, dim)
    trees = [torch.rand(n, n).gt(0.5).tril() | torch.eye(n, dtype=torch.bool) for n in lens]
    tree = torch.cat([t.view(-1) for t in trees]) if option == "tree" else None
    before = cache.k.clone()
    output = extend(cache, query, key, value, lens, tree=tree)
    assert torch.equal(cache.k, before)  # SGLang stores the new tokens itself
    start = 0
    for i, (new, prefix) in enumerate(zip(lens, prefixes, strict=True)):
        mine = slice(start, start + new)
        k, v = (
            torch.cat([cache.k[cache.rows(i)[:prefix]], key[mine]]),
            torch.cat([cache.v[cache.rows(i)[:prefix]], value[mine]]),
        )
        own = trees[i] if option == "tree" else torch.ones(new, new, dtype=torch.bool).tril()
        visible = torch.cat([torch.ones(new, prefix, dtype=torch.bool), own], 1)
        expected = reference(query[mine], k, v, visible, 0.3)
        torch.testing.assert_close(output[mine].double(), expected, rtol=1e-5, atol=1e-5)
        start += new


# ------------------------------------------------------------------- seeds


@pytest.mark.parametrize("bits", [-1, 0])
def test_a_uniform_number_is_never_0_nor_1(bits, monkeypatch):
    """Its logarithm is divided by."""
    monkeypatch.setattr(seeds, "_mix", lambda x: torch.full_like(x, bits))
    (drawn,) = (
        seeds.uniform(torch.tensor([1]), torch.tensor([1]), torch.tensor([[1]])).view(-1).tolist()
    )
    assert 0 < drawn < 1


def request(seed, prompt=1, **custom):
    params = SimpleNamespace(sampling_seed=seed, custom_params=custom or None)
    return SimpleNamespace(sampling_params=params, origin_input_ids=[0] * prompt)


def carried(*requests):
    info = SimpleNamespace()
    seeds.carry_seeds(info, object, SimpleNamespace(reqs=requests))
    return info.sampling_seed


def test_any_integer_is_a_seed_and_none_is_none():
    three, none, last, also_three, zero = carried(
        *(request(number) for number in (3, None, -1, 2**63 + 3, 0))
    ).tolist()
    assert none == seeds.NO_SEED
    assert three == also_three and len({three, none, last, zero}) == 4


@pytest.mark.parametrize(
    ("prompt", "custom"),
    [(1, {}), (7, {}), (900, {}), (7, {draws.PLACE: 5}), (30, {draws.PLACE: 29, "other": "x"})],
)
def test_places_count_from_the_first_token_of_the_answer(prompt, custom):
    """Prompts of other lengths and an answer in pieces draw with the numbers of one request."""
    place = custom.get(draws.PLACE, 0)
    ids = torch.arange(50).expand(4, -1)

    def numbers(key, first):
        return seeds.uniform(key.expand(4), first + torch.arange(4), ids)

    # The sampler's position is that of the last token that was read.
    made = numbers(carried(request(11, prompt, **custom)), prompt - 1)
    assert torch.equal(made, numbers(carried(request(11)), place))
    assert not torch.equal(made, numbers(carried(request(11)), place + 1))


@pytest.mark.parametrize("wrong", [-1, "3", 2.5, None])
def test_a_place_that_is_none_is_not_used(wrong):
    assert torch.equal(carried(request(11, 5, **{draws.PLACE: wrong})), carried(request(11, 5)))


def coupled(p, q):
    """How often the same numbers draw the same token of two distributions (Gumbel coupling)."""
    return sum(1 / float(torch.maximum(p / p[i], q / q[i]).sum()) for i in range(len(p)))


def test_two_models_with_the_same_numbers_agree_as_often_as_the_coupling_says():
    """And each keeps its distribution; also with top-p, which sorts the tokens."""
    n = 20_000
    p = torch.tensor([0.02, 0.3, 0.08, 0.2, 0.15, 0.11, 0.09, 0.05])
    q = torch.tensor([0.05, 0.22, 0.1, 0.3, 0.1, 0.08, 0.05, 0.1])
    key = seeds.keys(torch.arange(n), torch.zeros(n, dtype=torch.int64))
    place = torch.full((n,), 4)
    for top_p in (None, 1.0):
        filters = {} if top_p is None else {"top_ps": torch.full((n,), top_p)}
        both = [seeds.draw(each.expand(n, -1), key, place, **filters).long() for each in (p, q)]
        for drawn, own in zip(both, (p, q), strict=True):
            counts = torch.bincount(drawn, minlength=len(own)).tolist()
            assert scipy.stats.chisquare(counts, (own * n).tolist(), sum_check=False).pvalue > 0.001
        equal = float((both[0] == both[1]).double().mean())
        assert abs(equal - coupled(p, q)) < 0.01  # three standard errors
        assert equal > 1.5 * float((p * q).sum()), "independent draws agree far less often"


# ------------------------------------------------------- settings


def test_settings_name_flags_and_variables():
    flags = settings.flags(max_total_tokens=123)
    assert flags["max-total-tokens"] == 123 and not any(name.startswith("-") for name in flags)
    disabled = settings.environment()["SGLANG_DISABLED_MODEL_ARCHS"].split(",")
    assert "qwen3" not in disabled and "deepseek_v2" in disabled
    assert "SGLANG_DISABLED_MODEL_ARCHS" not in settings.environment(all_models=True)
