"""Every verifier over scripted runtimes: what it asks, what it makes of the answer, and what a
failure does.
"""

import asyncio
import random
import sys

import pytest

from lr_sglang import plugin_files, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.judging import PATIENCE
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.doubts import JudgeCheck, JudgeChecks
from lr_sglang.errors import (
    Cancelled,
    ConfigError,
    PromptTooLong,
    RuntimeDown,
    RuntimeTimeout,
    SetupError,
)
from lr_sglang.frontend.dsl import run_program
from lr_sglang.modes import MODES
from lr_sglang.programs.judge import PROMPTS
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.programs.rate import OPENING, RATE_STEP, rate
from lr_sglang.steps.step import Verdict
from lr_sglang.user_programs.request_maker import RequestMaker
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.cascade import Cascade
from lr_sglang.verifiers.embedding import Embedding, load_encoder
from lr_sglang.verifiers.judge import Judge
from lr_sglang.verifiers.verifier_registry import CascadeStage
from tests import FULL, ROOT, SCHEDULES
from tests.scripted import (
    CONVERSATION,
    LIKELY,
    CharTokenizer,
    E,
    ScriptedTransport,
    answered,
    deployment,
    fixed,
    slow,
)
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Simulation, Writer
from tests.simulated.transport import simulated_roles

OURS, THEIRS = "One a.\n\nTwo b.\n\nEnd." + E, "ONE A.\n\nTwo b.\n\nEND." + E


def solve(verifier, ours=OURS, theirs=THEIRS, *, schedule="sync", target=None, depth=2, **others):
    """Runs an answer; ``verifier`` is made of the roles. Gives its record and the
    target's runtime.
    """
    target = target or fixed(ours, seconds=slow(0.01))
    backend = deployment(target=target, draft=fixed(theirs), **others)
    look = Lookahead(schedule=schedule, depth=depth)
    return answered(backend, AnswerRequest(look, verifier=verifier(backend.roles))), target


def named(name):
    return lambda roles: verifiers.make_verifier(name, verifiers.Setup(roles, "paper"))


# -- likelihood


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("how", ["min", "mean"])
def test_the_likelihood_is_the_targets_own_of_the_draft(schedule, how):
    """It costs one prefill of the step, and generates nothing."""
    record, target = solve(named(f"likelihood:{how}:-1"), schedule=schedule, depth=1)
    assert record.text == "One a.\n\nTwo b.\n\nEnd."
    by_text = {
        s.draft_texts[0]: s.verdicts[0] for s in record.steps if s.verdicts and s.draft_texts[0]
    }
    assert by_text["ONE A.\n\n"].score == (
        -9.0 if how == "min" else pytest.approx((5 * LIKELY - 9 * 3) / 8, abs=2)
    )
    if "Two b.\n\n" in by_text:
        assert by_text["Two b.\n\n"].score == pytest.approx(LIKELY)
        assert by_text["Two b.\n\n"].accepted
    assert {s.verdicts[0].by for s in record.steps if s.verdicts} <= {"likelihood", "late"}
    asked = [r for r in target.requests if "return_logprob" in r]
    prompt = min(len(r["input_ids"]) for r in target.requests)
    assert asked[0]["sampling_params"]["max_new_tokens"] == 0
    assert asked[0]["logprob_start_len"] == prompt - 1
    assert bytes(asked[0]["input_ids"][prompt:]) == b"ONE A.\n\n"
    assert sum(b.generated_tokens for b in record.of("judge")) == 0
    assert len(asked) == len(record.of("judge"))


def test_a_runtime_without_log_probabilities_is_a_failure_and_rejects():
    target = fixed(OURS, seconds=slow(0.01))
    target._weigh = lambda payload: []
    record, _ = solve(named("likelihood"), target=target)
    assert record.text == OURS[:-1]
    assert record.failures["judge"] == len(record.of("judge")) > 0
    assert "no log-probabilities" in record.steps[0].verdicts[0].reason


