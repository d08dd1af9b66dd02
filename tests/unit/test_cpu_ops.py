"""The CPU pack: attention against a plain reference, and seeds against the distribution."""

from types import SimpleNamespace

import pytest
import torch

from lr_sglang.cpu import seeds, settings
from lr_sglang.cpu.attention import BatchedAttention
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

    def picked(self, sequence: int) -> "Cache":
        """The same cache with one sequence only."""
        other = object.__new__(Cache)
        other.k, other.v, other.table = self.k.clone(), self.v.clone(), self.table
        other.seq_lens, other.requests = self.seq_lens[[sequence]], self.requests[[sequence]]
        return other


def decode(cache, query, key, value, *, window=0, cap=0.0, sinks=None, function=None):
    """Write each sequence's newest token and attend."""
    output = torch.empty_like(query)
    loc = torch.stack([cache.rows(i)[-1] for i in range(len(cache.seq_lens))])
    scratch = torch.empty(0)
    (function or torch.ops.sgl_kernel.decode_attention_cpu)(
        query, cache.k, cache.v, output, key, value, loc, scratch, cache.table, cache.requests, cache.seq_lens,
        0.3, cap, False, window, None, sinks,
    )  # fmt: skip
    return output


def extend(
    cache, query, key, value, lens, *, window=0, cap=0.0, sinks=None, tree=None, function=None
):
    output, lens = torch.empty_like(query), torch.tensor(lens, dtype=torch.int32)
    (function or torch.ops.sgl_kernel.extend_attention_cpu)(
        query, key, value, output, cache.k, cache.v, cache.table, cache.requests, cache.seq_lens, lens,
        lens.cumsum(0) - lens, int(lens.max()), 0.3, cap, False, window, None, sinks, tree,
    )  # fmt: skip
    return output


@pytest.mark.parametrize("heads,kv_heads,dim", [(4, 2, 32), (6, 6, 16), (8, 1, 64)])
def test_decode_is_attention(heads, kv_heads, dim):
    lens = [1, 37, 5, 16, 33]
    cache = Cache(lens, kv_heads, dim, seed=heads)
    query, key, value = (
        torch.randn(5, heads, dim),
        torch.randn(5, kv_heads, dim),
        torch.randn(5, kv_heads, dim),
    )
    output = decode(cache, query, key, value)
    for i, length in enumerate(lens):
        rows = cache.rows(i)
        assert torch.equal(cache.k[rows[-1]], key[i]) and torch.equal(cache.v[rows[-1]], value[i])
        seen = torch.ones(1, length, dtype=torch.bool)
        expected = reference(query[i : i + 1], cache.k[rows], cache.v[rows], seen, 0.3)
        torch.testing.assert_close(output[i : i + 1].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "option", [{"window": 7}, {"cap": 2.0}, {"sinks": torch.ones(4)}], ids=lambda it: next(iter(it))
)
def test_attention_that_is_not_plain_is_refused(option):
    cache = Cache([3], 2, 16)
    for call in (decode, lambda *given, **more: extend(*given, [1], **more)):
        with pytest.raises(NotImplementedError, match="has no CPU version in lr-sglang"):
            call(cache, torch.randn(1, 4, 16), None, None, **option)


@pytest.mark.parametrize(
    "where", ["side by side", "shared prefix", "shared but scattered", "apart"]
)
def test_decode_reads_rows_in_the_cheapest_way(where):
    """Whichever way the rows are read, the result is attention over them."""
    lens = [60, 64, 70, 61]
    cache = Cache(lens, 2, 16)
    for i, (request, length) in enumerate(zip(cache.requests.tolist(), lens, strict=True)):
        if where == "side by side":
            own = torch.arange(1 + sum(lens[:i]), 1 + sum(lens[: i + 1]))
        elif where == "apart":
            own = torch.randperm(ROWS - 1, generator=torch.Generator().manual_seed(i))[:length] + 1
        else:
            step, tail = (1, 100 + 40 * i) if where == "shared prefix" else (7, 11 + i)
            own = torch.cat([torch.arange(50) * step + 10, torch.arange(length - 50) * step + tail])
        cache.table[request, :length] = own.int()
    plan = plan_decode(cache.table, cache.requests, cache.seq_lens, 2)
    kind = type(plan.rows) if isinstance(plan, Together) else type(plan)
    assert kind is {"side by side": slice, "shared prefix": slice, "apart": kind}.get(
        where, torch.Tensor
    )
    query, key, value = torch.randn(4, 4, 16), torch.randn(4, 2, 16), torch.randn(4, 2, 16)
    if where == "apart":  # sequences that overlap by chance cannot all write their newest row
        key = value = None
    output = decode(cache, query, key, value)
    for i, length in enumerate(lens):
        rows = cache.rows(i)
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


