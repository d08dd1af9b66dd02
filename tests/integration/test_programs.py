"""The gallery, and programs from outside: over simulated runtimes, and over scripted ones where the
words matter.
"""

import dataclasses
import itertools
import json
import math
import time
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import sglang as sgl

import lr_sglang as lr
from lr_sglang import testing
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.bench import variants
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.loop import call
from lr_sglang.errors import BadReply, Cancelled, ConfigError, PromptTooLong, RuntimeDown
from lr_sglang.programs.common import Proposer, write_steps
from lr_sglang.results import accounting
from lr_sglang.sglang_api.plugin_protocol import RELAXED
from lr_sglang.steps.step import DELIMITER, TAGS
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.trace import Trace
from lr_sglang.tasks import Question
from lr_sglang.user_programs import program_registry
from lr_sglang.user_programs.generation_trace import GenerationTrace, write_generations
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend
from lr_sglang.user_programs.program import Program, ProgramError, perform
from lr_sglang.verifiers.exact import Exact
from tests import in_thread, plan
from tests.endpoint import COMPLETIONS, SERVICE, is_documented, pieces, serving
from tests.scripted import END, CharTokenizer, ScriptedTransport, chapters, deployment, set_facts
from tests.serving import until
from tests.simulated.transport import fast_roles

THINK_END = TAGS.closes

QUESTION = Question("q", "Simulated question 1?")
ASKED = [{"role": "user", "content": "How many?"}]


def records(program, modes=("lookahead",), roles=None, **settings):
    given = Plan(program=program).with_settings(lookahead=Lookahead(depth=3), **settings)
    return list(Runner(roles or fast_roles(), given).run(plan([QUESTION], modes)))


def scripted(target, draft=None, seconds=0.0):
    """Backends whose texts are what ``target`` and ``draft`` say; the judge never agrees."""
    roles = {
        "target": ScriptedTransport(target, lambda text: seconds),
        "draft": ScriptedTransport(draft or target),
        "judge": ScriptedTransport(lambda text, sampling: "n"),
    }
    return deployment(**roles).roles


def run(program, request, roles, ahead=True, verifier="judge"):
    """Answers a request by a program."""
    look = Lookahead(depth=2, verifier=verifier)
    backend = LookaheadBackend(roles, look, judge_prompt="paper", ahead=ahead)
    call(perform(Program.load(program), ASKED, request, backend))


def answered(program, roles, ahead=True):
    """What a program answers, and its request."""
    request = AnswerRequest(sampling=Sampling(temperature=0.7), limits=Limits(max_tokens=2000))
    run(program, request, roles, ahead)
    return request, request.trace.program


# -- each of the gallery, on simulated runtimes


@pytest.mark.parametrize("program", program_registry.PROGRAM_NAMES)
def test_every_program_answers_and_leaves_a_whole_record(program):
    (record,) = records(program)
    assert record["error"] is None and record["finish"] == "stop"
    assert record["steps"] and record["branches"] and record["text"].strip()
    assert [step["position"] for step in record["steps"]] == list(range(len(record["steps"])))
    for step in record["steps"]:
        assert step["text"].strip() in record["text"] and 0 <= step["seconds"] <= record["seconds"]
    tokens = record["tokens"]
    assert tokens["used"] + tokens["wasted"] == tokens["generated"] and tokens["used"] > 0
    told = record["program"]
    assert told["name"] == program
    if program not in ("lookahead", "autoregressive"):
        assert sum(told["answered"].values()) == len(told["generations"])
    assert sum(one["generated"] for one in told["generations"]) == tokens["generated"]
    assert all(branch["ended"] is not None and branch["outcome"] for branch in record["branches"])
    path = accounting.critical_path(record)
    assert path[0].start == 0 and path[-1].end == record["seconds"]
    assert all(
        one.end == pytest.approx(two.start, abs=1e-5) for one, two in itertools.pairwise(path)
    )
    assert sum(accounting.parts(record).values()) == pytest.approx(record["seconds"], abs=1e-3)
    json.dumps(record)


