"""What doctor says of runtimes that lack something: each is named by its line, and the verdict is
right. Over simulated runtimes.
"""

import json
import math
import random
from contextlib import contextmanager

import pytest

from lr_sglang.api import session
from lr_sglang.cli.doctor import _command, _verdict
from lr_sglang.config import ROLES, Lookahead
from lr_sglang.doctor.examination import Examination, _expected, examine
from lr_sglang.engine.server_facts import FedLayer
from lr_sglang.errors import RuntimeDown
from tests.called import called
from tests.scripted import set_facts
from tests.simulated.caching import PLAN, runtimes
from tests.simulated.model import Writer
from tests.stub import Worker


class Accepting(Writer):
    """Writes for a judge that accepts everything."""

    def judge(self, prompt):
        return "aligned"


# Whose status depends on how busy the machine is.
TIMED = ("milliseconds", "c1", "acceptance")


def not_well(found):
    """The titles of all lines that are not ok."""
    return [one.title for one in found.lines if one.status != "ok" and one.name not in TIMED]


def of(found, title):
    (line,) = [one for one in found.lines if one.title == title]
    return line


def test_runtimes_that_lack_nothing():
    roles = runtimes()
    transports = {role: backend.transport for role, backend in roles.items()}
    found = examine(roles, PLAN)
    assert not not_well(found) and found.able
    assert [one.mode for one in found.modes] == ["autoregressive", "lookahead", "lossless"]
    assert found.modes[0].speedup == 1 and found.modes[1].formula > 0
    costs = found.costs
    assert list(costs["target"]) == [
        *(f"token at {n}" for n in (1, 2, 4, 8, 16)),
        *("reading 32", "reading 256"),
    ]
    assert costs["judge"]["verdict"] >= 2
    assert sum(one.sent for one in transports.values()) < 40_000
    assert not any(one.running for one in transports.values())


@pytest.mark.parametrize(
    ("lacking", "title", "status", "says"),
    [
        # what makes it slower
        ({"cached": False}, "target reuse", "warning", "0.00 of the tokens"),
        ({"workers": 4}, "target reuse", "warning", "of the tokens"),
        ({"scored": False}, "target log-probabilities", "warning", "none"),
        ({"aborts": False}, "target abort", "warning", "not taken"),
        ({"slots": 3}, "target room", "warning", "3 requests at a time"),
        # what keeps lookahead from running
        ({"slots": 1}, "target room", "fault", "1 requests at a time"),
        ({"writer": Accepting}, "judge verdicts", "fault", "accepts 20 of 20 pairs"),
        ({"without": ("draft",)}, "draft server", "fault", "none is given"),
        ({"without": ("judge",)}, "judge server", "fault", "none is given"),
    ],
)
def test_what_is_lacking_is_a_warning_or_a_fault(lacking, title, status, says):
    found = examine(runtimes(**lacking), PLAN)
    line = of(found, title)
    assert line.status == status and says in line.found
    assert line.advice if status == "fault" else not_well(found) == [title]
    assert found.able == bool(found.modes) == (status == "warning")


def test_whether_a_target_takes_lines_and_how_it_would():
    roles = runtimes()
    line = of(examine(roles, PLAN), "target token layer fed")
    assert line.status == "ok" and "pip install" in line.found and "LR_SGLANG_FED=1" in line.found
    roles["target"].doubts.found["fed"] = "it speaks version 2"
    line = of(examine(roles, PLAN), "target token layer fed")
    assert (line.status, line.found) == ("warning", "it speaks version 2") and line.advice
    set_facts(roles["target"], fed=FedLayer(13, "seeds"), token_layer="NGRAM")
    found = examine(roles, PLAN)
    assert "12 tokens of the draft" in of(found, "target token layer fed").found
    assert [one.mode for one in found.modes] == ["sd", "lookahead+sd", "lossless"]
    set_facts(roles["target"], fed=None, token_layer="STANDALONE")
    del roles["target"].doubts.found["fed"]
    found = examine(roles, PLAN)
    assert [one.mode for one in found.modes] == ["sd", "lookahead+sd"]  # lossless is sd there
    line = of(found, "target token layer fed")
    assert "STANDALONE writes lossless answers alone" in line.found


def test_why_little_is_reused_is_what_the_servers_say():
    roles = runtimes(cached=False)
    set_facts(roles["target"], little_reuse="its prefix cache is off")
    assert of(examine(roles, PLAN), "target reuse").advice == "its prefix cache is off"


def test_seeds_that_are_ignored():
    roles = runtimes()
    set_facts(roles["draft"], seed_fault="one seed gives different texts")
    set_facts(roles["target"], seeded=False)
    found = examine(roles, PLAN)
    assert not_well(found) == ["target seeds", "draft seeds", "shared draws"] and found.able
    assert of(found, "draft seeds").found == "one seed gives different texts"


def test_a_draft_with_another_vocabulary():
    roles = runtimes()
    tokenizer = roles["draft"].tokenizer
    roles["draft"].tokenizer = type(
        "Other",
        (),
        {"__getattr__": lambda self, name: getattr(tokenizer, name), "vocabulary": "other"},
    )()
    found = examine(roles, PLAN)
    assert of(found, "vocabulary").status == "warning" and found.able
    assert [one.mode for one in found.modes] == ["autoregressive", "lookahead"]


