"""What the tests of the CPU operators share: them, attention written out, trees of drafted tokens,
and a model over a small vocabulary that verifies them.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lr_sglang.cpu import operators
from lr_sglang.plugin import seeds


@pytest.fixture(autouse=True, scope="module")
def registered():
    """For every module that imports it."""
    operators.register()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a server; more of them wait for each other on a busy machine
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def same_numbers():
    """A test draws the same numbers whichever tests ran before it."""
    # torch.manual_seed also formats a traceback for each kind of device
    torch.default_generator.manual_seed(0)


def reference(q, k, v, visible, scale):
    """q [n, heads, dim], k and v [m, kv_heads, dim], visible [n, m] -> [n, heads, dim],
    in float64.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.double(), k) * scale
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.einsum("hnm,mhd->nhd", torch.softmax(scores, -1), v)


def visible(parents: list[int]) -> torch.Tensor:
    """What every node of a tree sees, [n, n] bool: itself and the nodes on the way to it; one of
    parent -1 no other.
    """
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


VOCABULARY, START = 8, 5  # tokens; how many stand before the first drafted tree


TABLE = torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))


def plain(sampler, probs, info, positions, no_filter):
    """SGLang's own sampling from probabilities, for requests that have no seed."""
    assert info.sampling_seed is None
    values, ids = probs.sort(-1, descending=True)
    kept = torch.arange(VOCABULARY) < info.top_ks.view(-1, 1)
    kept &= values.cumsum(-1) - values <= info.top_ps.view(-1, 1)
    kept &= values >= values[:, :1] * info.min_ps.view(-1, 1)
    assert not no_filter or bool(kept.all())
    return ids.gather(1, torch.multinomial(values * kept, 1)).view(-1).to(torch.int32)


class Grammar:
    @staticmethod
    def apply_vocab_mask(logits, vocab_mask):
        logits.masked_fill_(~vocab_mask, float("-inf"))


# Every node's parent: a chain as of STANDALONE and EAGLE with top-k 1, a tree as of top-k 2, two of
# an n-gram corpus (one with nodes that nothing leads to), and no draft at all.
SHAPES = {
    "chain": [-1, 0, 1, 2],
    "top-k 2": [-1, 0, 0, 1, 1, 2, 2],
    "n-gram": [-1, 0, 1, 2, 0, 4, 0, 6],
    "padded": [-1, 0, 1, -1, -1, 0],
    "nothing": [-1],
}


FILTERS = {
    "none": {},
    "top-p": {"top_p": 0.7},
    "top-k": {"top_k": 3},
    "min-p": {"min_p": 0.2},
    "all": {"top_p": 0.9, "top_k": 5, "min_p": 0.05},
}