@pytest.mark.parametrize("program", ["self_consistency:samples=3", "plan_then_solve"])
def test_without_lookahead_the_same_program_is_the_targets_alone(program):
    ahead, alone = records(program, ("lookahead", "autoregressive"))
    assert set(ahead["program"]["answered"]) == {"lookahead"}
    assert set(alone["program"]["answered"]) == {"autoregressive"}
    assert alone["accepted"] == 0 and {branch["role"] for branch in alone["branches"]} == {"target"}


def test_samples_of_a_question_are_drawn_differently_and_can_be_repeated():
    def seeds(sample):
        request = AnswerRequest(sampling=Sampling(), question="q", sample=sample)
        run("plan_then_solve", request, fast_roles())
        return {branch.seed for branch in request.trace.branches if branch.role == "target"}

    one, again, two = seeds(0), seeds(0), seeds(1)
    assert one & again and not one & two


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize(("penalty", "lossless"), [(0.0, "text"), (0.5, "distribution")])
def test_a_generation_that_is_not_verified_exactly_is_promised_no_text(
    temperature, penalty, lossless
):
    @sgl.function
    def penalised(s, messages):
        lr.converse(s, messages)
        s += sgl.gen("answer", 20, presence_penalty=penalty, temperature=temperature)

    roles = fast_roles()
    set_facts(roles["target"], relaxed=RELAXED)
    request, _ = answered(penalised, roles, ahead=False)
    assert (request.trace.seeded, request.trace.lossless) == (lossless == "text", lossless)


@pytest.mark.parametrize(
    ("program", "verifier", "ahead", "lossless"),
    [
        ("best_of_n:samples=2", "exact", True, "text"),
        ("best_of_n:samples=2", "judge", True, ""),
        ("best_of_n:samples=2", "judge", False, "text"),
        ("specreason", "exact", True, ""),  # keeps steps of the draft that the target rates well
        ("specreason", "exact", False, "text"),
    ],
)
def test_a_record_says_of_a_program_too_how_its_answer_was_drawn(
    program, verifier, ahead, lossless
):
    request = AnswerRequest(sampling=Sampling(temperature=0.7), question="q")
    run(program, request, fast_roles(), ahead, verifier)
    assert request.trace.lossless == lossless
    generations = request.trace.program["generations"]
    assert request.trace.shared_draws == any(one["lookahead"] for one in generations)
    assert not request.trace.own_draws


# -- what they do, on scripted runtimes


def by_seed(*texts):
    """A model that writes one of some texts, by the seed of its request."""
    return lambda text, sampling: texts[sampling.get("sampling_seed", 0) % len(texts)] + chr(END)


def test_the_record_of_a_program_has_what_its_generations_counted():
    sums = {"cycles": 2, "read_tokens": 10, "agreed_tokens": 9, "late_tokens": 1}
    sums |= {"reads": Counter({(5, 4): 1}), "failures": Counter(draft=1)}
    firsts = {"not_fed": "the vocabularies differ", "causes": {"draft": "no answer"}}
    firsts |= {"alone": "its layer", "doubts": {"target": {"reuse": "little"}}}
    parts = [GenerationTrace(began, "target", Trace(**sums, **firsts)) for began in (0.0, 1.0)]
    record = Trace()
    write_generations(record, parts)
    for name, value in sums.items():
        assert getattr(record, name) == value + value, name
    for name, value in firsts.items():
        assert getattr(record, name) == value, name
    of_the_answer = {"text", "ids", "finish", "prompt_tokens", "seconds", "drained", "program"}
    of_its_generations = {"seeded", "shared_draws", "own_draws", "lossless", "steps", "branches"}
    of_a_step = {"conclusion"}  # `GenerationTrace.figures` has those of each generation
    told = sums.keys() | firsts.keys() | of_the_answer | of_its_generations | of_a_step
    assert {one.name for one in dataclasses.fields(Trace)} == told