def test_the_end_of_another_vocabulary_is_no_token_of_the_targets():
    class Other(CharTokenizer):
        vocabulary = "others"

    def likelihood(roles):
        roles["draft"].tokenizer = Other()
        return named("likelihood")(roles)

    record, _ = solve(likelihood, "One.\n\nEnd" + E, "One.\n\nEnd" + E)
    assert [s.source for s in record.steps] == ["draft", "target"]
    assert record.steps[1].verdicts[0].reason == "its end cannot be weighed"


# -- score


@pytest.mark.parametrize(
    ("said", "threshold", "accepted", "score"),
    [
        ("7", 7, True, 7.0),
        ("6", 7, False, 6.0),
        ("9", 9, True, 9.0),
        ("x", 0, False, None),
        ("²", 0, False, None),
    ],
)
def test_a_rating_is_one_digit_of_the_target(said, threshold, accepted, score):
    writer = fixed(OURS).write
    target = ScriptedTransport(
        lambda text, s: said if text == OPENING else writer(text, s), slow(0.01)
    )
    record, _ = solve(named(f"score:{threshold}"), target=target, depth=1)
    verdict = record.steps[0].verdicts[0]
    assert (verdict.accepted, verdict.score, verdict.by, verdict.failed) == (
        accepted,
        score,
        "score",
        False,
    )
    asked = next(r for r in target.requests if r["text"] == OPENING)
    assert asked["sampling_params"]["max_new_tokens"] == 1
    prompt = "".join(chr(i) for i in asked["input_ids"])
    assert f"ONE A.\n\n\x02\x01{RATE_STEP}\x02\x01{OPENING}" in prompt


@pytest.mark.parametrize("name", ["score", "likelihood"])
def test_a_target_that_fails_to_judge_is_left_alone_for_a_while(name):
    down = RuntimeDown("gone", role="target")
    target = fixed(OURS, seconds=slow(0.01), fail=lambda text: down if text == OPENING else None)
    target.fail_to_weigh = lambda: down
    record, _ = solve(named(name), target=target)
    assert record.text == OURS[:-1]
    # both before the failure was known
    assert len(record.of("judge")) == record.failures["judge"] == 2
    assert all(v.failed for s in record.steps for v in s.verdicts if v.by == name)


# -- embedding