def test_a_judge_that_is_not_asked_is_not_needed():
    exact = PLAN.with_settings(lookahead=Lookahead(verifier="exact"))
    for lacking in ({"without": ("judge",)}, {"writer": Accepting}):
        assert examine(runtimes(**lacking), exact).able


def test_a_runtime_that_fails_is_a_fault():
    roles = runtimes()

    async def gone(*_):
        raise RuntimeDown("it is gone", role="draft", hint="start it")

    roles["draft"].transport.generate = gone
    found = examine(roles, PLAN)
    line = of(found, "draft requests")
    assert line.status == "fault" and (line.found, line.advice) == ("it is gone", "start it")
    assert not found.able


# -- what short answers tell of the modes


def answers(paces, problems, spread=0.0, fed=False):
    """The modes, with so many tokens per second in the mean of answers to so many problems."""
    rng = random.Random(1)
    records = [
        {
            "question_id": problem,
            "mode": mode,
            "seconds": 64 / pace * math.exp(rng.gauss(0, spread)),
            "tokens": {"used": 64},
        }
        for problem in range(problems)
        for mode, pace in paces.items()
    ]
    made = Examination(modes=_expected(records, list(paces), 5), answers=problems, fed=fed)
    return made, " ".join(_verdict(made, _command({}, made)))


THREE = {"autoregressive": 10.0, "sd": 12.0, "lossless": 16.0}


@pytest.mark.parametrize(
    ("paces", "problems", "spread", "best"),
    [
        (THREE, 8, 0.02, "lossless"),
        (THREE, 5, 0.0, None),  # a handful
        (THREE, 8, 0.6, None),  # that differ too much
        ({**THREE, "sd": 15.9}, 8, 0.05, None),  # two that are as fast
        ({"autoregressive": 20.0, "lossless": 10.0}, 8, 0.02, "autoregressive"),
    ],
)
def test_a_mode_is_called_the_fastest_only_where_the_interval_says_so(
    paces, problems, spread, best
):
    found, said = answers(paces, problems, spread)
    assert (found.best.mode if found.best else None) == best
    assert f"--mode {best or 'auto'} QUESTION" in said
    if best is None:
        assert f"{problems} short answers do not tell which mode is the fastest" in said
        assert "lr-sglang bench" in said
    elif best != "autoregressive":
        assert f"fastest in {problems} short answers: {best}, 1." in said and " to 1." in said


def test_those_that_are_surely_faster_are_named_with_their_interval():
    _, said = answers({**THREE, "sd": 15.9}, 8, 0.05)
    assert "surely faster than autoregressive: sd 1." in said and "lossless 1." in said


@pytest.mark.parametrize(
    ("paces", "command"),
    [
        ({"sd": 12.0, "lossless": 10.0}, "auto"),  # a run refuses sd there
        ({"sd": 12.0, "lossless": 24.0}, "lossless"),
    ],
)
def test_of_a_fed_target_the_command_runs_and_other_layers_are_benchs(paces, command):
    _, said = answers(paces, 8, 0.02, fed=True)
    assert f"--mode {command} QUESTION" in said
    assert "lr-sglang bench --sweep token-layer=" in said
    _, said = answers(paces, 8, 0.02)
    assert "--sweep" not in said


# -- the command


@pytest.fixture
def doctor(monkeypatch):
    """Calls ``doctor`` over simulated runtimes, those that ``lacking`` describes."""

    def call(*arguments, code=0, **lacking):
        @contextmanager
        def opened(wanted, *_, **__):
            without = [role for role in ROLES if not wanted.runtime(role)]
            yield session.Session(runtimes(without=without, **lacking))

        monkeypatch.setattr(session, "session", opened)
        return called("doctor", *arguments, code=code)

    return call


def test_the_table_the_modes_and_the_command_to_start_with(doctor):
    said = " ".join(doctor("--deployment", "pocket", "--depth", "3").stdout.split())
    assert "ok target reuse 1.00 of the tokens" in said and "ok vocabulary" in said
    assert "mode tokens/s expected by the formulas best depth" in said
    assert "Lookahead can run here" in said
    assert "start with: lr-sglang run --deployment pocket --mode " in said


def test_as_json_and_its_status(doctor):
    found = json.loads(doctor("--deployment", "pocket", "--json", code=1, slots=1).stdout)
    assert found["ok"] is False and not found["modes"]
    (fault,) = [one for one in found["lines"] if one["status"] == "fault"]
    assert (fault["role"], fault["name"]) == ("target", "room")
    said = doctor("--deployment", "pocket", code=1, slots=1).stdout
    assert "Lookahead cannot run here: target room" in said


def test_a_role_that_does_not_answer_is_a_fault_and_the_others_are_examined(doctor, serving):
    target, nobody = serving(Worker()).url, "http://127.0.0.1:9"
    asked = ("--target", target, "--draft", nobody, "--judge", "target")
    found = json.loads(doctor(*asked, "--json", code=1).stdout)
    faults = {one["role"]: one["found"] for one in found["lines"] if one["status"] == "fault"}
    assert faults.keys() == {"draft"} and nobody in faults["draft"]
    assert any(one["role"] == "target" and one["name"] == "reuse" for one in found["lines"])
    assert "no deployment 'nothing' is up" in doctor("--attach", "nothing", code=2).output
    said = doctor("--target", nobody, code=1).stdout
    assert f"target server ({nobody}" in " ".join(said.split())