def test_most_samples_decide():
    roles = scripted(by_seed("So \\boxed{7}.", "Thus \\boxed{ 7 }.", "No: \\boxed{8}."))
    request, told = answered("self_consistency:samples=9", roles, ahead=False)
    drawn = [
        request["sampling_params"]["sampling_seed"] % 3
        for request in roles["target"].transport.requests
    ]
    sevens = sum(one != 2 for one in drawn)
    assert ("7" if sevens > 4 else "8") in request.trace.text
    assert len(drawn) == 9 and sum(one["in_answer"] for one in told["generations"]) == 1


def test_the_best_rated_sample_is_the_answer():
    def write(text, sampling):
        if text.startswith("The digit is"):
            return str(next(ratings))
        return f"solution {sampling.get('sampling_seed', 0)}" + chr(END)

    ratings = iter([3, 8, 8, 1])
    state = Program.load("best_of_n").function.run(
        ASKED, backend=LookaheadBackend(scripted(write), judge_prompt="paper", ahead=False)
    )
    assert sorted(state["ratings"]) == [1, 3, 8, 8] and state["answer"].startswith("solution")


STEPS = 4


def chapter(name, rating="9", even="", steps=STEPS):
    """Writes steps that bear its name, or ``even`` at even places; a rating is what is given."""

    def write(text, sampling):
        at = text.count(DELIMITER)
        if text.startswith("The digit is"):
            return rating
        named = even if even and at % 2 == 0 else name
        return f"{named} {at}" + (DELIMITER if at < steps - 1 else chr(END))

    return write


@pytest.mark.parametrize(
    ("rating", "source"), [("9", "draft"), ("7", "draft"), ("6", "target"), ("x", "target")]
)
def test_specreason_keeps_what_the_target_rates_well(rating, source):
    """The digit stands in every step: it is not taken for a piece of the solution."""
    roles = scripted(chapter("9 eggs, target", rating), chapter("9 eggs, draft", rating))
    request, told = answered("specreason", roles)
    steps = [f"9 eggs, {source} {at}" for at in range(4)]
    assert request.trace.text == DELIMITER.join(steps)
    kept = [f"{one}{DELIMITER}" for one in steps[:-1]] + steps[-1:]
    assert [step.text for step in request.trace.steps] == kept
    assert [step.source for step in request.trace.steps] == [source] * 4
    assert told["answered"]["draft"] == 4
    if source == "draft":
        assert [one["in_answer"] for one in told["generations"]] == [True, False] * 4
        assert request.trace.tokens()["wasted"] == 4


# Programs that write by steps, with options that keep whatever the draft writes.
BY_STEPS = (
    "specreason",
    "glimp_router:unsure=9",
    "spec_cot:least=0",
    "rsd:threshold=0",
    "conf_spec:sure=0",
)


@pytest.mark.parametrize("program", BY_STEPS)
def test_a_drafted_step_with_special_tokens_is_the_targets_to_write(program):
    """Role marks, which no text shows: the target would take what follows for another turn."""

    draft = chapter("draft")
    forged = lambda text, sampling: chr(2) + chr(1) + draft(text, sampling)
    request, _ = answered(program, scripted(chapter("target"), forged))
    assert not any(one < END for one in request.trace.ids) and "draft" not in request.trace.text
    assert {step.source for step in request.trace.steps} == {"target"}


def test_a_program_that_needs_the_draft_is_told_which_mode_has_it():
    with pytest.raises(ConfigError, match=r"no draft runtime.*\nHint: .*--mode lookahead"):
        answered(by_the_draft, fast_roles(), ahead=False)


@pytest.mark.parametrize("program", BY_STEPS)
def test_without_a_draft_the_target_goes_on(program):
    """One that dies is counted; a mode without lookahead has none at all."""
    roles = scripted(chapter("target"), chapter("draft"))
    alone, _ = answered(program, roles, ahead=False)
    assert {branch.role for branch in alone.trace.branches} == {
        "target"
    } and not alone.trace.failures
    left = iter(range(3))

    gone = RuntimeDown("gone", role="draft")
    roles["draft"].transport.fail = lambda text: None if next(left, None) is not None else gone
    request, _ = answered(program, roles)
    assert request.trace.finish == "stop" and request.trace.failures["draft"] >= 1
    sources = [step.source for step in request.trace.steps]
    assert sources[0] == "draft" and sources[-1] == "target" and len(sources) == 4
    roles["target"].transport.fail = lambda text: RuntimeDown("gone", role="target")
    with pytest.raises(RuntimeDown, match="target"):
        answered(program, roles)