class Letters:
    """An encoder that counts letters, small and capital alike."""

    def encode(self, sentences):
        return [
            [text.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz."] for text in sentences
        ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_cosine_decides(schedule):
    record, _ = solve(lambda _: Embedding(Letters(), 0.99), schedule=schedule)
    first = record.steps[0].verdicts[0]
    assert first.by in ("embedding", "late")
    if schedule == "sync":
        assert record.text == "ONE A.\n\nTwo b.\n\nEnd."
        assert first.score == pytest.approx(1.0)
        assert record.steps[1].verdicts[0].by == "identical"
    far, _ = solve(
        lambda _: Embedding(Letters(), 0.99), theirs="Something else." + E, ours="One." + E
    )
    assert far.text == "One."
    assert 0 < far.steps[0].verdicts[0].score < 0.99


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(verifier_registry, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="sentence-transformers"):
        verifier_registry.parse_verifier("embedding")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(SetupError, match=r"Hint: .*lr-sglang\[embedding\]"):
        load_encoder(str(tmp_path / "another"))


@pytest.mark.skipif(not FULL, reason="torch and sentence-transformers take 13 s to import")
def test_a_real_model_of_random_weights(tmp_path):
    """What sentence-transformers does with a folder; the texts mean nothing to this model."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "end"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    small = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    BertModel(small).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no embedding model at"):
        load_encoder(str(tmp_path / "none"))
    verifier = verifiers.make_verifier(f"embedding:-1:{tmp_path}", verifiers.Setup({}, "paper"))
    record, _ = solve(lambda _: verifier, "one two\n\nend" + E, "two three\n\nend" + E)
    verdict = record.steps[0].verdicts[0]
    assert verdict.accepted
    assert verdict.by == "embedding"
    assert -1 <= verdict.score <= 1.0001


# -- cascade


class Says:
    """A verifier of a fixed score, that counts."""

    def __init__(self, name, score=None, accepted=False, failed=False, at_once=True):
        self.name, self.verdict = name, Verdict(accepted, name, score=score, failed=failed)
        self.asked, self.at_once = 0, at_once

    def verify(self, inquiry):
        self.asked += 1
        return self.verdict if self.at_once else self.later()

    async def later(self):
        await asyncio.sleep(0.01)
        return self.verdict


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("score", "failed", "accepted", "by"),
    [
        (0.9, False, True, "cheap"),
        (0.1, False, False, "cheap"),
        (0.5, False, True, "dear"),
        (None, True, True, "dear"),
    ],
)
def test_the_dear_one_is_asked_where_the_cheap_one_is_unsure(at_once, score, failed, accepted, by):
    cheap = Says("cheap", score, failed=failed, at_once=at_once)
    dear = Says("dear", accepted=True, at_once=at_once)
    cascade = Cascade([(cheap, CascadeStage("cheap", 0.2, 0.8))], dear)
    record, _ = solve(lambda _: cascade, "One." + E, "ONE." + E, depth=1)
    verdict = record.steps[0].verdicts[0]
    assert (verdict.accepted, verdict.by) == (accepted, by)
    assert dear.asked == (by == "dear")
    assert [v.by for v in verdict.earlier] == (["cheap"] if by == "dear" else [])
    assert not record.failures["judge"]


def test_a_list_of_stages_asks_all_of_them_and_keeps_their_scores():
    record, target = solve(named("cascade:likelihood:min,likelihood,exact"), depth=1)
    verdict = record.steps[0].verdicts[0]
    assert verdict.by == "exact"
    assert [v.by for v in verdict.earlier] == ["likelihood", "likelihood"]
    assert verdict.earlier[0].score == -9.0 < verdict.earlier[1].score
    assert all(v.seconds > 0 for v in verdict.earlier)
    assert len([r for r in target.requests if "return_logprob" in r]) == len(record.of("judge"))
    assert all(b.outcome is not None and b.ended is not None for b in record.branches)


def test_a_cascade_asks_nothing_more_once_its_answer_is_stopped():
    """Its first stage fails then, since its request is cancelled."""
    answer = fixed("One a.\n\nTwo b." + E).write
    target = ScriptedTransport(answer, lambda text: 30.0 if text == "ONE A.\n\n" else 0.01)
    judge = ScriptedTransport(lambda text, sampling: "A", slow(30))
    backend = deployment(target=target, draft=fixed(THEIRS), judge=judge)
    request = AnswerRequest(
        Lookahead(depth=1), verifier=named("cascade:likelihood,judge")(backend.roles)
    )

    async def main():
        asyncio.get_running_loop().call_later(1, request.stop)
        with pytest.raises(Cancelled):
            await run_program(lookahead, CONVERSATION, request, backend=backend)

    run_virtually(main())
    assert request.trace.drained < 2 and not judge.requests
    assert request.trace.outcomes()["judge"]["cancelled"] == len(request.trace.of("judge")) == 2


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("@-5..-0.5", -5.0, -0.5), ("@-5..", -5.0, None), ("@..-0.5", None, -0.5), ("", None, None)],
)
def test_thresholds_are_typed(text, low, high):
    first, last = verifier_registry.stages(f"likelihood:min{text}, random:1")
    assert (first.verifier, first.reject_below, first.accept_above) == ("likelihood:min", low, high)
    assert last.verifier == "random:1"


# -- names, and verifiers of others


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("judge", {"judge"}),
        ("exact", set()),
        ("random:0.2", set()),
        ("score", {"target"}),
        ("likelihood:-0.5", {"target"}),
        ("likelihood:min", {"target"}),
        ("cascade:likelihood,judge", {"target", "judge"}),
        ("cascade:likelihood:min:-2,exact", {"target"}),
    ],
)
def test_what_a_verifier_asks_is_known_without_it(name, roles):
    assert verifier_registry.asks(name) == roles
    assert verifier_registry.needs_judge(name) == ("judge" in roles)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("guess", "no verifier is called 'guess'"),
        ("judge:3", "no verifier is called 'judge:3'"),
        ("random:1.5", "is no acceptance rate"),
        ("score:ten", "'ten' is no threshold"),
        ("score:10", "is no threshold"),
        ("likelihood:0.5", "is no threshold"),
        ("likelihood:nan", "is no threshold"),
        ("likelihood:min:x", "is no threshold"),
        ("embedding:2", "is no threshold"),
        ("cascade:judge", "at least two stages"),
        ("cascade:", "at least two stages"),
        ("cascade:likelihood@x..,judge", "'x..' is no range of scores"),
        ("cascade:likelihood@-1,judge", "'-1' is no range of scores"),
        ("cascade:likelihood@-1..-2,judge", "the first threshold is above the second"),
        ("cascade:likelihood,guess", "no verifier is called 'guess'"),
        ("none.py:Mine", "there is no file none.py"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(name, message):
    with pytest.raises(ConfigError, match=message):
        verifier_registry.asks(name)
    with pytest.raises(ConfigError, match=message):
        verifiers.make_verifier(name, verifiers.Setup({}, "paper"))


def test_a_verifier_that_lacks_its_runtime_says_so():
    for name, role in (("judge", "judge"), ("score", "target"), ("likelihood", "target")):
        with pytest.raises(ConfigError, match=f"needs a {role} runtime"):
            verifiers.make_verifier(name, verifiers.Setup({}, "paper"))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_verifier_inside_another_is_made_for_the_same_deployment(prompt):
    """The judge of a composed verifier is asked as the deployment's judge is: in another's words it
    says anything.
    """
    path = ROOT / "examples" / "composed_verifier.py"
    name = f"{path}:NumbersThenJudge"
    made = verifiers.make_verifier(name, verifiers.Setup({"judge": None}, prompt))
    assert made.inner.judge.prompt is PROMPTS[prompt]
    assert verifier_registry.asks(name) == {"target", "judge"}
    assert not verifier_registry.needs_judge(name)


CANCELLED = (
    "work = asyncio.ensure_future(asyncio.sleep(60))\n        work.cancel()\n        await work"
)


@pytest.mark.parametrize(
    ("define", "body", "said"),
    [
        ("def", "1 / 0", "by zero') (v.py, line 5)"),
        ("def", "return True", "verify() returned True, not an lr.Verdict"),
        ("def", "pass", "verify() returned None, not an lr.Verdict"),
        ("def", "raise asyncio.CancelledError", "CancelledError"),
        ("def", "raise SystemExit(3)", "SystemExit(3) (v.py, line 5)"),
        ("def", "raise KeyboardInterrupt", "KeyboardInterrupt() (v.py, line 5)"),
        ("def", "return Verdict('no', 'v')", "a verdict is true or false, not 'no'"),
        ("def", "return Verdict(None, 'v')", "a verdict is true or false, not None"),
        ("def", "return Verdict(True, 'v', score='high')", "could not convert string"),
        ("async def", CANCELLED, "CancelledError"),
        ("async def", "raise SystemExit(3)", "SystemExit(3)"),
        ("async def", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_one_that_fails_rejects_and_says_why(tmp_path, define, body, said):
    (tmp_path / "v.py").write_text(
        "import asyncio\nfrom lr_sglang import Verdict\n"
        f"class V:\n    {define} verify(self, inquiry):\n        {body}"
    )
    name = f"{tmp_path}/v.py:V"
    record, _ = solve(named(name))
    assert record.text == OURS[:-1]
    verdicts = [v for s in record.steps for v in s.verdicts if v.by == name]
    assert verdicts and all(v.failed and not v.accepted and said in v.reason for v in verdicts)
    assert record.failures["judge"] >= len(verdicts)  # more on drafts that were discarded


NEVER = "async def verify(self, i): await asyncio.Event().wait()"

HOW = {
    "by its name": lambda path, roles: named(f"{path}:V")(roles),
    "itself": lambda path, _: plugin_files.find(path, "V")(),
}


@pytest.mark.parametrize("how", HOW)
def test_one_that_never_replies_rejects(tmp_path, how):
    """A verdict may take as long as a request to the target, also of an object that a program
    gives.
    """
    (tmp_path / "v.py").write_text(f"import asyncio\n\nclass V:\n    {NEVER}")

    def impatient(roles):
        roles["target"].timeout = 0.05
        return HOW[how](tmp_path / "v.py", roles)

    record, _ = solve(impatient)
    assert record.text == OURS[:-1] and record.failures["judge"]
    assert "no verdict in 0.05 s" in {
        v.reason for s in record.steps for v in s.verdicts if v.failed
    }


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_judge_that_hangs_is_given_up_long_before_a_generation_is(schedule):
    """A step waits for it: a verdict may take PATIENCE of a runtime's timeout."""
    waited = []

    async def hangs(payload, request, timeout):
        waited.append(timeout)
        await asyncio.sleep(timeout)
        raise RuntimeTimeout("late", role="judge")

    judge = fixed("a")
    judge.generate = hangs
    target, draft = fixed(OURS, seconds=slow(0.01)), fixed(THEIRS)
    backend = deployment(target=target, draft=draft, judge=judge)
    verifier = named("judge")(backend.roles)
    request = AnswerRequest(Lookahead(schedule=schedule, depth=1), verifier=verifier)
    record = answered(backend, request, virtually=True)
    assert record.text == OURS[:-1] and record.failures["judge"]
    assert set(waited) == {PATIENCE * backend.roles["judge"].timeout}
    assert record.seconds < len(waited) * waited[0] + 1 < backend.timeout


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (RuntimeDown("it died", role="judge"), 1),  # not asked at every step
        (PromptTooLong("too long", role="judge"), 6),  # asked about the next pair
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_judge_that_fails_is_left_alone_or_asked_about_the_next_pair(error, asked, schedule):
    mine, yours = ("\n\n".join(f"{who} {n}." for n in range(6)) for who in ("mine", "your"))
    judge = ScriptedTransport(lambda text, sampling: "a", fail=lambda text: error)
    target = fixed(mine + E, seconds=slow(0.05))
    record, _ = solve(
        named("judge"), theirs=yours + E, target=target, depth=1, schedule=schedule, judge=judge
    )
    assert record.text == mine
    assert len(judge.requests) == record.failures["judge"] == len(record.of("judge")) == asked
    assert record.steps[0].verdicts[0].failed
    assert record.alpha is None, "nothing was judged"


class AsksTheTarget:
    """A verifier that leaves the failures of its runtime to us."""

    name = "asks"

    async def verify(self, inquiry):
        await inquiry.generation(rate(inquiry.state, inquiry.pair.draft))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_whose_runtime_fails_rejects(schedule):
    down = RuntimeDown("gone", role="target")
    target = fixed(OURS, seconds=slow(0.01), fail=lambda text: down if text == OPENING else None)
    record, _ = solve(lambda _: AsksTheTarget(), schedule=schedule, target=target)
    assert record.text == OURS[:-1] and record.failures["judge"]
    assert "target: gone" in {
        v.reason for s in record.steps for v in s.verdicts if v.failed and v.by == "asks"
    }


WITHOUT_VERIFY = "class V:\n    pass"
NEEDS_MORE = "class V:\n    def __init__(self, a): 1"
EXITS = "class V:\n    def __init__(self):\n        raise SystemExit(3)"
NAMED = r"--verifier|has no 'V'|line 1"


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("", NAMED),
        (WITHOUT_VERIFY, NAMED),
        (NEEDS_MORE, NAMED),
        (EXITS, r"SystemExit\(3\)"),
        ("class V(", NAMED),
        ("import nothing_of_that_name", NAMED),
        ("1 / 0", NAMED),
        ("undefined", NAMED),
    ],
)
def test_a_file_that_holds_no_verifier_is_named(tmp_path, source, match):
    (tmp_path / "v.py").write_text(source)
    with pytest.raises(ConfigError, match=match):
        verifiers.make_verifier(f"{tmp_path}/v.py:V", verifiers.Setup({}, "paper"))


