"""What the branches of answers show of runtimes is said once, and stands in the records."""

import json
import warnings

import pytest

from lr_sglang.api.runner import Runner
from lr_sglang.config import Limits
from lr_sglang.engine.doubts import Doubts
from lr_sglang.results import collection, report
from lr_sglang.results.record import doubts_of
from lr_sglang.steps.branch import Branch
from lr_sglang.tasks.question import Question, Work
from tests.simulated.caching import PLAN, runtimes


def branch(cached=0, shared=None, *, cancelled=False, unheard=False):
    made = Branch("target", 0, cached_tokens=cached, shared_tokens=shared)
    made.cancelled, made.unheard = cancelled, unheard
    return made


def seen(*branches):
    """The names of the doubts after these branches, and what was said."""
    said = []
    doubts = Doubts("target", said.append, little_reuse="its prefix cache is off")
    for one in branches:
        doubts.add(one)
    return sorted(doubts.found), said


def test_reuse_is_looked_at_over_twenty_branches_that_could_reuse_something():
    little, much = branch(8, 10), branch(10, 10)
    assert seen(*[little] * 19, branch(0, None), branch(0, 0)) == ([], [])
    names, said = seen(*[little] * 40)
    assert names == ["reuse"] and len(said) == 1
    assert said[0].startswith("target: 0.80 of the tokens") and "its prefix cache is off" in said[0]
    assert seen(*[much] * 10, *[little] * 10) == ([], []), "0.9 in all"
    assert seen(*[much] * 20, *[little] * 20)[0] == ["reuse"], "later branches count as well"


def test_three_aborts_in_a_row_that_are_not_taken():
    taken, unheard = branch(cancelled=True), branch(cancelled=True, unheard=True)
    assert seen(unheard, unheard, taken, unheard, branch(), unheard) == ([], [])
    names, said = seen(unheard, branch(), unheard, unheard, unheard)
    assert names == ["aborts"] and len(said) == 1 and "takes no aborts" in said[0]


def answers(verifier="judge", **lacking):
    """Records of answers over such a target, and what was warned of."""
    roles = runtimes(alpha=0.5, **lacking)
    look = PLAN.deployment.lookahead.replace(verifier=verifier)
    plan = PLAN.with_settings(limits=Limits(max_tokens=100), lookahead=look)
    works = [Work(Question(str(n), f"Question {n}?"), 0, "lookahead") for n in range(6)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = list(Runner(roles, plan).run(works))
    return records, [str(one.message) for one in caught if "doctor" in str(one.message)]


@pytest.mark.parametrize(
    ("lacking", "name", "says"),
    [
        ({"cached": False}, "reuse", "0.00 of the tokens"),
        ({"aborts": False}, "aborts", "no aborts"),
        ({"cached": False, "verifier": "likelihood"}, "reuse", "0.00 of the tokens"),
    ],
)
def test_it_stands_in_records_and_reports(lacking, name, says, tmp_path):
    records, warned = answers(**lacking)
    assert len(warned) == 1 and says in warned[0]
    assert list(records[-1]["doubts"]) == ["target"] and list(records[-1]["doubts"]["target"]) == [
        name
    ]
    (said,) = doubts_of(records)
    lines = (json.dumps(dict(record)) for record in records)
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    assert report.make_report(collection.read_runs([tmp_path])).collection.notes == [said]


def test_good_runtimes_raise_none():
    records, warned = answers()
    assert not warned and not any("doubts" in record for record in records)