@pytest.mark.parametrize(
    "program",
    [
        *BY_STEPS,
        *("budget_forcing", "best_of_n:samples=1", "self_consistency:samples=2", "early_exit"),
    ],
)
def test_a_full_context_ends_the_answer_and_loses_nothing(program):
    endless = lambda text, sampling: (
        "9" if text.startswith("The digit") else "and on it goes" + DELIMITER
    )
    roles = scripted(endless)
    set_facts(*roles.values(), context=150)
    request, _ = answered(program, roles)
    assert request.trace.finish == "length" and request.trace.text.startswith("and on it goes")
    assert len(request.trace.steps) > 3 and request.trace.tokens()["used"] >= 100
    set_facts(*roles.values(), context=10)
    with pytest.raises(PromptTooLong):
        answered(program, roles)


def test_a_plan_comes_first_and_the_answer_follows_it():
    def write(text, sampling):
        return ("Add them." if not seen.append(text) and len(seen) == 1 else "It is 7.") + chr(END)

    seen = []
    roles = scripted(write)
    request, told = answered("plan_then_solve", roles, ahead=False)
    assert request.trace.text == "It is 7." and [
        one["in_answer"] for one in told["generations"]
    ] == [
        False,
        True,
    ]
    second = "".join(chr(i) for i in roles["target"].transport.requests[1]["input_ids"])
    assert "How many?" in second and "Add them." in second and "carry out the plan" in second


def thinker(thoughts, conclusion="It is 7."):
    """Thinks one of some thoughts after each 'Wait', ends each of them by the marker, and then
    concludes.
    """

    def write(text, sampling):
        if THINK_END in text:
            return conclusion + chr(END)
        return thoughts[text.count("Wait")] + THINK_END + DELIMITER + conclusion + chr(END)

    return write


@pytest.mark.parametrize("ahead", [True, False])
def test_who_stops_thinking_is_told_to_wait(ahead):
    roles = scripted(thinker(["It is 6.", ", it is 7.", " again."]))
    request, _ = answered("budget_forcing:waits=2", roles, ahead=ahead)
    thinking, _, said = request.trace.text.partition(THINK_END)
    assert thinking.count("Wait") == 2 and "It is 6." in thinking and ", it is 7." in thinking
    assert said.strip() == "It is 7." and THINK_END not in said


def test_who_thinks_for_too_long_is_told_to_end():
    def write(text, sampling):
        return "It is 7." + chr(END) if THINK_END in text else ("hm " * 9 + DELIMITER) * 50

    request, _ = answered("budget_forcing:most=100", scripted(write))
    thinking, _, said = request.trace.text.partition(THINK_END)
    assert len(thinking) <= 101 and said.strip() == "It is 7."


def test_a_model_without_the_marker_goes_on_after_its_end():
    request, _ = answered("budget_forcing", scripted(lambda text, sampling: "done" + chr(END)))
    assert request.trace.text == f"done{DELIMITER}Waitdone" and request.trace.finish == "stop"


# -- a program of one's own