# -- the judge is shown steps that differ before the first answer


class Nonsense(Writer):
    """A judge that accepts 70 % of everything."""

    def __init__(self, model, seed):
        super().__init__(model)
        self.rng = random.Random(seed)

    def judge(self, prompt):
        return "aligned" if self.rng.random() < 0.7 else "unaligned"


class Own(Judge):
    """A verifier of one's own that asks the judge, unless it is told not to."""

    name = "own"
    argument = ""

    @classmethod
    def make(cls, setup):
        made = super().make(setup)
        made.argument = setup.argument
        return made

    def verify(self, inquiry):
        return Verdict(True, self.name) if self.argument else super().verify(inquiry)


@pytest.mark.parametrize(
    "verifier", ["judge", "cascade:likelihood,judge", "Own", "Own:never", "oracle:0.7"]
)
def test_a_verifier_that_asks_the_judge_is_checked_whosever_it_is(verifier, tmp_path):
    if own := verifier.startswith("Own"):
        (tmp_path / "own.py").write_text("from tests.integration.test_verifiers import Own\n")
        verifier = f"{tmp_path}/own.py:{verifier}"
    model, warned = Model(steps=75), []
    roles = simulated_roles(Simulation(model), Nonsense(model, 1))
    roles["judge"].checks = JudgeChecks(warn=warned.append)
    look, maker = Lookahead(verifier=verifier), RequestMaker(roles, "paper")
    run_virtually(maker.check_judge(look))
    request, found = (
        maker.make(MODES["lookahead"], look, Sampling(), Limits()),
        roles["judge"].checks,
    )
    if verifier.startswith("oracle") or verifier.endswith("never"):
        assert found.worst() is None and request.drafts and not warned
    else:
        assert found.worst().asked == 20 and not request.drafts and len(warned) == 1
        assert own == ("own.py" in warned[0])


def test_what_a_verifier_accepts_without_the_judge_does_not_count():
    warned = []
    check = JudgeCheck("own", warned.append)
    check.add([True] * 20, 0.35)
    assert check.trusted(0.35) and not warned and check.known is None


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_draft_in_flight_when_the_judge_is_distrusted_is_rejected(schedule):
    """The target answers alone from then on."""
    target, draft = fixed(OURS, seconds=slow(0.2)), fixed(THEIRS, seconds=slow(0.1))
    judge = fixed("a")
    backend = deployment(target=target, draft=draft, judge=judge)
    check = JudgeCheck("judge", lambda _: None, asks=True)
    request = AnswerRequest(Lookahead(schedule=schedule, depth=1), check=check)
    request.verifier = named("judge")(backend.roles)

    async def main():
        asyncio.get_running_loop().call_later(0.05, check.add, [True] * 20, 0.1)
        await run_program(lookahead, CONVERSATION, request, backend=backend)

    run_virtually(main())
    assert request.trace.text == OURS[:-1] and not judge.requests and len(draft.requests) == 1
    assert [verdict.by for verdict in request.trace.steps[0].verdicts] == ["untrusted"]
