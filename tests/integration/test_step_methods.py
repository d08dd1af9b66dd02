"""The programs of step-level methods on scripted runtimes: whose step is kept, and who was asked."""

import math

import pytest
import sglang as sgl

import lr_sglang as lr
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.api.configuration import Plan
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.loop import call
from lr_sglang.errors import BadReply
from lr_sglang.steps.step import DELIMITER, THINK_END
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend
from lr_sglang.user_programs.program import Program, perform
from tests.scripted import END, CharTokenizer, ScriptedTransport, deployment

ASKED = [{"role": "user", "content": "How many?"}]
STEPS = 4


def chapter(name):
    """Writes four steps of its name, or those that it calls ``both``, at even places."""

    def write(text, sampling):
        at = text.count(DELIMITER)
        if text.startswith("The digit is"):
            return "9"
        return f"{'both' if at % 2 == 0 else name} {at}" + (
            DELIMITER if at < STEPS - 1 else chr(END)
        )

    return write


class Unsure(ScriptedTransport):
    """At even places it is sure of what it writes, at odd ones it is not; as a reward model it
    scores so."""

    def _reply(self, payload, text, sampling, aborted):
        reply = super()._reply(payload, text, sampling, aborted)
        if payload.get("return_logprob"):
            share = 0.99 if self.place(payload["input_ids"]) % 2 == 0 else 0.2
            row = [math.log(share), 1, None]
            other = [math.log(0.99 - share + 0.005), 2, None]
            reply["meta_info"] |= {
                "output_token_logprobs": [row for _ in text],
                "output_top_logprobs": [[row, other] for _ in text],
            }
        return reply

    async def post(self, path, body, timeout=0.0):
        assert path == "/classify"
        step = int("".join(map(chr, body["input_ids"])).rstrip()[-1])
        return {"embedding": [0.5 if step % 2 else 0.8]}

    @staticmethod
    def place(ids):
        return "".join(map(chr, ids)).rpartition("\x01")[2].count(DELIMITER)


def roles(target=None, draft=None):
    return deployment(
        target=ScriptedTransport(target or chapter("target")),
        draft=Unsure(draft or chapter("draft")),
        judge=Unsure(lambda text, sampling: "n"),
    ).roles


def answered(program, runtimes, ahead=True):
    job = AnswerRequest(sampling=Sampling(temperature=0.7), limits=Limits(max_tokens=2000))
    backend = LookaheadBackend(runtimes, Lookahead(depth=2), judge_prompt="paper", ahead=ahead)
    call(perform(Program.load(program), ASKED, job, backend))
    return job.record


def sent(runtimes, role, **wanted):
    """How many requests to a role have these fields."""
    return sum(
        all(one.get(name, one["sampling_params"].get(name)) == v for name, v in wanted.items())
        for one in runtimes[role].transport.requests
    )


DRAFT, TARGET = "draft", "target"


@pytest.mark.parametrize(
    ("program", "sources", "asked"),
    [
        ("specreason:first=2", [TARGET, TARGET, DRAFT, DRAFT], (TARGET, {"max_new_tokens": 1}, 2)),
        ("specreason:threshold=10", [TARGET] * 4, (TARGET, {"max_new_tokens": 1}, 4)),
        ("glimp_router", [DRAFT, TARGET] * 2, (DRAFT, {"max_new_tokens": 1}, 4)),
        ("glimp_router", [DRAFT, TARGET] * 2, (DRAFT, {"max_new_tokens": 100}, 2)),
        ("glimp_router:unsure=0.0", [TARGET] * 4, (DRAFT, {"max_new_tokens": 100}, 0)),
        ("conf_spec", [DRAFT, TARGET] * 2, (DRAFT, {"return_logprob": True}, 4)),
        ("conf_spec:sure=1", [TARGET] * 4, (TARGET, {"max_new_tokens": 100}, 4)),
        ("rsd", [DRAFT, TARGET] * 2, (TARGET, {"max_new_tokens": 0}, 4)),
        ("rsd:by=judge", [DRAFT, TARGET] * 2, (TARGET, {"max_new_tokens": 0}, 0)),
        ("rsd:by=judge,threshold=0.9", [TARGET] * 4, (TARGET, {"max_new_tokens": 100}, 4)),
        ("spec_cot:width=2", [DRAFT, TARGET] * 2, (DRAFT, {"max_new_tokens": 100}, 8)),
        ("spec_cot:width=2", [DRAFT, TARGET] * 2, (TARGET, {"max_new_tokens": 0}, 8)),
    ],
)
def test_whose_step_is_kept(program, sources, asked):
    runtimes = roles()
    record = answered(program, runtimes)
    assert [step.source for step in record.steps] == sources
    names = ["both" if n % 2 == 0 else source for n, source in enumerate(sources)]
    assert record.text == DELIMITER.join(f"{name} {n}" for n, name in enumerate(names))
    role, wanted, number = asked
    assert sent(runtimes, role, **wanted) == number
    kept = sum(one["in_answer"] for one in record.program["generations"])
    assert kept == STEPS and record.finish == "stop"