# how it is defined, what it does, and the error
CANNOT_BE = {
    "raises": ("def", "raise ZeroDivisionError('mine')", ProgramError, "ZeroDivisionError"),
    "exits": ("def", "sys.exit(3)", ProgramError, "SystemExit"),
    "exits on the loop": ("async def", "sys.exit(3)", ProgramError, "SystemExit"),
    "exits in a task": (
        "async def",
        "await asyncio.create_task(exits_on_the_loop.func(s, messages))",
        ProgramError,
        "SystemExit",
    ),
    "runs one that exits": (
        "def",
        "exits_on_the_loop.run(messages, backend=s.stream_executor.backend)",
        ProgramError,
        "SystemExit",
    ),
    "interrupts": ("async def", "raise KeyboardInterrupt", ProgramError, "KeyboardInterrupt"),
    "has cancelled its own work": (
        "async def",
        "work = asyncio.create_task(asyncio.sleep(60))\n    work.cancel()\n    await work",
        ProgramError,
        "CancelledError",
    ),
    "iterates too far": ("def", "next(iter(()))", ProgramError, "StopIteration"),
    "gives lookahead no number": (
        "def",
        "lr.converse(s, messages)\n    s += lr.lookahead('answer', max_tokens='many')",
        ConfigError,
        "max_tokens: input should be a valid integer",
    ),
    "says nothing": ("def", "s += sgl.user('only a question')", ProgramError, "leaves no answer"),
    "gives a number": ("def", "s['answer'] = 7", ProgramError, "no text but int"),
    "opens a role within another": (
        "def",
        "lr.converse(s, messages)\n    s += sgl.user('and now?')",
        ProgramError,
        "Nested roles",
    ),
    "takes back what it has shown": (
        "def",
        "lr.converse(s, messages)\n"
        "    s += lr.lookahead('answer', max_tokens=1000, show=True)\n"
        "    s['answer'] = 'But no: ' + s['answer']",
        ProgramError,
        "not what it has shown",
    ),
    "forgets the conversation": (
        "def",
        "s += lr.lookahead('answer', max_tokens=100)",
        ConfigError,
        "without the conversation",
    ),
    "forgets it within a turn": (
        "async def",
        "draft = lr.fork(s, 'draft')\n"
        "    draft += sgl.assistant(sgl.gen('short', max_tokens=8))\n"
        "    await lr.sync(draft)\n"
        "    s['answer'] = draft['short']",
        ConfigError,
        "without the conversation",
    ),
    "chooses without it": (
        "def",
        "s += sgl.assistant(sgl.select('answer', choices=['yes', 'no']))",
        ConfigError,
        "without the conversation",
    ),
}


@pytest.fixture
def mine(request, tmp_path):
    """The file and name of a program of these."""
    define, body, *_ = CANNOT_BE[request.param]
    (tmp_path / "mine.py").write_text(
        "import asyncio, sys\nimport sglang as sgl\nimport lr_sglang as lr\n"
        "from tests.failing_programs import exits_on_the_loop\n\n"
        f"@sgl.function\n{define} mine(s, messages):\n    {body}\n"
    )
    return f"{tmp_path}/mine.py:mine"


@pytest.mark.filterwarnings("ignore:Error in stream_executor")
@pytest.mark.parametrize(
    ("mine", "error", "match"),
    [(name, *said) for name, (_, _, *said) in CANNOT_BE.items()],
    indirect=["mine"],
)
def test_a_program_that_cannot_be_is_told_so(mine, error, match):
    with pytest.raises(error, match=match):
        answered(mine, fast_roles())


@pytest.mark.parametrize(
    "mine",
    ["exits", "exits on the loop", "interrupts", "has cancelled its own work"],
    indirect=True,
)
def test_one_that_exits_costs_its_own_answer(mine):
    """A run goes on, and its record has the error."""
    for record in records(mine, ("lookahead", "autoregressive")):
        assert record["error"]["kind"] == "ProgramError" and "mine" in record["error"]["message"]


TWICE = "import sglang as sgl\n@sgl.function\ndef twice(s, messages): pass"


@pytest.mark.parametrize(
    ("name", "source", "match", "hint"),
    [
        ("self_consistancy", "", "no program", None),
        ("self_consistency:sample=3", "", "no option 'sample'", None),
        ("self_consistency:3", "", "no KEY=VALUE", None),
        ("lookahead:request=1", "", "no option 'request'", None),
        ("judge", "", "no program", None),
        ("nowhere.py:x", "", "no file", None),
        ("", "", "no program", None),
        # files that do not hold the program
        ("mine.py:x", "x = 1", "no @sgl.function", None),
        ("mine.py:x", "x = 1 / 0", "ZeroDivisionError", None),
        ("mine.py:x", "y = 1", r"mine.py has no 'x'\nHint", "it has y"),
        ("mine.py:twice", TWICE.replace("messages", "asked, other"), "also needs other", None),
        ("mine.py:twcie", TWICE, "has no 'twcie'", "did you mean twice?"),
        ("mine.py:other", TWICE, "has no 'other'", "it has twice"),
    ],
)
def test_a_name_that_cannot_be_is_refused(here, name, source, match, hint):
    (here / "mine.py").write_text(source)
    with pytest.raises(ConfigError, match=match) as error:
        Program.load(name)
    assert hint is None or error.value.hint == hint


