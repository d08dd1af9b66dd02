"""The CPU pack: attention against a plain reference, and seeds against the distribution."""

import logging
import random
from types import SimpleNamespace

import pytest
import scipy.stats
import torch

from lr_sglang.cpu import hooks, products, settings
from lr_sglang.cpu.attention import BatchedAttention
from lr_sglang.cpu.decode import Joined, plan_decode
from lr_sglang.cpu.qwen3 import Qwen3Forward
from lr_sglang.cpu.speculation import trees
from lr_sglang.plugin import seeds
from lr_sglang.sglang_api.plugin_protocol import PLACE_FIELD
from tests.attention import reference, registered, same_numbers, visible  # noqa: F401

OPERATORS = torch.ops.sgl_kernel  # as SGLang calls them
ROWS, WIDTH = 3000, 130  # of a cache, and of its table


class Cache:
    """A KV cache with a table of rows, and sequences in it."""

    def __init__(
        self, seq_lens: list[int], kv_heads: int, dim: int, seed: int = 0, scattered: bool = True
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.k = torch.randn(ROWS, kv_heads, dim, generator=generator)
        self.v = torch.randn(ROWS, kv_heads, dim, generator=generator)
        self.seq_lens = torch.tensor(seq_lens)
        self.requests = torch.randperm(len(seq_lens) + 2, generator=generator)[: len(seq_lens)]
        self.table = torch.zeros(len(seq_lens) + 2, WIDTH, dtype=torch.int32)
        free = torch.arange(7, ROWS)
        if scattered:
            free = torch.randperm(ROWS - 1, generator=generator) + 1
        for request, length in zip(self.requests.tolist(), seq_lens, strict=True):
            self.table[request, :length], free = free[:length].int(), free[length:]

    def rows(self, sequence: int) -> torch.Tensor:
        return self.table[self.requests[sequence], : self.seq_lens[sequence]].long()


def assert_attends(output, query, k, v, visible):
    expected = reference(query, k, v, visible, 0.3)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)


def decode(cache, query, key, value, *, window=0, cap=0.0, sinks=None, cross=False):
    """Write each sequence's newest token and attend."""
    output = torch.empty_like(query)
    loc = torch.stack([cache.rows(i)[-1] for i in range(len(cache.seq_lens))])
    OPERATORS.decode_attention_cpu(
        query, cache.k, cache.v, output, key, value, loc, torch.empty(0), cache.table, cache.requests, cache.seq_lens,
        0.3, cap, cross, window, None, sinks,
    )  # fmt: skip
    return output


def extend(
    cache, query, key, value, lens, *, window=0, cap=0.0, sinks=None, cross=False, tree=None,
    function=None,
):  # fmt: skip
    output, lens = torch.empty_like(query), torch.tensor(lens, dtype=torch.int32)
    (function or OPERATORS.extend_attention_cpu)(
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
    kind = type(plan.rows) if isinstance(plan, Joined) else type(plan)
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
        assert_attends(output[[i]], query[[i]], cache.k[rows], cache.v[rows], seen)


@pytest.mark.parametrize(
    "lens,prefixes", [([4], [0]), ([3, 3], [9, 0]), ([1, 20, 5], [30, 0, 17]), ([2, 1], [0, 15])]
)
@pytest.mark.parametrize("option", ["plain", "tree"])
@pytest.mark.parametrize("heads,kv_heads,free", [(4, 2, 1 << 18), (3, 3, 1 << 18), (4, 2, 0)])
def test_extend_is_attention(lens, prefixes, option, heads, kv_heads, free, monkeypatch):
    # 0: unlike sequences apart, however small
    monkeypatch.setattr("lr_sglang.cpu.extend.FREE_CELLS", free)
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
        old = cache.rows(i)[:prefix]
        k, v = torch.cat([cache.k[old], key[mine]]), torch.cat([cache.v[old], value[mine]])
        own = trees[i] if option == "tree" else torch.ones(new, new, dtype=torch.bool).tril()
        visible = torch.cat([torch.ones(new, prefix, dtype=torch.bool), own], 1)
        assert_attends(output[mine], query[mine], k, v, visible)
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
    info = SimpleNamespace(temperatures=torch.ones(len(requests), 1))
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
    [
        (1, {}),
        (7, {}),
        (900, {}),
        (7, {PLACE_FIELD: 5}),
        (30, {PLACE_FIELD: 29, "other": "x"}),
    ],
)
def test_places_count_from_the_first_token_of_the_answer(prompt, custom):
    """Prompts of other lengths and an answer in pieces draw with the numbers of one request."""
    place = custom.get(PLACE_FIELD, 0)
    ids = torch.arange(50).expand(4, -1)

    def numbers(key, first):
        return seeds.uniform(key.expand(4), first + torch.arange(4), ids)

    # The sampler's position is that of the last token that was read.
    made = numbers(carried(request(11, prompt, **custom)), prompt - 1)
    assert torch.equal(made, numbers(carried(request(11)), place))
    assert not torch.equal(made, numbers(carried(request(11)), place + 1))


