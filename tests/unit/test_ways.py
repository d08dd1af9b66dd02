"""``Ways``: which way follows from the settings, what the servers can, and what the policy says."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.policy import Policy
from lr_sglang.algorithm.policy.read_statistics import MOST_LACKING
from lr_sglang.algorithm.reader import Reader
from lr_sglang.algorithm.ways import TOKENS_ALONE, Ways
from lr_sglang.config import Lookahead, Sampling
from lr_sglang.engine.server_facts import UNKNOWN, FedLayer
from lr_sglang.steps.tree import StepTree, Version
from lr_sglang.verifiers.exact import Exact

BUDGET = 1000
FED = FedLayer(9, "coins")


class Told(Policy):
    """A policy that says what it was told."""

    told: str | None = None
    alone = 0

    @property
    def way(self):
        return self.told

    def tokens_alone(self):
        return self.alone


def ways(
    verifier,
    *,
    fed=None,
    readable=True,
    way=None,
    alone=0,
    reading="auto",
    drafts=True,
    temperature=0.0,
    repeatable=False,
):
    look, sampling = Lookahead(reading=reading), Sampling(temperature=temperature)
    request = AnswerRequest(look, sampling, verifier=verifier)
    tree = StepTree(look.depth, BUDGET)
    policy = Told(look, tree, request.experience)
    policy.told, policy.alone = way, alone
    facts = replace(
        UNKNOWN, fed=fed, token_layer="ngram" if fed else "", streams=True, repeatable=repeatable
    )
    target = SimpleNamespace(facts=facts, readable=readable)
    context = SimpleNamespace(
        request=request,
        trace=request.trace,
        tree=tree,
        policy=policy,
        target=target,
        roles={"target": target, "draft": SimpleNamespace()},
        can_ask=lambda role: drafts,
        shares_vocabulary=lambda role: True,
    )
    return Ways(context, Reader(context))


JUDGED = SimpleNamespace(name="judge")


@pytest.mark.parametrize(
    ("verifier", "given", "found"),
    [
        (Exact(), {"fed": FED}, ["fed", "fed"]),
        (Exact(), {}, ["portions", "alone", "portions"]),
        (Exact(), {"readable": None}, ["portions"]),
        (Exact(), {"readable": False}, ["written", "written"]),
        (Exact(), {"readable": False, "alone": 90}, ["alone", "alone"]),
        (Exact(), {"drafts": False}, ["written"]),
        (JUDGED, {}, ["written", "written"]),
        (JUDGED, {"fed": FED, "way": "fed"}, ["written"]),
        (JUDGED, {"alone": 90}, ["alone", "alone"]),
        (JUDGED, {"alone": 90, "fed": FED, "way": "fed"}, ["fed", "fed"]),
        (JUDGED, {"alone": 90, "fed": FED, "way": "alone"}, ["alone"]),
        (JUDGED, {"alone": 90, "way": "fed"}, ["alone"]),
        (JUDGED, {"alone": 90, "way": "portions"}, ["portions", "portions"]),
        (JUDGED, {"alone": 90, "way": "portions", "readable": None}, ["alone"]),
        (JUDGED, {"alone": 90, "way": "portions", "reading": "never"}, ["alone"]),
    ],
)
def test_the_way_follows_from_the_verifier_the_servers_and_the_policy(verifier, given, found):
    asked = ways(verifier, **given)
    assert [asked.next_way() for _ in found] == found


def test_portions_that_gave_too_little_are_read_again_after_some_tokens_alone():
    asked = ways(Exact())
    asked._reads.lacking = MOST_LACKING
    assert asked.next_way() == "alone" and not asked.wants_portion(Version(known=(1,)))
    asked._reads.wrote_alone(TOKENS_ALONE)
    assert asked.next_way() == "portions" and asked.wants_portion(Version(known=(1,)))


@pytest.mark.parametrize(
    ("verifier", "given", "tokens"),
    [
        (Exact(), {"fed": FED}, BUDGET),
        (Exact(), {}, TOKENS_ALONE),
        (Exact(), {"alone": 90}, 90),
        (JUDGED, {"alone": 90, "fed": FED, "way": "fed"}, 90),
    ],
)
def test_a_generation_is_as_long_as_its_way_is_sure(verifier, given, tokens):
    asked = ways(verifier, **given)
    asked.next_way()
    assert asked.tokens_at_once() == tokens


@pytest.mark.parametrize("repeatable", [True, False])
def test_coins_feed_an_answer_unless_its_seed_is_to_give_one_text(repeatable):
    drawn = {"fed": FED, "temperature": 0.6, "repeatable": repeatable}
    asked = ways(Exact(), **drawn)
    assert (asked.next_way() == "fed") is not repeatable
    assert bool(asked._context.trace.not_fed) is repeatable


@pytest.mark.parametrize(
    ("given", "reads"),
    [
        ({}, True),  # what is assumed of the agreement
        ({"readable": None}, False),
        ({"reading": "never"}, False),
        ({"way": "written"}, False),
        ({"way": "read"}, True),
        ({"way": "written", "reading": "first"}, True),
        ({"way": "read", "drafts": False}, False),
    ],
)
def test_a_drafted_step_is_read_first_where_that_can_be_done_and_is_faster(given, reads):
    assert ways(JUDGED, **given).reads_first() is reads


@pytest.mark.parametrize(
    ("version", "drafts", "guesses"),
    [
        (Version(), True, False),
        (Version(read_first=True), True, True),
        (Version(read_first=True), False, False),
        (Version(runs_on=True), True, True),
    ],
)
def test_the_draft_guesses_on_where_the_target_reads(version, drafts, guesses):
    assert ways(JUDGED, drafts=drafts).guesses_rest(version) is guesses


@pytest.mark.parametrize(
    ("given", "known", "wants", "last"),
    [
        ({"way": "portions", "alone": 90}, (), True, False),
        ({"way": "alone", "alone": 90}, (), False, True),
        ({"way": "alone", "alone": 90}, (1, 2), True, True),
        ({"way": "portions", "alone": 90, "drafts": False}, (1, 2), False, True),
    ],
)
def test_where_the_policy_looks_ahead_again_the_last_portion_ends_with_the_step(
    given, known, wants, last
):
    version = Version(known=known)
    assert ways(JUDGED, **given).wants_portion(version) is wants
    assert version.last_portion is last