@sgl.function
def in_paths(s, messages):
    lr.converse(s, messages)
    target, paths = Proposer("target"), s.fork(2)
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda path: write_steps(path, lambda n: target.step(path)), paths))
    s["answer"] = texts[1]


def test_paths_are_written_in_threads_and_one_is_the_answer():
    (record,) = records(f"{__file__}:in_paths")
    made = record["program"]["generations"]
    assert record["text"].count(DELIMITER) == len(record["steps"]) - 1 == 11
    assert sum(one["in_answer"] for one in made) == 12 and len(made) == 24


@sgl.function
def by_the_draft(s, messages):
    lr.converse(s, messages)
    one = lr.fork(s, "draft")
    one += lr.step("step")
    s += one["step"]


def test_a_failure_of_a_runtime_is_named_and_leaves_a_record():
    roles = fast_roles()
    roles["draft"].transport.faults.dead = True
    (record,) = records(f"{__file__}:by_the_draft", roles=roles)
    assert record["error"]["kind"] == "RuntimeDown" and record["error"]["role"] == "draft"
    assert record["program"]["generations"] and record["failures"] == {"draft": 1}
    roles["target"].transport.faults.dead = True
    with pytest.raises(RuntimeDown):
        records("plan_then_solve", roles=roles)


@sgl.function
def chooses(s, messages):
    lr.converse(s, messages)
    s += sgl.gen("answer", choices=["yes", "no"])


@sgl.function
def chooses_in_a_fork(s, messages):
    lr.converse(s, messages)
    aside = lr.fork(s, "target")
    aside += sgl.select("which", choices=["yes", "no"])
    s["answer"] = aside["which"]


@pytest.mark.parametrize(
    "program",
    ["best_of_n", "specreason", "budget_forcing", "lookahead", chooses, chooses_in_a_fork],
)
def test_stopping_frees_the_runtimes(program):
    roles = scripted(lambda text, sampling: "x" * 50 + DELIMITER, seconds=60.0)
    request = AnswerRequest(sampling=Sampling(temperature=0.0))
    request.verifier = Exact()
    thread, raised = in_thread(lambda: run(program, request, roles, verifier="exact"))
    until(lambda: roles["target"].transport.running or not thread.is_alive(), 20)
    began = time.monotonic()
    request.stop()
    thread.join(30)
    assert [type(error) for error in raised] == [Cancelled] and time.monotonic() - began < 8
    assert not any(backend.transport.running for backend in roles.values())


@sgl.function
def stops_at_a_string(s, messages):
    lr.converse(s, messages)
    s += lr.lookahead("solution", max_tokens=1000, stop="STOP")


@pytest.mark.parametrize("ahead", [True, False])
def test_an_answer_that_a_stop_string_ended_says_so(ahead):
    roles = scripted(chapters(["One.", "Two STOP three.", "Four."]))
    request, _ = answered(stops_at_a_string, roles, ahead)
    assert request.trace.text == "One.\n\nTwo " and request.trace.finish == "stop"


def test_options_are_json_or_text():
    assert program_registry.parse_program("budget_forcing:word=So, then,waits=2").options == {
        "word": "So, then",
        "waits": 2,
    }
    assert program_registry.parse_program("budget_forcing:word=[1,2],waits=2").options == {
        "word": [1, 2],
        "waits": 2,
    }
    assert program_registry.parse_program("budget_forcing:").options == {}
    for text in ("[" * 90_000, "9" * 5000):  # no JSON that Python reads
        assert program_registry.parse_program(f"budget_forcing:word={text}").options["word"] == text