@pytest.mark.parametrize("wrong", [-1, "3", 2.5, None])
def test_a_place_that_is_none_is_not_used(wrong):
    assert torch.equal(carried(request(11, 5, **{PLACE_FIELD: wrong})), carried(request(11, 5)))


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
    flags = settings.cpu_flags()
    assert flags["max-total-tokens"] == 20_000 and not any(name.startswith("-") for name in flags)
    disabled = settings.cpu_environment()["SGLANG_DISABLED_MODEL_ARCHS"].split(",")
    assert "qwen3" not in disabled and "deepseek_v2" in disabled
    assert "SGLANG_DISABLED_MODEL_ARCHS" not in settings.cpu_environment(family="another")
    hybrid = settings.cpu_environment(family="qwen3_5_text")
    assert "qwen3_5_text" not in hybrid["SGLANG_DISABLED_MODEL_ARCHS"].split(",")
    experts = settings.cpu_environment(family="qwen3_moe")["SGLANG_DISABLED_MODEL_ARCHS"].split(",")
    assert "qwen3_moe" not in experts and "qwen3_moe" in disabled
    assert (
        hybrid[settings.CONV_DTYPE] == "float32"
        and settings.CONV_DTYPE not in settings.cpu_environment()
    )


# -- speculation's operators, each against a reference that is slow and obviously right