@pytest.mark.parametrize("seed", range(10))
def test_a_sequence_has_the_same_result_alone_and_in_a_batch_but_for_rounding(seed):
    """Sums of float32 in another order: in 16,000 comparisons the largest difference was 2.5e-6."""
    lens = [1, 90, 17, 64, 33, 5, 48, 100]
    torch.manual_seed(seed)
    cache = Cache(lens, 2, 32, seed)
    query, key, value = torch.randn(8, 4, 32), torch.randn(8, 2, 32), torch.randn(8, 2, 32)
    together = decode(cache, query, key, value)
    for i in range(8):
        alone = decode(cache.picked(i), query[[i]], key[[i]], value[[i]])
        torch.testing.assert_close(alone, together[[i]], rtol=1e-5, atol=1e-5)


def test_a_plan_lives_for_one_forward_pass():
    """SGLang changes its tensors in place from one step to the next."""
    batched = BatchedAttention()
    cache = Cache([20, 9], 2, 16)
    query, key, value = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    batched.new_forward()
    first = decode(cache, query, key, value, function=batched.decode)
    torch.testing.assert_close(decode(cache, query, key, value, function=batched.decode), first)
    cache.seq_lens -= 3
    batched.new_forward()
    second = decode(cache, query, key, value, function=batched.decode)
    torch.testing.assert_close(second, decode(cache, query, key, value))
    assert not torch.allclose(first, second)


class Server:
    """What decode_step sees of SGLang: two layers, and a batch that grows by a token a step."""

    def __init__(self, lens: list[int]) -> None:
        self.cache = Cache(lens, 2, 16)
        self.cache.table = torch.nn.functional.pad(self.cache.table, (0, 200))
        self.layers = [(self.cache.k, self.cache.v), (self.cache.k + 1, self.cache.v + 1)]
        self.batched = BatchedAttention()
        self.backend = SimpleNamespace(
            token_to_kv_pool=SimpleNamespace(
                get_key_buffer=lambda layer: self.layers[layer][0],
                get_value_buffer=lambda layer: self.layers[layer][1],
            ),
            req_to_token_pool=SimpleNamespace(req_to_token=self.cache.table),
            draft_decode_metadata=None,
        )
        taken = set(self.cache.table.unique().tolist())
        self.free = [row for row in torch.randperm(ROWS).tolist() if row not in taken]

    def step(self) -> None:
        """One step, checked against the operator, which remembers nothing."""
        cache = self.cache
        cache.seq_lens += 1
        loc = torch.tensor([self.free.pop() for _ in cache.seq_lens])
        cache.table[cache.requests, cache.seq_lens - 1] = loc.int()
        forward = SimpleNamespace(
            out_cache_loc=loc,
            seq_lens=cache.seq_lens,
            req_pool_indices=cache.requests,
            spec_info=None,
        )
        self.batched.new_forward()
        step = self.batched.decode_step(self.backend, forward, 2)
        for layer, (k, v) in enumerate(self.layers):
            count = len(cache.seq_lens)
            query, key, value = (
                torch.randn(count, 4, 16),
                torch.randn(count, 2, 16),
                torch.randn(count, 2, 16),
            )
            output = step(layer, 0.3, query, key, value)
            cache.k, cache.v = k, v
            torch.testing.assert_close(output, decode(cache, query, key, value))


def test_rows_are_kept_between_steps_and_never_stale():
    server = Server([150, 130, 140])
    for _ in range(150):  # past the room that the first step made
        server.step()
    assert len(server.batched._kept._layers) == 2
    # A new prompt takes rows that are in use again, with the batch looking as if nothing had
    # happened.
    for k, v in server.layers:
        k.normal_(), v.normal_()
    extend(
        Cache([2], 2, 16), torch.randn(2, 4, 16), None, None, [2], function=server.batched.extend
    )
    server.step()
    # A sequence leaves; the others stay.
    server.cache.requests, server.cache.seq_lens = (
        server.cache.requests[[0, 2]],
        server.cache.seq_lens[[0, 2]],
    )
    server.step()
    server.step()
    # A sequence moves to other rows.
    moved = torch.tensor([server.free.pop() for _ in range(50)])
    before = server.cache.table[server.cache.requests[0], :50].long()
    for k, v in server.layers:
        k[moved], v[moved] = torch.randn_like(k[before]), torch.randn_like(v[before])
    server.cache.table[server.cache.requests[0], :50] = moved.int()
    server.step()


def test_what_cannot_be_served_says_so():
    cache = Cache([3], 1, 8)
    query = torch.randn(1, 2, 8)
    with pytest.raises(NotImplementedError, match="cross attention"):
        BatchedAttention().decode(
            query, cache.k, cache.v, query, None, None, None, None, cache.table, cache.requests, cache.seq_lens,
            1.0, 0.0, True, 0, None, None,
        )  # fmt: skip
    with pytest.raises(ValueError, match="shorter than"):
        extend(cache, torch.randn(9, 2, 8), None, None, [9])


# ------------------------------------------------------------------- seeds


def sample(probs, seed_list, position_list, **filters):
    return seeds.draw(probs, torch.tensor(seed_list), torch.tensor(position_list), **filters)