def test_methods_are_not_divided_within_an_option():
    forced = 'budget_forcing:word=["So","then"],waits=2'
    found = variants.methods(f"lookahead,{forced},rsd", layered=False)
    assert [method.program or method.mode for method in found] == ["lookahead", forced, "rsd"]


def test_what_a_program_leaves_behind_is_ended():
    @sgl.function
    def careless(s, messages):
        s += sgl.user("go on")
        s += sgl.assistant_begin()
        for fork in s.fork(3):
            fork += sgl.gen("never_read", max_tokens=500)
        s["answer"] = "mine"

    roles = scripted(lambda text, sampling: "x" * 50 + DELIMITER, seconds=60.0)
    request, _ = answered(careless, roles)
    assert request.trace.text == "mine" and request.trace.steps == []
    assert not any(backend.transport.running for backend in roles.values())


# -- shown while it is written


@sgl.function
def shows_its_turn(s, messages):
    lr.converse(s, messages)
    s += lr.lookahead("first", max_tokens=100, show=True)
    s += "And so: "
    s += lr.lookahead("second", max_tokens=1000, show=True)


@pytest.mark.parametrize("program", [shows_its_turn, "plan_then_solve"])
def test_steps_are_told_as_they_are_kept(program):
    told, request = [], AnswerRequest(limits=Limits(max_tokens=2000))
    request.on_step = lambda step: told.append(
        (step, request.trace.text, len(request.trace.ids), request.trace.finish)
    )
    run(program, request, fast_roles())
    assert [step for step, *_ in told] == request.trace.steps and len(told) >= 12
    written = [text for _, text, *_ in told]
    assert all(request.trace.text.startswith(text) for text in written) and len(
        set(written)
    ) == len(told)
    assert not any(finish for *_, finish in told)  # all of them before the end
    tokens = [size for *_, size, _ in told]
    assert tokens == sorted(tokens) and tokens[-1] <= len(request.trace.ids)
    assert ("And so: " in request.trace.text) == (program is shows_its_turn)


def test_what_was_shown_stays_when_the_rest_fails():
    roles = fast_roles()
    request = AnswerRequest(limits=Limits(max_tokens=2000))
    request.on_step = lambda step: setattr(
        roles["target"].transport.faults, "dead", step.position >= 3
    )
    with pytest.raises(RuntimeDown):
        run(shows_its_turn, request, roles)
    assert (
        request.trace.text.startswith("".join(step.text for step in request.trace.steps))
        and len(request.trace.steps) > 3
    )
    assert request.trace.finish == "" and request.trace.program["generations"]


# -- on the endpoint, and from outside


def served(program):
    """An endpoint whose operator has given a program."""
    modes = ("lookahead", "autoregressive")
    service = SERVICE.replace(program=program, lookahead=Lookahead(depth=3), modes=modes)
    return serving(fast_roles(), service)


SIMULATED = [{"role": "user", "content": "Simulated question 1?"}]


