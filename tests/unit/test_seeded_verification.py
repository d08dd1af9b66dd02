"""Seeds in a GPU's verification, on tensors of a CPU: a seed's tokens as without speculation; whoever
has none keeps SGLang's own verification.
"""

import itertools
from types import SimpleNamespace

import pytest
import torch

from lr_sglang.cpu.speculation import sampling
from lr_sglang.plugin import seeds, verification
from tests import attention
from tests.attention import VOCABULARY, registered, same_numbers  # noqa: F401

LENGTH, COUNT = 12, 64


def walk(verify_input, wanted, like):
    """As `verification._walk`, by our operator: SGLang's own needs its platform."""
    tokens, nodes = torch.zeros_like(like[0]), torch.full_like(like[2], -1)
    right, n = torch.empty_like(like[1]), verify_input.draft_token_num
    links = verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
    torch.ops.sgl_kernel.verify_tree_greedy_cpu(
        tokens, nodes, right, verify_input.draft_token.view(-1, n), verify_input.retrieve_index, *links, wanted
    )  # fmt: skip
    return tokens, right + 1, nodes


@pytest.fixture(autouse=True)
def on_this_machine(monkeypatch):
    monkeypatch.setattr(verification, "_walk", walk)
    monkeypatch.setattr(verification, "_agree", lambda *given: None)


def coins(verify_input, batch, logits_output):
    """SGLang's own verification: a draw of its own at every node, biases applied in place."""
    assert batch.sampling_info.sampling_seed is None
    return sampling.verify_trees(
        verify_input, batch, logits_output.next_token_logits, None, attention.sample
    )


def people(seed, **given):
    """Requests with these seeds, and SGLang's description of them."""
    filters = {"top_p": 1.0, "top_k": 1 << 30, "min_p": 0.0} | {
        name: value for name, value in given.items() if name in ("top_p", "top_k", "min_p")
    }
    penalties = {name: value for name, value in given.items() if name not in filters}
    made = [attention.requests(1, sampling_seed=one, **filters, **penalties)[0] for one in seed]
    numbers = torch.tensor([0 if one is None else one for one in seed])
    keys = torch.where(
        torch.tensor([one is not None for one in seed]),
        seeds.keys(numbers, torch.full((len(seed),), attention.START - 2)),
        seeds.NO_SEED,
    )
    info = attention.settings(len(seed), **filters)
    info.sampling_seed = keys
    return made, info


def grown(made, info, shape, draft="good"):
    """What the requests write by verifications."""

    def verify(tree, batch, logits, *_):
        output = SimpleNamespace(next_token_logits=logits)
        return verification.verify_with_seeds(coins, tree, batch, output)

    return attention.verified(made, info, shape, draft, LENGTH, verify)


@pytest.mark.parametrize(
    ("shape", "filters", "draft"),
    [
        *itertools.product(attention.SHAPES, attention.FILTERS, ["good"]),
        *itertools.product(["chain"], ["none"], attention.DRAFTS),
    ],
)
def test_a_seed_gives_the_tokens_of_plain_decoding_whatever_is_guessed(shape, filters, draft):
    made, info = people(list(range(COUNT)), **attention.FILTERS[filters])
    assert grown(made, info, shape, draft) == attention.undrafted(info, LENGTH)


def test_others_in_the_batch_change_nothing_and_draw_coins_of_their_own():
    seed = [number if number % 2 else None for number in range(COUNT)]
    made, info = people(seed)
    texts = grown(made, info, "chain")
    assert texts[1::2] == grown(*people(seed[1::2]), "chain")
    assert len(set(map(tuple, texts[::2]))) > COUNT / 4  # none has another's numbers
    assert (info.sampling_seed == people(seed)[1].sampling_seed).all()


@pytest.mark.parametrize(
    "given",
    [{"presence_penalty": 1.0}, {"frequency_penalty": 1.0}, {"repetition_penalty": 1.2}, {"min_new_tokens": 3}],
    ids=str,
)  # fmt: skip
def test_requests_whose_distribution_follows_their_tokens_keep_sglangs_verification(given):
    made, info = people([5] * COUNT, **given)
    assert not any(map(verification.draws_with_seed, made))
    assert len(set(map(tuple, grown(made, info, "chain")))) > 1


def test_greedy_and_idle_batches_and_those_without_a_seed_are_sglangs():
    (greedy,), info = people([5], top_k=1)
    assert not verification.draws_with_seed(greedy)
    nothing = SimpleNamespace(
        sampling_info=None, forward_mode=SimpleNamespace(is_idle=lambda: True)
    )
    assert verification.verify_with_seeds(lambda *given: given, 1, nothing, 2) == (1, nothing, 2)
    info.sampling_seed = None
    batch = SimpleNamespace(sampling_info=info, forward_mode=SimpleNamespace(is_idle=lambda: False))
    assert verification.verify_with_seeds(lambda *given: given, 1, batch, 2) == (1, batch, 2)