FILTERS = {
    "none": ({}, lambda p: torch.ones_like(p, dtype=torch.bool)),
    "top_k": ({"top_ks": 3}, lambda p: p >= p.sort(descending=True).values[2]),
    "top_p": ({"top_ps": 0.7}, lambda p: p >= p.sort(descending=True).values[3]),
    "min_p": ({"min_ps": 0.5}, lambda p: p >= 0.5 * p.max()),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("vary", ["seed", "position"])
def test_draws_follow_the_filtered_distribution(name, vary):
    n = 20_000
    p = torch.tensor([0.02, 0.3, 0.08, 0.2, 0.15, 0.11, 0.09, 0.05])
    given, kept = FILTERS[name]
    kinds = {"top_ks": torch.int32, "top_ps": torch.float32, "min_ps": torch.float32}
    filters = {key: torch.full((n,), value, dtype=kinds[key]) for key, value in given.items()}
    many, one = torch.arange(n), torch.full((n,), 7)
    seed, position = (many, one) if vary == "seed" else (one, many)
    counts = torch.bincount(
        seeds.draw(p.expand(n, -1), seed, position, **filters), minlength=8
    ).double()
    expected = torch.where(kept(p), p, 0.0).double()
    expected = expected / expected.sum() * n
    assert bool((counts[expected == 0] == 0).all())
    inside = expected > 0
    chi_square = ((counts - expected)[inside] ** 2 / expected[inside]).sum()
    assert (
        chi_square < 24.3
    )  # p = 0.001 at 7 degrees of freedom; the numbers are the same in every run


def test_a_draw_depends_on_its_own_row_only():
    probs = torch.softmax(torch.randn(8, 500), -1)
    filters = {
        "top_ps": torch.linspace(0.5, 1, 8),
        "top_ks": torch.tensor([5, 500, 50, 1, 500, 9, 99, 2]),
    }
    together = sample(probs, list(range(8)), list(range(100, 108)), **filters)
    for i in range(8):
        mine = {key: value[[i]] for key, value in filters.items()}
        assert sample(probs[[i]], [i], [100 + i], **mine) == together[i]
    assert together[3] == probs[3].argmax()  # top_k 1 is how SGLang says greedy


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
    total = 0.0
    for i in range(len(p)):
        total += 1 / float(torch.maximum(p / p[i], q / q[i]).sum())
    return total


def test_two_models_with_the_same_numbers_agree_as_often_as_the_coupling_says():
    """Each keeps its own distribution (chi-square), also with top-p, which sorts the tokens."""
    n = 20_000
    p = torch.tensor([0.02, 0.3, 0.08, 0.2, 0.15, 0.11, 0.09, 0.05])
    q = torch.tensor([0.05, 0.22, 0.1, 0.3, 0.1, 0.08, 0.05, 0.1])
    key = seeds.keys(torch.arange(n), torch.zeros(n, dtype=torch.int64))
    place = torch.full((n,), 4)
    for top_p in (None, 1.0):
        filters = {} if top_p is None else {"top_ps": torch.full((n,), top_p)}
        both = [seeds.draw(each.expand(n, -1), key, place, **filters).long() for each in (p, q)]
        for tokens, of in zip(both, (p, q), strict=True):
            counts = torch.bincount(tokens, minlength=8)
            expected = of.double() * n
            chi_square = ((counts - expected) ** 2 / expected).sum()
            assert chi_square < 24.3  # p = 0.001 at 7 degrees of freedom
        equal = float((both[0] == both[1]).double().mean())
        assert abs(equal - coupled(p, q)) < 0.01  # three standard errors
        assert equal > 1.5 * float((p * q).sum()), "independent draws agree far less often"


def test_requests_without_a_seed_keep_the_plain_sampling():
    probs = torch.softmax(torch.randn(3, 50), -1)
    info = SimpleNamespace(
        sampling_seed=torch.tensor([5, seeds.NO_SEED, 6]), need_min_p_sampling=False, need_top_k_sampling=False,
        need_top_p_sampling=False, min_ps=None, top_ks=None, top_ps=None,
    )  # fmt: skip
    seen = []

    def plain(sampler, probs, info, positions, simple):
        seen.append(info.sampling_seed)
        return torch.full((3,), 99, dtype=torch.int32)

    drawn = seeds.sample_with_seeds(plain, None, probs, info, torch.tensor([1, 2, 3]), True)
    assert drawn[1] == 99 and seen == [None]
    assert [drawn[0], drawn[2]] == list(sample(probs[[0, 2]], [5, 6], [1, 3]))
    assert info.sampling_seed is not None  # put back for the next step


# ------------------------------------------------------- settings


def test_settings_name_flags_and_variables():
    flags = settings.flags(max_total_tokens=123)
    assert flags["max-total-tokens"] == 123 and not any(name.startswith("-") for name in flags)
    disabled = settings.environment()["SGLANG_DISABLED_MODEL_ARCHS"].split(",")
    assert "qwen3" not in disabled and "deepseek_v2" in disabled
    assert "SGLANG_DISABLED_MODEL_ARCHS" not in settings.environment(all_models=True)
