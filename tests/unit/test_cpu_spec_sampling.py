"""Sampling under speculation: the target's distribution whatever is drafted, and a seed's tokens
with or without.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from lr_sglang.cpu import penalties
from lr_sglang.cpu.speculation import sampling
from lr_sglang.plugin import seeds
from lr_sglang.sglang_api.plugin_protocol import WRITTEN_FIELD
from tests import grid
from tests.attention import (  # noqa: F401
    DRAFTS,
    FILTERS,
    SHAPES,
    VOCABULARY,
    drafted,
    registered,
    requests,
    same_numbers,
    sample,
    settings,
    target,
    undrafted,
    verified,
    visible,
)

MANY = 2000  # sequences in one batch
HALF = [*range(MANY // 2), *[seeds.NO_SEED] * (MANY // 2)]  # their seeds


# ------------------------------------------------------- a target, and what drafts for it


def grow(info, shape="chain", draft="good", length=3, *, reqs=None, mask=None) -> list[list[int]]:
    """What all requests of `info` write, verified on a CPU.

    mask: what a grammar allows after two tokens.
    """

    def verify(tree, batch, logits, before, last):
        allowed = None if mask is None else mask(before, last).view(-1, VOCABULARY)
        return sampling.verify_trees(tree, batch, logits, allowed, sample)

    reqs = requests(len(info.top_ks)) if reqs is None else reqs
    return verified(reqs, info, shape, draft, length, verify)


# ------------------------------------------------------- the distribution


def filtered(logits, temperature=0.6, top_p=1.0, top_k=VOCABULARY, min_p=0.0) -> torch.Tensor:
    """The distribution that is sampled from, in float64; logits [rows, VOCABULARY]."""
    probs = torch.softmax(logits.double() / temperature, -1)
    values, ids = probs.sort(-1, descending=True)
    kept = (
        (torch.arange(VOCABULARY) < top_k)
        & (values.cumsum(-1) - values <= top_p)
        & (values >= values[:, :1] * min_p)
    )
    probs = torch.zeros_like(probs).scatter(-1, ids, values * kept)
    return probs / probs.sum(-1, keepdim=True)


def exact(length: int, **filters) -> torch.Tensor:
    """The probability of every sequence of that length after the tokens 1, 2: [VOCABULARY **
    length].
    """
    probs = torch.ones(1, dtype=torch.float64)
    before, last = torch.tensor([1]), torch.tensor([2])
    for _ in range(length):
        probs = (probs.view(-1, 1) * filtered(target(before, last), **filters)).view(-1)
        before = last.repeat_interleave(VOCABULARY)
        last = torch.arange(VOCABULARY).repeat(len(last))
    return probs


def p_value(texts: list[list[int]], length: int, **filters) -> float:
    """Of the chi-square test that the texts' first `length` tokens have exactly the distribution
    they should have.
    """
    expected = exact(length, **filters) * len(texts)
    numbers = sum(
        torch.tensor([text[i] for text in texts]) * VOCABULARY ** (length - 1 - i)
        for i in range(length)
    )
    counts = torch.bincount(numbers, minlength=len(expected)).double()
    if bool(counts[expected == 0].any()):
        return 0.0
    rare = expected < 5
    if bool(rare.any()) and expected[rare].sum() > 0:
        expected = torch.cat([expected[~rare], expected[rare].sum().view(1)])
        counts = torch.cat([counts[~rare], counts[rare].sum().view(1)])
    expected, counts = expected[expected > 0], counts[expected > 0]
    if len(expected) == 1:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(
        torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2).double(), statistic / 2)
    )


@pytest.mark.parametrize(
    ("shape", "draft", "filters"),
    [
        *((shape, draft, "none") for shape, draft in grid(list(SHAPES)[:4], DRAFTS)),
        *((shape, "good", filters) for shape, filters in grid(list(SHAPES)[:3], list(FILTERS)[1:])),
    ],
)
def test_what_is_drafted_does_not_change_the_distribution(shape, draft, filters):
    """Filters are those of plain sampling."""
    torch.manual_seed(1)
    texts = grow(settings(MANY, seed=HALF, **FILTERS[filters]), shape, draft)
    for length in (1, 2, 3):
        assert p_value(texts, length, **FILTERS[filters]) > 1e-3


# ------------------------------------------------------- seeds


@pytest.mark.parametrize(("shape", "filters"), grid(SHAPES, FILTERS))
def test_a_seed_gives_the_same_tokens_with_and_without_drafts(shape, filters):
    numbers = list(range(12))
    info = settings(12, seed=numbers, **FILTERS[filters])
    texts = grow(info, shape, length=25)
    assert texts == undrafted(info, 25)
    assert len(set(map(tuple, texts))) > 6


@pytest.mark.parametrize("shape", ["chain", "n-gram"])
@pytest.mark.parametrize(
    "penalties",
    [
        {"frequency_penalty": 0.7},
        {"presence_penalty": 1.5},
        {"repetition_penalty": 1.8},
        {"min_new_tokens": 9, "stop_token_ids": {3, 4}},
        {
            "frequency_penalty": -0.4,
            "presence_penalty": 0.3,
            "repetition_penalty": 0.8,
            "min_new_tokens": 4,
        },
    ],
    ids=" ".join,
)
def test_penalties_count_every_token_and_no_other(shape, penalties):
    numbers, reqs = list(range(12)), requests(12, **penalties)
    texts = grow(settings(12, seed=numbers), shape, length=25, reqs=reqs)
    assert texts == undrafted(settings(12, seed=numbers), 25, reqs[0].sampling_params)
    assert texts != grow(settings(12, seed=numbers), shape, length=25)


def test_what_an_answer_had_before_the_request_counts_as_what_the_request_wrote():
    """In SGLang's own penalizers to the last bit, and in the trees of a token layer."""
    given = {"frequency_penalty": 0.1, "presence_penalty": 1.5, "repetition_penalty": 1.3}
    answer, numbers = [4, 2, 4, 4, 6, 2, 4], list(range(12))
    other, (whole,), (goes_on,) = (requests(1, **extra) for extra in ({}, given, given))
    whole.output_ids, whole.origin_input_ids = answer, [1, 5]
    goes_on.output_ids, goes_on.origin_input_ids = [], [3, 1, 5, *answer]
    goes_on.sampling_params.custom_params = {WRITTEN_FIELD: len(answer)}
    batches = [Batch(reqs=[*other, request], device="cpu") for request in (whole, goes_on)]
    one, two = map(penalizers, batches)
    for token in answer:
        one.cumulate_output_tokens(torch.tensor([7, token]))
    penalties.count_written(SimpleNamespace(penalizer_orchestrator=two), object, batches[1])
    logits = torch.zeros(2, 2, VOCABULARY)
    for made, into in zip((one, two), logits, strict=True):
        made.accumulate_additive_penalties(into)
    assert torch.equal(*logits[:, 1]) and not logits[:, 0].any()
    scales = [made.accumulate_scaling_penalties()[1] for made in (one, two)]
    assert torch.equal(*scales) and (scales[0] > 1).tolist() == [n in answer for n in range(8)]

    reqs = requests(12, **given, custom_params={WRITTEN_FIELD: 3})
    for request in reqs:
        request.origin_input_ids = [5, 5, 3, 4, 4]
    texts = grow(settings(12, seed=numbers), "n-gram", length=25, reqs=reqs)
    given = reqs[0].sampling_params
    assert texts == undrafted(settings(12, seed=numbers), 25, given, before_it=[3, 4, 4])