@pytest.mark.parametrize(
    ("program", "least"),
    [("self_consistency:samples=2", 1), ("plan_then_solve", 4), ("lookahead", 4), ("rsd", 1)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_endpoint_answers_by_it(program, least, stream):
    with served(program) as one:
        chunks = one.chunks(stream, messages=SIMULATED)
    shown = pieces(chunks)
    assert "".join(shown).count(DELIMITER) == 11 and len(shown) >= (least if stream else 1)
    assert chunks[-1]["usage"]["completion_tokens"] > 200


def test_a_stop_string_of_the_client_ends_what_is_shown():
    with served("plan_then_solve") as one:
        choice, *_ = one.answer(False, messages=SIMULATED, stop=DELIMITER)
    assert choice["finish_reason"] == "stop"
    assert choice["content"].strip() and DELIMITER not in choice["content"]


def test_an_endpoint_with_a_program_takes_no_raw_prompt():
    with served("self_consistency") as one:
        error = is_documented(one.ask(COMPLETIONS, prompt="Simulated question 1?"), 400)
    assert "program" in error["message"]


# -- step-level methods: whose step is kept, and who was asked


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


def unsure_roles(target=None, draft=None):
    return deployment(
        target=ScriptedTransport(target or chapter("target", even="both")),
        draft=Unsure(draft or chapter("draft", even="both")),
        judge=Unsure(lambda text, sampling: "n"),
    ).roles


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
    runtimes = unsure_roles()
    record = answered(program, runtimes)[0].trace
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
    draft = lambda text, sampling: chapter(next(turn), steps=3)(text, sampling)
    record = answered("spec_cot:width=3", unsure_roles(chapter("a", steps=3), draft))[0].trace
    assert record.text == "a 0\n\na 1\n\na 2"
    assert {step.source for step in record.steps} == {"draft"}


def agreeing(answers):
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
    runtimes = unsure_roles(agreeing(answers), agreeing(answers))
    runtimes["target"].tokenizer = CharTokenizer()
    runtimes["target"].tokenizer.template = template
    record = answered("early_exit:every=9,agree=3", runtimes, ahead)[0].trace
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


class Layered(ScriptedTransport):
    """As SGLang with a token layer: a token comes with a text that is only weighed."""

    def _reply(self, payload, text, sampling, aborted):
        reply = super()._reply(payload, text, sampling, aborted)
        if sampling["max_new_tokens"] == 0:
            reply["meta_info"]["output_token_logprobs"] = [[-7.0, 1, None]]
        return reply


@pytest.mark.parametrize("kind", [ScriptedTransport, Layered])
def test_what_a_program_reads_of_log_probabilities(kind):
    said = r"'step' has no log-probabilities.*\nHint: .*return_logprob"
    with pytest.raises(BadReply, match=said):
        answered(looks_without_asking, unsure_roles())
    likely, unlikely = math.exp(-0.1), math.exp((7 * -0.1 - 9) / 8)
    runtimes = unsure_roles()
    runtimes["target"].transport.__class__ = kind
    assert answered(weighs, runtimes)[0].trace.text == f"{likely:.3f} {unlikely:.3f} 0.000"


@pytest.mark.parametrize(("program", "judged"), [("rsd", False), ("rsd:by=judge", True)])
def test_a_program_whose_option_names_the_judge_has_it_with_any_verifier(program, judged):
    models = dict.fromkeys(("target", "draft", "judge"), "m")
    made = Plan(program=program, models=models).with_settings(lookahead=Lookahead(verifier="exact"))
    assert ("judge" in made.roles("lookahead")) == judged


class OpensThought(CharTokenizer):
    """The template opens the thinking, so that the text has no marker at its beginning."""

    def chat(self, messages, answer, arguments=types.MappingProxyType({})):
        made = super().chat(messages, answer, arguments)
        return made + self.written(f"{TAGS.opens}\n") if answer else made

    def written(self, text):
        return TokenText.of(text, self.encode(text, True), self.vocabulary)


@sgl.function
def thought_apart(s, question, family):
    s += sgl.user(question)
    s += sgl.assistant(sgl.separate_reasoning(sgl.gen("answer", max_tokens=200), model_type=family))


@pytest.mark.parametrize("tokenizer", [OpensThought, CharTokenizer])
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(
    ("family", "apart"), [("qwen3", True), ("deepseek-r1", True), ("mistral", False)]
)
def test_sglangs_words_part_a_thought_that_the_template_has_opened(tokenizer, ahead, family, apart):
    """As those that the model opens; a parser of other markers leaves the text as it was."""
    thought, said = "I add them.\n\n", "It is 17."
    text = f"{thought}{TAGS.closes}\n\n{said}"
    written = text if tokenizer is OpensThought else f"{TAGS.opens}\n{text}"
    roles = testing.runtimes(target=written, draft=written, judge="aligned")
    for backend in roles.values():
        backend.tokenizer = tokenizer()
    backend = LookaheadBackend(roles, judge_prompt="paper", ahead=ahead)
    s = thought_apart.run("How many?", family, backend=backend)
    answer, reasoning = s["answer"], s["answer_reasoning_content"]
    assert (answer, reasoning.strip()) == (
        (f"\n\n{said}", thought.strip()) if apart else (written, "")
    )
    assert s.text().endswith(answer) and (TAGS.closes in s.text()) is not apart