def test_spec_cot_takes_the_version_that_the_target_finds_likeliest():
    """One of three versions, in any order, is what the target would write itself."""
    turn = iter("bcabacabc" * 2)

    def draft(text, sampling):
        at = text.count(DELIMITER)
        return f"{next(turn)} {at}" + (DELIMITER if at < 2 else chr(END))

    def target(text, sampling):
        at = text.count(DELIMITER)
        return f"a {at}" + (DELIMITER if at < 2 else chr(END))

    record = answered("spec_cot:width=3", roles(target, draft))
    assert record.text == "a 0\n\na 1\n\na 2"
    assert {step.source for step in record.steps} == {"draft"}


def thinker(answers):
    """Thinks in 13 steps of nine tokens up to the marker; asked early, it gives these answers."""
    whole = DELIMITER.join(f"think{n:2}" for n in range(13)) + THINK_END + "It is 7." + chr(END)

    def write(text, sampling):
        if text.endswith("boxed{"):
            return answers[text.count(DELIMITER) - 1] + "} and so on" + chr(END)
        return whole[len(text) :]

    return write


@pytest.mark.parametrize(
    ("answers", "template", "steps", "end"),
    [
        ("777", "", 3, "\n\nSo the answer is \\boxed{7}."),
        ("123455566", "", 7, "\n\nSo the answer is \\boxed{5}."),
        ("777", "<think>", 3, f"\n\n{THINK_END}\n\nSo the answer is \\boxed{{7}}."),
        ("1212121212121", "", 13, f"{THINK_END}It is 7."),
        ("             ", "", 13, f"{THINK_END}It is 7."),  # an empty answer is none
    ],
)
@pytest.mark.parametrize("ahead", [True, False])
def test_thinking_ends_when_the_early_answers_agree(answers, template, steps, end, ahead):
    runtimes = roles(thinker(answers), thinker(answers))
    runtimes["target"].tokenizer = CharTokenizer()
    runtimes["target"].tokenizer.template = template
    record = answered("early_exit:every=9,agree=3", runtimes, ahead)
    thoughts = DELIMITER.join(f"think{n:2}" for n in range(steps))
    assert record.text == thoughts + end
    assert record.finish == "stop"


@sgl.function
def looks_without_asking(s, messages):
    lr.converse(s, messages)
    s += lr.step("step")
    s["sure"] = lr.confidence(s, "step")


@sgl.function
def weighs(s, messages):
    lr.converse(s, messages)
    asked = [lr.weigh(s, text) for text in ("both 0\n\n", "bath 0\n\n", "")]
    s["answer"] = " ".join(f"{lr.confidence(one):.3f}" for one in asked)


def test_what_a_program_reads_of_log_probabilities():
    with pytest.raises(BadReply, match="'step' has no log-probabilities") as failed:
        answered(looks_without_asking, roles())
    assert "return_logprob" in failed.value.hint
    likely, unlikely = math.exp(-0.1), math.exp((7 * -0.1 - 9) / 8)
    assert answered(weighs, roles()).text == f"{likely:.3f} {unlikely:.3f} 0.000"


@pytest.mark.parametrize(("program", "judged"), [("rsd", False), ("rsd:by=judge", True)])
def test_a_program_whose_option_names_the_judge_has_it_with_any_verifier(program, judged):
    models = dict.fromkeys(("target", "draft", "judge"), "m")
    plan = Plan(program=program, models=models).with_settings(lookahead=Lookahead(verifier="exact"))
    assert ("judge" in plan.roles("lookahead")) == judged