class Batch(SimpleNamespace):
    """Penalizers have a weak reference to it."""


def penalizers(batch: Batch) -> Any:
    """SGLang's own."""
    from sglang.srt.sampling import penaltylib

    kinds = {
        penaltylib.BatchedFrequencyPenalizer,
        penaltylib.BatchedPresencePenalizer,
        penaltylib.BatchedRepetitionPenalizer,
    }
    return penaltylib.BatchedPenalizerOrchestrator(VOCABULARY, batch, kinds)


def test_bias_and_grammar_are_kept():
    def mask(before, last):  # no token twice in a row, and no 5 after a 2
        allowed = ~torch.nn.functional.one_hot(last, VOCABULARY).bool()
        allowed[..., 5] &= last != 2
        return allowed

    numbers, bias = list(range(12)), torch.linspace(-1, 1, VOCABULARY)
    info = settings(12, seed=numbers)
    info.logit_bias = bias.expand(12, -1)
    texts = grow(info, "n-gram", length=25, mask=mask)
    assert texts == undrafted(info, 25, bias=bias, mask=mask)


@pytest.mark.parametrize("scale", [0, 1, 5])
@pytest.mark.parametrize("ties", [False, True])
def test_few_tokens_are_enough_for_a_draw(scale, ties):
    """Filters are tried on the most probable tokens first. That changes nothing, in a
    tie neither.
    """
    torch.manual_seed(5)
    logits = torch.randn(60, 300) * scale
    probs = torch.softmax(logits.round() if ties else logits, -1)
    filters = {
        "top_ks": torch.randint(1, 90, (60,)),
        "top_ps": torch.rand(60),
        "min_ps": torch.rand(60) * 0.2,
    }
    for names in (["top_ks"], ["top_ps"], ["min_ps"], ["top_ks", "top_ps"], list(filters)):
        given = {name: filters[name] for name in names}
        few = seeds.draw(probs, torch.arange(60), torch.arange(60), **given)
        with patch.object(seeds, "FEW", 300):
            assert torch.equal(few, seeds.draw(probs, torch.arange(60), torch.arange(60), **given))