SEEDS = range(25)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_for_drafting_and_the_table_of_branches(seed):
    chance = random.Random(seed)
    batch, topk, steps = chance.randint(1, 12), chance.randint(1, 4), chance.randint(1, 6)
    lens = [chance.randint(1, 50) for _ in range(batch)]
    cache = Cache([length + topk * steps for length in lens], 1, 1, seed)
    free = torch.zeros(batch * topk * steps, dtype=torch.int64)
    OPERATORS.assign_draft_cache_locs_contiguous_cpu(
        cache.requests, cache.table, torch.tensor(lens), free, WIDTH, topk, steps
    )
    before = cache.table.clone()
    table = OPERATORS.build_draft_decode_metadata_cpu(
        cache.table, cache.requests, torch.tensor(lens), topk, steps, WIDTH
    )
    assert torch.equal(cache.table, before) and table.shape[0] == batch * topk
    for i, length in enumerate(lens):
        row = cache.rows(i).tolist()
        assert free.view(batch, -1)[i].tolist() == row[length : length + topk * steps]
        for branch in range(topk):
            own = row[length + branch * steps : length + (branch + 1) * steps]
            assert table[i * topk + branch, : length + steps].tolist() == row[:length] + own


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_all_layers_move_as_if_all_were_read_first(seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    rows, moved = chance.randint(4, 60), chance.randint(0, 30)
    shapes = [(chance.randint(1, 3), chance.randint(1, 9)) for _ in range(chance.randint(1, 5))]
    kinds = [chance.choice([torch.float32, torch.bfloat16, torch.uint8]) for _ in shapes]
    caches = [
        torch.randint(0, 250, (rows, *shape)).to(kind)
        for shape, kind in zip(shapes, kinds, strict=True)
    ]
    places = min(rows - 1, moved)
    target = torch.tensor([*chance.sample(range(1, rows), places), 0, 0], dtype=torch.int64)
    # rows 0 pad the list
    source = torch.tensor([*(chance.randrange(rows) for _ in range(places)), 0, 0])
    expected = [one.clone() for one in caches]
    for new, old in zip(expected, caches, strict=True):
        for to, of in zip(target.tolist(), source.tolist(), strict=True):
            new[to] = old[of]
    OPERATORS.copy_all_layer_kv_cache_cpu(
        torch.tensor([one.data_ptr() for one in caches], dtype=torch.uint64),
        torch.tensor([one[0].numel() * one.element_size() for one in caches]),
        target.to(chance.choice([torch.int32, torch.int64])),
        source,
    )
    assert all(torch.equal(one, other) for one, other in zip(caches, expected, strict=True))


# ------------------------------------------------------------------ trees


class Drafts:
    """Random trees as SGLang's drafting makes them: `topk` tokens a step, the most likely kept."""

    def __init__(self, seed: int, chain: bool = False) -> None:
        chance = self.random = random.Random(seed)
        self.topk = 1 if chain else chance.randint(2, 4)
        self.steps = chance.randint(1, 5)
        proposals = self.topk + (self.steps - 1) * self.topk**2
        self.n = self.steps + 1 if chain else chance.randint(2, min(proposals, 14) + 1)
        self.batch = chance.randint(1, 7)
        self.lens = torch.tensor([chance.randint(1, 30) for _ in range(self.batch)])
        trees = [self._tree() for _ in range(self.batch)]
        self.parent_list = torch.tensor([parents for parents, _ in trees])
        self.selected = torch.tensor([selected for _, selected in trees])

    def _tree(self) -> tuple[list[int], list[int]]:
        topk, chance = self.topk, self.random
        scores = [chance.random() for _ in range(topk)]
        owners, kept = [-1, *range(topk)], list(range(topk))
        for _ in range(1, self.steps):
            first = len(scores)
            for number in kept:
                scores += [scores[number] * chance.random() for _ in range(topk)]
            kept = sorted(range(first, len(scores)), key=lambda number: -scores[number])[:topk]
            owners += kept
        order = sorted(range(len(scores)), key=lambda number: -scores[number])
        chosen = order[: self.n - 1]
        if topk > 1 and chance.random() < 0.3:  # where scores are equal, parents may be left out
            chosen = chance.sample(order, self.n - 1)
        # The last step's tokens are never continued. A chain of one step has no list at all.
        return owners[: len(owners) - topk] if self.steps > 1 else [], sorted(chosen)

    def build(self, mode: int) -> dict[str, torch.Tensor]:
        shape, widths = (
            (self.batch, self.n),
            self.lens + self.n if mode == 0 else torch.full((self.batch,), self.n),
        )
        out = {name: torch.full(shape, -1) for name in ("index", "child", "sibling")}
        out["positions"] = torch.zeros(self.batch * self.n, dtype=torch.int64)
        # SGLang's may be too long
        out["mask"] = torch.ones(int((widths * self.n).sum()) + 4, dtype=torch.bool)
        OPERATORS.build_tree_kernel_efficient_cpu(
            self.parent_list, self.selected, self.lens, out["mask"], out["positions"], out["index"], out["child"],
            out["sibling"], self.topk, self.steps, self.n, mode,
        )  # fmt: skip
        return out

    def parents(self, sequence: int) -> list[int]:
        """By the definition: the parent is the node of the token that was continued, -1 if that is
        no node.
        """
        selected, owners = self.selected[sequence].tolist(), self.parent_list[sequence].tolist()
        found = [-1]
        for number in selected:
            group = number // self.topk
            if group == 0:
                found.append(0)
            else:
                found.append(selected.index(owners[group]) + 1 if owners[group] in selected else -1)
        return found


def check_links(child, sibling, parents):
    for node in range(len(parents)):
        below = [other for other, parent in enumerate(parents) if parent == node]
        beside = [
            other for other in range(node + 1, len(parents)) if parents[other] == parents[node] >= 0
        ]
        assert child[node] == (below[0] if below else -1)
        assert sibling[node] == (beside[0] if beside else -1)


@pytest.mark.parametrize("mode", [trees.FULL_MASK, trees.QLEN_ONLY])
@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_trees_of_drafted_tokens(seed, chain, mode):
    drafts = Drafts(seed, chain)
    out, n, start = drafts.build(mode), drafts.n, 0
    assert out["index"].view(-1).tolist() == list(range(drafts.batch * n))
    for i, length in enumerate(drafts.lens.tolist()):
        parents = drafts.parents(i)
        check_links(out["child"][i].tolist(), out["sibling"][i].tolist(), parents)
        width = length + n if mode == trees.FULL_MASK else n
        mask = out["mask"][start : start + n * width].view(n, width)
        start += n * width
        assert bool(mask[:, : width - n].all())
        # the root belongs to every way
        seen = visible([-1, *(max(parent, 0) for parent in parents[1:])])
        assert torch.equal(mask[:, width - n :], seen)
        assert torch.equal(out["positions"][i * n : (i + 1) * n], length + seen.sum(-1) - 1)
    assert bool(out["mask"][start:].all())


@pytest.mark.parametrize("seed", range(60))
def test_the_walk_takes_the_longest_way_that_the_target_wants(seed):
    drafts = Drafts(seed, chain=seed % 3 == 0)
    chance, n, batch = drafts.random, drafts.n, drafts.batch
    built = drafts.build(trees.QLEN_ONLY)
    vocabulary = chance.choice([2, 3, 50])  # few tokens: brothers that are the same, and long ways
    candidates = torch.tensor(
        [[chance.randrange(vocabulary) for _ in range(n)] for _ in range(batch)]
    )
    wanted = torch.tensor([[chance.randrange(vocabulary) for _ in range(n)] for _ in range(batch)])
    longest = chance.randint(1, drafts.steps + 1)
    predicts = torch.full((batch * n,), -5, dtype=torch.int32)
    accepted = torch.full((batch, longest), -1, dtype=torch.int32)
    count = torch.full((batch,), -9, dtype=torch.int32)
    OPERATORS.verify_tree_greedy_cpu(
        predicts,
        accepted,
        count,
        candidates,
        built["index"],
        built["child"],
        built["sibling"],
        wanted,
    )
    expected = torch.full_like(predicts, -5)
    for i in range(batch):
        parents, way = drafts.parents(i), [0]
        while len(way) < longest:
            fits = [
                node for node in range(1, n)
                if parents[node] == way[-1] and candidates[i, node] == wanted[i, way[-1]]
            ]  # fmt: skip
            if not fits:
                break
            way.append(fits[0])
        assert accepted[i].tolist() == [i * n + node for node in way] + [-1] * (longest - len(way))
        assert count[i] == len(way) - 1
        for node in way:
            expected[i * n + node] = wanted[i, node]
    assert torch.equal(predicts, expected)


# -------------------------------------------------------------- attention


class Backend(Cache):
    """What a pass sees of SGLang's backend: two layers' caches and the rows of a batch, new ones
    included.
    """

    def __init__(self, seed: int, new: list[int], scattered: bool) -> None:
        torch.manual_seed(seed)
        chance = random.Random(seed)
        super().__init__([chance.randint(0, 70) + n for n in new], 2, 16, seed, scattered)
        self.new = torch.tensor(new, dtype=torch.int32)
        self.req_to_token_pool = SimpleNamespace(req_to_token=self.table)
        self.layers = [torch.randn(2, ROWS, 2, 16) for _ in range(2)]  # keys and values of each
        self.k, self.v = self.layers[0]
        self.token_to_kv_pool = SimpleNamespace(
            get_key_buffer=lambda layer: self.layers[layer][0],
            get_value_buffer=lambda layer: self.layers[layer][1],
        )
        self.draft_decode_metadata, self.verifies = None, True
        self.extend_metadata = (self.seq_lens, self.new, None, None)

    def batch(self) -> SimpleNamespace:
        """SGLang's, whose lengths leave the new tokens out."""
        loc = torch.cat([self.rows(i)[-n:] for i, n in enumerate(self.new.tolist())])
        return SimpleNamespace(
            out_cache_loc=loc, seq_lens=self.seq_lens - self.new, req_pool_indices=self.requests, spec_info=object(),
            forward_mode=SimpleNamespace(is_target_verify=lambda: self.verifies),
        )  # fmt: skip


@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("with_trees", [True, False])
@pytest.mark.parametrize("new", [[4], [5, 5, 5], [3] * 9, [8] * 12, [2, 7, 1], [1]])
def test_a_pass_over_drafted_tokens_is_attention(new, with_trees, scattered):
    backend = Backend(len(new), new, scattered)
    chance = random.Random(len(new))
    trees_of = [
        visible([-1, *(chance.randrange(node) if with_trees else node - 1 for node in range(1, n))])
        for n in new
    ]
    if with_trees:
        backend.extend_metadata = (
            *backend.extend_metadata[:3],
            torch.cat([tree.view(-1) for tree in trees_of]),
        )
    query, key, value = (torch.randn(sum(new), heads, 16) for heads in (4, 2, 2))
    step = BatchedAttention().extend_step(backend, backend.batch(), 2)
    got, first = step(0, 0.3, query, key, value), 0
    for i, (n, tree) in enumerate(zip(new, trees_of, strict=True)):
        rows, mine = backend.rows(i), slice(first, first + n)
        first += n
        assert torch.equal(backend.k[rows[-n:]], key[mine]) and torch.equal(
            backend.v[rows[-n:]], value[mine]
        )
        seen = torch.cat([torch.ones(n, len(rows) - n, dtype=torch.bool), tree], 1)
        assert_attends(got[mine], query[mine], backend.k[rows], backend.v[rows], seen)


@pytest.mark.parametrize("new", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_rows_that_are_kept_between_passes_are_never_stale(seed, new):
    """Decode steps, or chains that are verified and accepted in part; sequences that leave or
    change, and passes that write in between.
    """
    chance = random.Random(seed)
    backend, batched = Backend(seed, [new] * 4, scattered=True), BatchedAttention()
    backend.seq_lens += 20
    backend.requests = torch.arange(4)
    table = backend.table = backend.req_to_token_pool.req_to_token = (
        (torch.randperm(2999)[:1600] + 1).view(4, 400).int()
    )
    follows = 0
    for _ in range(200):
        batch = backend.batch()
        if new == 1:  # a decode step, whose lengths SGLang increments in place
            batch.seq_lens, batch.spec_info, step = (
                backend.seq_lens,
                None,
                BatchedAttention.decode_step,
            )
        else:
            step = BatchedAttention.extend_step
        backend.extend_metadata = (backend.seq_lens, backend.new, None, None)
        follows += len(batched._kept._layers) == 2
        batched.new_forward()
        passes = [step(each, backend, batch, 2) for each in (batched, BatchedAttention())]
        for layer in (0, 1):
            query, key, value = (
                torch.randn(len(batch.out_cache_loc), heads, 16) for heads in (4, 2, 2)
            )
            got, expected = (each(layer, 0.3, query, key, value) for each in passes)
            torch.testing.assert_close(got, expected)
        backend.seq_lens += torch.tensor([chance.randint(1, new) for _ in backend.new])
        event, backend.verifies = chance.random(), True
        # a prompt is computed, over rows in use
        if event < 0.02 or int(backend.seq_lens.max()) > 390:
            for layer in backend.layers:
                layer.normal_()
            backend.seq_lens.clamp_(max=30)
            backend.verifies = False
            if new == 1:
                extend(
                    Cache([2], 2, 16),
                    torch.randn(2, 4, 16),
                    None,
                    None,
                    [2],
                    function=batched.extend,
                )
        elif event < 0.04:  # a sequence takes other rows, with other contents
            request = backend.requests[0]
            moved = torch.arange(1, 3000)
            moved = moved[~torch.isin(moved, table.long())][:400]
            for layer in backend.layers:
                layer[:, moved] = torch.randn_like(layer[:, moved])
            table[request] = moved.int()
        elif event < 0.06:  # they change places
            backend.requests, backend.seq_lens = backend.requests.flip(0), backend.seq_lens.flip(0)
        elif event < 0.065 and len(backend.new) > 2:  # one leaves
            backend.requests, backend.seq_lens, backend.new = (
                backend.requests[1:],
                backend.seq_lens[1:],
                backend.new[1:],
            )
    assert follows > 100  # or nothing was tried


def test_a_draft_step_follows_the_table_of_branches():
    backend = Backend(3, [6, 6], scattered=True)
    table = OPERATORS.build_draft_decode_metadata_cpu(
        backend.table, backend.requests, backend.seq_lens - 6, 2, 3, WIDTH
    )
    lengths = (backend.seq_lens - 6).repeat_interleave(2) + 2
    backend.draft_decode_metadata = (table, lengths, torch.arange(4))
    batch = backend.batch()
    batch.out_cache_loc = table[torch.arange(4), lengths - 1].long()
    query, key, value = (torch.randn(4, heads, 16) for heads in (4, 2, 2))
    batched = BatchedAttention()
    got = batched.decode_step(backend, batch, 2)(0, 0.3, query, key, value)
    for i, length in enumerate(lengths.tolist()):
        rows = table[i, :length].long()
        seen = torch.ones(1, length, dtype=torch.bool)
        assert_attends(got[[i]], query[[i]], backend.k[rows], backend.v[rows], seen)
    assert not batched._kept._layers  # rows of a draft are written again and again: none are kept


@pytest.mark.parametrize(
    ("release", "operator", "drafts", "given", "handed"),
    [
        ("0.5.16", "extend", False, [*range(19)], [*range(8), "lengths", *range(9, 19)]),
        ("0.5.16", "decode", False, [*range(17)], [*range(17)]),
        ("0.5.16+cpu", "decode", True, [*range(17)], [*range(10), "lengths", *range(11, 17)]),
        # SGLang 0.5.23 hands over the right ones, and two scales; and whether attention is causal.
        ("0.5.23", "decode", True, [0, 1, 2, 1.0, 1.0, *range(3, 17)], [*range(17)]),
        ("0.5.23", "extend", False, [*range(6), 1.0, 1.0, *range(6, 19), True], [*range(19)]),
    ],
)
def test_sglangs_own_layers_get_the_lengths_with_the_drafted_tokens(
    monkeypatch, release, operator, drafts, given, handed
):
    """SGLang 0.5.16 hands over the batch's own lengths (sgl-project/sglang#36430)."""
    monkeypatch.setattr("lr_sglang.sglang_api.release.version", lambda: release)
    backend, seen = Backend(1, [4], scattered=False), []
    hooks._use_batched_attention(None, backend)
    backend.batched_attention = SimpleNamespace(
        decode=lambda *a: seen.extend(a), extend=lambda *a: seen.extend(a)
    )
    backend.draft_decode_metadata = (None, backend.seq_lens, None) if drafts else None
    getattr(backend, f"{operator}_attention_fwd")(*given)
    assert seen == [backend.seq_lens if one == "lengths" else one for one in handed]


@pytest.mark.parametrize(("scale", "causal"), [(2.0, True), (1.0, False)])
def test_attention_with_scales_or_not_causal_is_refused(scale, causal):
    backend = Backend(1, [4], scattered=False)
    with pytest.raises(NotImplementedError, match="causal"):
        hooks._extend(backend, *range(6), scale, 1.0, *range(6, 19), causal)


# -------------------------------------------------------- the lean forward


def a_model(layers: int, hidden: int = 24) -> SimpleNamespace:
    """A Qwen3 of random weights, as far as the lean forward looks at one: two heads, one KV head,
    eight wide.
    """
    torch.manual_seed(0)

    def weight(*shape: int) -> SimpleNamespace:
        return SimpleNamespace(weight=torch.randn(*shape) / shape[-1] ** 0.5)

    def layer(number: int) -> SimpleNamespace:
        attention = SimpleNamespace(
            num_heads=2, num_kv_heads=1, head_dim=8, attn=SimpleNamespace(layer_id=number, scaling=0.35),
            rotary_emb=SimpleNamespace(cos_sin_cache=torch.randn(50, 8)), qkv_proj=weight(32, hidden),
            q_norm=weight(8), k_norm=weight(8), o_proj=weight(hidden, 16),
        )  # fmt: skip
        mlp = SimpleNamespace(gate_up_proj=weight(40, hidden), down_proj=weight(hidden, 20))
        norms = {"input_layernorm": weight(hidden), "post_attention_layernorm": weight(hidden)}
        return SimpleNamespace(self_attn=attention, mlp=mlp, **norms)

    return SimpleNamespace(
        embed_tokens=torch.nn.Embedding(99, hidden),
        norm=SimpleNamespace(weight=torch.ones(hidden), variance_epsilon=1e-6),
        layers=[layer(number) for number in range(layers)],
    )


@torch.no_grad()
def test_what_an_eagle3_head_drafts_from(monkeypatch):
    """What goes into layer i is what a model of i layers gives out, before its last norm."""
    attend = lambda attention, q, k, v: q.flatten(1) + v.repeat(1, 2, 1).flatten(1)
    monkeypatch.setattr(Qwen3Forward, "_attention", lambda *_: attend)
    model, ids, positions = a_model(4), torch.tensor([5, 98, 7]), torch.tensor([3, 4, 5])
    plain = Qwen3Forward(model)(ids, positions, None)
    hidden, aux = Qwen3Forward(model)(ids, positions, None, captured=[1, 3])
    assert torch.equal(hidden, plain) and len(aux) == 2
    for state, layers in zip(aux, (1, 3), strict=True):
        shorter = Qwen3Forward(SimpleNamespace(**{**vars(model), "layers": model.layers[:layers]}))
        expected = shorter(ids, positions, None)
        normed = state * torch.rsqrt((state * state).mean(-1, keepdim=True) + 1e-6)
        torch.testing.assert_close(normed, expected)


@pytest.mark.parametrize("hidden", [128, 512, 1024])
def test_a_norm_knows_no_batch(hidden):
    norm, x = Qwen3Forward(a_model(1, hidden))._rms_norm, 3 * torch.randn(64, hidden)
    together = norm(x, torch.ones(hidden))
    torch.testing.assert_close(together, torch.nn.functional.rms_norm(x, (hidden,), eps=1e-6))
    assert all(
        torch.equal(norm(x[:rows], torch.ones(hidden)), together[:rows]) for rows in range(1, 64)
    )


@pytest.fixture(params=[True, False], ids=["bfloat16", "float32"])
def kept(request, monkeypatch):
    """As what the weights in bfloat16 are kept."""
    if request.param and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16")
    monkeypatch.setattr(products, "multiplies_bfloat16", lambda: request.param)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(("rows", "inputs"), [(48, 64), (40, 24)])
def test_a_product_in_bfloat16_is_near_float32_and_knows_no_batch(rows, inputs):
    """Also of half a tensor, as the MLP has it."""
    layer = SimpleNamespace(weight=torch.randn(rows, inputs).bfloat16())
    x, residual = torch.randn(24, 2 * inputs).bfloat16().chunk(2, -1)[0], torch.randn(24, rows)
    exact = x.float() @ layer.weight.float().t()
    product = products.product_of(layer)
    made = product(x)
    assert made.dtype == torch.bfloat16 and (made - exact).norm() < 0.02 * exact.norm()
    assert (product.added(residual, x) - residual - exact).norm() < 0.02 * exact.norm()
    assert all(
        torch.equal(product(x[some]), made[some])
        for some in (slice(0, 1), slice(3, 8), slice(8, 24))
    )


@pytest.mark.parametrize("fast", [True, False])
def test_a_processor_without_bfloat16_keeps_float32_and_says_so(fast, monkeypatch):
    records = []
    monkeypatch.setattr(logging.getLogger(products.__name__), "handle", records.append)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: fast)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    # oneDNN refuses bfloat16 on a processor without AVX-512, where it is never chosen
    monkeypatch.setattr(products.BFloat16, "__init__", lambda self, linear: None)
    products.multiplies_bfloat16.cache_clear()
    layer = SimpleNamespace(weight=torch.randn(32, 64).bfloat16())
    assert type(products.product_of(layer)) is (products.BFloat16 if fast else products.Widened)
    assert ["kept as float32" in one.getMessage() for one in records] == [True] * (not fast)
    products.multiplies_bfloat16.cache_clear()
