"""The step tree: what is to be drafted, expanded, decided and kept."""

import pytest

from lr_sglang.steps.branch import Branch, Outcome
from lr_sglang.steps.step import Ending, Pair, Step, Verdict, without_a_judge
from lr_sglang.steps.tree import StepTree

YES, NO = Verdict(True, "test"), Verdict(False, "test")


def step(text: str, ending: Ending = Ending.DELIMITER, closes: bool = False) -> Step:
    return Step(text, tuple(map(ord, text)), ending, closes)


def grown(depth: int = 3, budget: int = 1000, guard: bool = True, drafts: int = 0) -> StepTree:
    """A tree with some drafted steps in a row."""
    tree = StepTree(depth, budget, guard)
    node = tree.root
    for _ in range(drafts):
        tree.add_children(node, 1)
        node = node.children[0]
        tree.enter_draft(node, step("d"))
    return tree


def chain(tree: StepTree) -> list:
    return [n for n in tree.root.subtree() if n.step is not None or n is tree.root]


def test_at_the_start_the_root_is_to_be_drafted_and_expanded():
    tree = grown()
    assert tree.to_propose() == [tree.root]
    assert tree.to_expand(0) == [tree.root]


def test_drafting_stops_at_the_depth():
    assert grown(depth=2, drafts=2).to_propose() == []


def test_the_target_is_asked_after_each_drafted_prefix_once():
    tree = grown(depth=3, drafts=3)
    assert [n.position for n in tree.to_expand(2)] == [0, 1, 2]
    assert [n.position for n in tree.to_expand(3)] == [0, 1, 2, 3]
    tree.root.version.branch = Branch("target", 0)
    assert [n.position for n in tree.to_expand(2)] == [1, 2]


@pytest.mark.parametrize(
    ("known", "guesses", "paths"),
    [
        ([(), ()], ["d", "d"], [[0, 1]]),
        ([(), (1,)], ["d", "d"], [[0], [1]]),  # what is guessed does not follow the step before
        ([(), ()], ["e", "d"], [[0], [1]]),  # nor does it where another step is guessed
        ([(), ()], ["", "d"], [[0], [1]]),
    ],
)
def test_drafted_steps_that_follow_each_other_are_read_together(known, guesses, paths):
    tree = grown(drafts=2)
    for node, ids, text in zip(chain(tree), known, guesses, strict=False):
        node.version.known, node.version.guess = ids, step(text).ids
    assert [[node.position for node in path] for path in tree.to_read()] == paths
    tree.root.version.branch = Branch("target", 0, purpose="read")
    assert tree.to_read() == []


def test_a_draft_not_there_yet_is_no_prefix():
    tree = grown()
    tree.add_children(tree.root, 1)
    assert tree.to_expand(2) == [tree.root]


def test_width_proposes_alternatives():
    tree = grown()
    assert [c.alternative for c in tree.add_children(tree.root, 3)] == [0, 1, 2]
    assert tree.to_propose() == []


def test_nothing_is_drafted_where_the_target_is_already_done():
    tree = grown()
    tree.root.version.step = step("t")
    assert tree.to_propose() == []


@pytest.mark.parametrize(("guard", "proposed"), [(True, []), (False, [1])])
def test_the_half_sentence_guard_drafts_nothing_after_a_cut_step(guard, proposed):
    tree = grown(guard=guard)
    tree.add_children(tree.root, 1)
    tree.enter_draft(tree.root.children[0], step("cut", Ending.CAP))
    assert [n.position for n in tree.to_propose()] == proposed


def test_nothing_follows_the_end_of_sequence_or_the_end_of_the_budget():
    for last, budget in ((step("x", Ending.END), 100), (step("xyz"), 3)):
        tree = grown(budget=budget)
        tree.add_children(tree.root, 1)
        child = tree.root.children[0]
        tree.enter_draft(child, last)
        assert tree.is_last(child)
        assert child not in tree.to_propose()
        assert child not in tree.to_expand(3)


def test_the_budget_counts_tokens_of_drafts_and_corrections():
    tree = grown(budget=10, drafts=2)
    node = tree.root.children[0].children[0]
    assert tree.room(node) == 8
    node.version.step = step("ttt")
    assert tree.room(tree.decide(node)) == 5


def test_a_pair_needs_both_versions_and_no_verdict():
    tree = grown(drafts=1)
    child = tree.root.children[0]
    assert tree.pair(child) is None
    tree.root.version.step = step("t")
    assert tree.pair(child) == Pair(step("t"), step("d"))
    child.verdict = NO
    assert tree.pair(child) is None


def test_an_accepted_draft_is_chosen_though_others_are_undecided():
    tree = grown()
    first, second = tree.add_children(tree.root, 2)
    tree.root.version.step = step("t")
    tree.enter_draft(second, step("d"))
    assert tree.decide(tree.root) is None
    second.verdict = YES
    assert tree.decide(tree.root) is second
    assert first.verdict is None


def test_the_targets_step_is_chosen_when_every_draft_is_rejected():
    tree = grown()
    first, second = tree.add_children(tree.root, 2)
    tree.root.version.step = step("t")
    first.verdict = NO
    assert tree.decide(tree.root) is None
    second.verdict = NO
    chosen = tree.decide(tree.root)
    assert (chosen.source, chosen.step.text) == ("target", "t")
    assert tree.decide(tree.root) is None, "it is decided once"


def test_nothing_is_decided_before_the_target_has_spoken():
    tree = grown(drafts=1)
    tree.root.children[0].verdict = YES
    assert tree.decide(tree.root) is None


def test_the_root_moves_along_what_was_chosen():
    tree = grown(drafts=2)
    for node in chain(tree)[:2]:
        node.version.step = step("t")
        node.children[0].verdict = YES
        tree.decide(node)
    assert [tree.advance().position, tree.advance().position] == [1, 2]
    assert tree.advance() is None
    assert tree.ahead(tree.root) == 0


def test_dropped_prefixes_are_not_live():
    tree = grown(drafts=2)
    tree.drop(tree.root.children[0])
    assert list(tree.live()) == [tree.root]


def test_a_step_chosen_deep_in_the_tree_belongs_to_its_subtree():
    tree = grown(drafts=1)
    deep = tree.root.children[0]
    deep.version.step = step("t")
    assert tree.decide(deep) in list(tree.root.subtree())


def test_a_branch_gets_one_outcome():
    branch = Branch("draft", 0)
    branch.close(Outcome.ACCEPTED)
    with pytest.raises(AssertionError, match="accepted already"):
        branch.close(Outcome.CANCELLED)


@pytest.mark.parametrize(
    ("pair", "by"),
    [
        (Pair(step("a"), step("b")), None),
        (Pair(step("a"), step("a"), prefix_complete=False), "guard"),
        (Pair(step("a", Ending.END), step("a")), "ending"),
        (Pair(step("a"), step("a", Ending.CAP)), "ending"),
        (Pair(step("a", closes=True), step("a")), "ending"),
        (Pair(step("a", Ending.END), step("a", Ending.END)), None),
        (Pair(step("ax", Ending.END), step("ay", Ending.END)), "special"),  # two ends of sequence
    ],
)
def test_what_is_clear_without_a_judge(pair, by):
    verdict = without_a_judge(pair)
    assert verdict is None if by is None else (verdict.by, verdict.accepted) == (by, False)