# ------------------------------------------------------- batches


def test_greedy_seeded_and_unseeded_requests_share_a_batch():
    torch.manual_seed(4)
    unseeded = 1500
    top_k = [1, 1 << 30, 1 << 30, 1] + [1 << 30] * unseeded
    temperature = [1.0, 0.6, 0.9, 1.0] + [0.6] * unseeded
    seed = [seeds.NO_SEED, 5, 6, 7] + [seeds.NO_SEED] * unseeded
    info = settings(unseeded + 4, top_k=top_k, temperature=temperature, seed=seed)
    texts = grow(info, "top-k 2", length=6)
    # 1e-4: as good as greedy
    assert texts[0] == texts[3] == grow(settings(1, temperature=1e-4), length=6)[0]
    assert texts[1:3] == undrafted(settings(2, temperature=[0.6, 0.9], seed=[5, 6]), 6)
    assert p_value(texts[4:], 3) > 1e-3
    # as they were, for the next step
    assert info.sampling_seed.tolist() == seed and info.top_ks.tolist() == top_k


def test_log_probabilities_are_left_to_sglang():
    """It divides by the temperature itself: only penalties, biases and masks may be in
    the logits.
    """
    info = settings(2)
    tree, before, last = drafted([[1, 2]] * 2, SHAPES["chain"], DRAFTS["good"])
    logits = target(before, last).view(-1, VOCABULARY)
    given = logits.clone()
    sampling.verify_trees(
        tree, SimpleNamespace(sampling_info=info, reqs=requests(2)), logits, None, sample
    )
    assert torch.equal(logits, given)


@pytest.mark.parametrize(
    ("algorithm", "enabled", "refused"),
    [(None, True, False), ("NGRAM", False, False), ("NGRAM", True, True)],
)
def test_custom_logit_processors_are_refused(algorithm, enabled, refused):
    given = SimpleNamespace(speculative_algorithm=algorithm, enable_custom_logit_processor=enabled)
    with (
        pytest.raises(ValueError, match="--enable-custom-logit-processor")
        if refused
        else nullcontext()
    ):
        sampling.refuse_processors(None, given)
