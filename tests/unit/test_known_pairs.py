"""A judge that accepts what differs is found out before anything is drafted for it."""

from collections import Counter
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import pytest

import lr_sglang as lr
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.loop import call
from lr_sglang.errors import RuntimeDown
from lr_sglang.modes import MODES
from lr_sglang.programs.judge import PROMPTS
from lr_sglang.results import record
from lr_sglang.tasks.question import Question
from lr_sglang.theory.shares import FalseAccepts, wilson
from lr_sglang.user_programs.request_maker import RequestMaker
from lr_sglang.verifiers import judge
from lr_sglang.verifiers.known_pairs import ALIKE, alike, pairs
from tests import records
from tests.called import called
from tests.scripted import END, ScriptedTransport, answered, chapters, deployment

pytestmark = pytest.mark.filterwarnings(
    "ignore:judge.*pairs of steps that (differ|say the same):RuntimeWarning"
)

STEPS = ["One.", "Two.", "Three.", "Four."]


def judged(accepts, fail=lambda text: None):
    """A deployment whose judge says what ``accepts`` does, by its prompt; its label is one
    character here.
    """
    writers = [ScriptedTransport(chapters(STEPS)) for _ in range(2)]
    judge = ScriptedTransport(lambda text, sampling: "y" if accepts(text) else "n", fail=fail)
    return deployment(target=writers[0], draft=writers[1], judge=judge).roles


@pytest.fixture(autouse=True)
def labels(monkeypatch):
    monkeypatch.setattr(judge, "agrees", lambda label: label in ("y", "a"))


def check(roles, verifier="judge", prompt="paper"):
    call(RequestMaker(roles, prompt).check_judge(Lookahead(verifier=verifier)), roles["judge"].loop)
    return roles["judge"].checks.worst()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_prompt_has_twenty_pairs_of_which_none_reads_like_the_other(prompt):
    found = pairs(prompt)
    assert len(found) == len(set(found)) == 20


def test_each_pair_is_asked_once_by_the_judges_prompt():
    roles = judged(lambda text: False)
    assert check(roles) == FalseAccepts(0, 20, pytest.approx(0, abs=1e-9)) == check(roles)
    asked = [
        "".join(chr(one) for one in r["input_ids"] if one > END)
        for r in roles["judge"].transport.requests
    ]
    assert len(asked) == 20 + ALIKE
    for target, draft in (*pairs("paper"), *alike(pairs("paper"))):
        assert sum(PROMPTS["paper"].ask(target, draft) in text for text in asked) == 1
    assert {r["sampling_params"]["max_new_tokens"] for r in roles["judge"].transport.requests} == {
        1
    }


def test_pairs_that_say_the_same_are_made_of_the_others():
    assert alike([("So it is 4.", "No."), ("Half", "All.")]) == [
        ("So it is 4.", "So it is 4"),
        ("Half", "Half."),
    ]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_judge_that_accepts_nothing_is_told_of(prompt):
    """As one that is asked in words that it does not know."""
    with pytest.warns(
        RuntimeWarning, match=f"none of 6 pairs of steps that say the same.* the prompt '{prompt}'"
    ):
        check(judged(lambda text: False), prompt=prompt)


def test_one_that_accepts_some_of_what_says_the_same_is_not(recwarn):
    answers = iter([False] * 20 + [True])
    check(judged(lambda text: next(answers, False)))
    check(judged(lambda text: False), "exact")
    assert not [str(one.message) for one in recwarn.list]


def test_what_is_not_answered_does_not_count():
    down = RuntimeDown("down", role="judge")
    first = iter([None])
    roles = judged(lambda text: True, fail=lambda text: next(first, down))
    assert check(roles) == FalseAccepts(1, 1, 0.0)  # which says nothing
    assert check(judged(lambda text: True, fail=lambda text: down)) is None


def found_out(share):
    """The probability that one that accepts this share is not trusted after 20 verdicts."""
    trusted = Counter({FalseAccepts(): 1.0})
    for _ in range(20):
        after = Counter()
        for found, chance in trusted.items():
            for accepted, part in ((True, share), (False, 1 - share)):
                if (more := found.plus(accepted)).surely <= Lookahead().max_false_accepts:
                    after[more] += chance * part
        trusted = after
    return 1 - sum(trusted.values())


def test_one_that_accepts_at_random_is_found_out_and_a_good_one_is_not():
    assert found_out(0.7) >= 0.95
    assert found_out(0.1) <= 1 / 1700
    assert found_out(0.02) <= 1e-6
    assert shares([True] * 4).surely == 0 and shares([]) == FalseAccepts(0, 0, 0.0)
    assert shares([True] * 5 + [False] * 15).surely == wilson(5, 5)[0]
    assert shares([True] * 5 + [False] * 15).interval == wilson(5, 20)


def shares(verdicts):
    return reduce(FalseAccepts.plus, verdicts, FalseAccepts())


@pytest.mark.parametrize(
    ("verifier", "most", "drafts"),
    [("judge", 0.35, False), ("judge", 1, True), ("exact", 0.35, True)],
)
def test_the_target_answers_alone_where_the_judge_accepts_everything(verifier, most, drafts):
    roles = judged(lambda text: True)
    check(roles)
    look = Lookahead(verifier=verifier, max_false_accepts=most)
    request = RequestMaker(roles, "paper").make(
        MODES["lookahead"], look, Sampling(), Limits(), question="q"
    )
    assert answered(roles["target"], request).text == "\n\n".join(STEPS)
    assert request.drafts is drafts and bool(roles["draft"].transport.requests) is drafts
    made = record.make_record(Question("q", "?"), "lookahead", request, {}, {})
    low = pytest.approx(0.839, abs=1e-3)
    known = {"accepted": 20, "asked": 20, "surely": low, "interval": [low, 1]}
    assert made.get("false_accepts") == (None if drafts else known)


def test_a_run_says_that_it_does_not_trust_its_judge_and_goes_on_without(servers):
    result = called("run", "how many?")
    assert "it accepted 20 of 20 pairs of steps that differ" in result.stderr
    assert not servers.transports["draft"].requests and "\\boxed{17}" in result.stdout
    result = called("run", "how many?", "-o", "lookahead.max_false_accepts=1")
    assert "pairs of steps" not in result.stderr and servers.transports["draft"].requests
    called("run", "how many?", "-o", "lookahead.max_false_accepts=2", code=2)


@pytest.mark.parametrize(
    "arguments",
    [("--mode", "autoregressive"), ("--mode", "lossless"), ("--verifier", "random:0.5")],
)
def test_a_judge_that_nothing_depends_on_is_not_asked(servers, arguments):
    called("run", "how many?", *arguments)
    assert not servers.transports["judge"].requests


def test_a_benchmark_asks_each_judge_once(servers):
    asked = ("--task", "pocket", "--limit", "2", "--modes", "autoregressive,lookahead")
    assert called("bench", *asked, "--output", "out").output.count("it accepted 20 of 20") == 1
    assert any("false_accepts" in one for one in records(Path("out")))
    assert len(servers.transports["judge"].requests) == 20 + ALIKE


def test_a_deployment_warns_when_it_is_opened(monkeypatch):
    @contextmanager
    def deployed(*_, **more):
        yield judged(lambda text: True)

    monkeypatch.setattr("lr_sglang.api.solve.deployed", deployed)
    with pytest.warns(RuntimeWarning, match="20 of 20"), lr.deployment("pocket") as running:
        assert lr.solve("how many?", deployment=running).text == "\n\n".join(STEPS)
        assert not running.roles["draft"].transport.requests