def target(last_but_one: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Logits [..., VOCABULARY] of the next token, from the two before it."""
    return TABLE[last_but_one, last].clone()


DRAFTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    # Which token to draft first, second, ... after two tokens: [batch, VOCABULARY]
    "good": lambda before, last: target(before, last).argsort(-1, descending=True),
    "bad": lambda before, last: torch.rand(len(last), VOCABULARY).argsort(-1),
    "worst": lambda before, last: target(before, last).argsort(-1),
    "stubborn": lambda before, last: torch.zeros(len(last), VOCABULARY, dtype=torch.int64),
}


def settings(
    count: int, *, temperature=0.6, top_p=1.0, top_k=1 << 30, min_p=0.0, seed=None
) -> SimpleNamespace:
    """What SGLang calls sampling info, of `count` requests; each argument is one for all
    or a list.
    """

    def each(value, dtype):
        return torch.tensor(value if isinstance(value, list) else [value] * count, dtype=dtype)

    return SimpleNamespace(
        temperatures=each(temperature, torch.float32).view(-1, 1), top_ps=each(top_p, torch.float32),
        top_ks=each(top_k, torch.int32), min_ps=each(min_p, torch.float32), is_all_greedy=False, logit_bias=None,
        sampling_seed=each(seeds.NO_SEED if seed is None else seed, torch.int64),
    )  # fmt: skip


def requests(count: int, **given) -> list[SimpleNamespace]:
    params = SimpleNamespace(
        **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
        | {"min_new_tokens": 0, "stop_token_ids": None, "custom_params": None}
        | given
    )
    tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=7)
    return [
        SimpleNamespace(sampling_params=params, output_ids=[2], tokenizer=tokenizer)
        for _ in range(count)
    ]


sample = partial(seeds.sample_with_seeds, plain)


def undrafted(
    info: SimpleNamespace, length: int, penalties=None, before_it=(), bias=None, mask=None
) -> list[list[int]]:
    """What requests write without speculation, by SGLang's steps, one token after the other.

    Args:
        penalties: the sampling parameters of all of them, where there are some.
        before_it: what was written in an earlier request of the same answer.
        mask: what a grammar allows after two tokens.
    """
    texts = [[1, 2] for _ in info.top_ks]
    info.need_top_k_sampling = info.need_top_p_sampling = info.need_min_p_sampling = True
    for written in range(length):
        before, last = (torch.tensor([text[place] for text in texts]) for place in (-2, -1))
        logits = target(before, last)
        if penalties:
            past = [[*before_it, *text[1:]] for text in texts]
            counts = torch.tensor([[one.count(n) for n in range(VOCABULARY)] for one in past])
            logits -= penalties.frequency_penalty * counts
            logits -= penalties.presence_penalty * (counts > 0)
            if written + 1 < penalties.min_new_tokens:
                logits[:, [7, *(penalties.stop_token_ids or [])]] = float("-inf")
            scale = torch.where(counts > 0, penalties.repetition_penalty, 1.0)
            logits = torch.where(logits < 0, logits * scale, logits / scale)
        logits = logits if bias is None else logits + bias
        logits = logits if mask is None else logits.masked_fill(~mask(before, last), float("-inf"))
        probs, places = (
            torch.softmax(logits / info.temperatures, -1),
            torch.tensor(START - 1 + written),
        )
        tokens = sample(None, probs, info, places.expand(len(texts)), False)
        for text, token in zip(texts, tokens.tolist(), strict=True):
            text.append(token)
    return [text[2:] for text in texts]


def drafted(texts, parents, draft) -> tuple[SimpleNamespace, torch.Tensor, torch.Tensor]:
    """The trees that continue the texts, and the two tokens up to every node: [batch,
    nodes] each.
    """
    count, n = len(texts), len(parents)
    before, last = (
        torch.zeros(count, n, dtype=torch.int64),
        torch.zeros(count, n, dtype=torch.int64),
    )
    before[:, 0], last[:, 0] = (torch.tensor([text[place] for text in texts]) for place in (-2, -1))
    rank = [0] * n
    for node in range(1, n):
        parent = max(parents[node], 0)
        before[:, node] = last[:, parent]
        last[:, node] = draft(before[:, parent], last[:, parent])[:, rank[parent]]
        if parents[node] >= 0:
            rank[parent] += 1
    # without the root, as SGLang counts
    lens = torch.tensor([START + len(text) - 3 for text in texts])
    positions, links = torch.zeros(count * n, dtype=torch.int64), torch.full((3, count, n), -1)
    torch.ops.sgl_kernel.reconstruct_indices_from_tree_mask_cpu(
        visible(parents).expand(count, n, n).reshape(-1), lens, positions, *links, count, n
    )
    tree = SimpleNamespace(
        draft_token=last.view(-1), draft_token_num=n, max_tree_depth=n, positions=positions, grammar=Grammar,
        retrieve_index=links[0], retrieve_next_token=links[1], retrieve_next_sibling=links[2],
    )  # fmt: skip
    return tree, before, last


def verified(
    reqs: list[SimpleNamespace],
    info: SimpleNamespace,
    shape: str,
    draft: str,
    length: int,
    verify: Callable[..., Any],
) -> list[list[int]]:
    """Texts of ``length`` tokens after the tokens 1, 2, as ``verify`` keeps what is drafted; it gets
    the trees, the batch, the logits and the two tokens before each.
    """
    texts = [[1, 2] for _ in reqs]
    mode = SimpleNamespace(is_idle=lambda: False)
    while min(map(len, texts)) < length + 2:
        tree, before, last = drafted(texts, SHAPES[shape], DRAFTS[draft])
        for request, text in zip(reqs, texts, strict=True):
            request.output_ids = text[1:]
        batch = SimpleNamespace(sampling_info=info, reqs=reqs, forward_mode=mode)
        logits = target(before, last).view(-1, VOCABULARY)
        tokens, lens, nodes = verify(tree, batch, logits, before, last)
        assert (tokens.dtype, lens.dtype, nodes.dtype) == (torch.int32,) * 3
        for text, way, kept in zip(texts, nodes.tolist(), lens.tolist(), strict=True):
            assert 1 <= kept <= len(SHAPES[shape]) and way[kept:] == [-1] * (len(way) - kept)
            text += tokens[way[:kept]].tolist()
    return [text[2 : length + 2] for text in texts]
