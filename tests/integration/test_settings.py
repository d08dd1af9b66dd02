"""Which functions a setting passes on its way from the command line to a request, or to the tree of
steps.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest
from click.testing import CliRunner

from lr_sglang.cli import cli
from lr_sglang.engine.loop import background
from tests.unit.test_house import HEIGHT, ROOT, part_of

SETTINGS: dict[str, Any] = {"temperature": 0.4375, "depth": 7, "seed": 987_654}
AT_MOST = 12  # functions

PLAN = ("cli/run.py run", "cli/settings.py settle")
ANSWER = ("api/runner.py Runner._make", "verifiers/requests.py RequestMaker.make")
REQUEST = (
    *("frontend/backend.py RuntimeBackend.agenerate", "frontend/backend.py RuntimeBackend.ask"),
    *("engine/client.py Client.generate", "engine/client.py Client._exchange"),
)
# From the options to the bytes of a request or, the depth, to the tree that it limits. Between two
# of them a record may carry the setting: the plan, the request for an answer, the sampling
# parameters, the branch.
PASSES = {
    "temperature": (
        *(*PLAN, *ANSWER, "algorithm/answer.py Answer.gen_step", "frontend/dsl.py step"),
        *(
            "frontend/execution.py Execution.resolve",
            "frontend/execution.py Execution._generate",
            *REQUEST,
        ),
    ),
    "depth": (*PLAN, *ANSWER, "algorithm/answer.py Answer.__aenter__"),
    "seed": (*PLAN, *ANSWER, "algorithm/answer.py Answer.begin", *REQUEST),
}
# Others that are given such a record by then: what is written to the records, servers, and who
# checks or counts.
READS = {
    "temperature": {"api/configuration.py Plan.configured", "cli/execute.py Execution._servers"},
    "depth": {
        *(
            f"api/configuration.py Plan.{name}"
            for name in ("checked", "_check", "roles", "configured", "branches")
        ),
        *(
            f"algorithm/policy/{name}"
            for name in ("room.py in_flight", "room.py limit", "fixed.py Policy.__init__")
        ),
        *(f"algorithm/policy/__init__.py {name}" for name in ("experience_for", "make")),
        *(
            "verifiers/requests.py RequestMaker.prepare",
            "verifiers/requests.py RequestMaker.measure_costs",
        ),
        *(
            "verifiers/requests.py RequestMaker.check_judge",
            "verifiers/requests.py RequestMaker._check",
        ),
        *(
            "verifiers/requests.py RequestMaker.__init__",
            "api/runner.py Runner.__init__",
            "api/runner.py Runner._check",
        ),
        "cli/session.py shortages",
        *("lookahead.py propose", "steps/tree.py StepTree.to_propose"),
    },
    "seed": {
        *("api/configuration.py Plan.configured", "cli/execute.py Execution._servers"),
        *("algorithm/answer.py Answer.gen_step", "algorithm/answer.py Answer.watch"),
        *("algorithm/branches.py Branches.begin", "algorithm/branches.py Branches.expect"),
        *("algorithm/policy/fixed.py Policy.begun", "lookahead.py propose", "lookahead.py expand"),
        *("engine/prefix_reuse.py PendingReuse.add", "engine/pool.py Pool.enter"),
        *("engine/request.py Request.__init__", "engine/request.py Request.sending"),
    },
}
# To make, check or copy a record is not to pass it on.
RECORDS = (
    "config.py",
    "config_model.py",
    "modes.py",
    "frontend/values.py",
    "algorithm/answer_request.py",
)
DERIVED = "algorithm/answer_request.py AnswerRequest.seed"  # a branch's own
LAST = {
    "temperature": REQUEST[-1],
    "depth": "steps/tree.py StepTree.to_propose",
    "seed": REQUEST[-1],
}


class Traced:
    """Notes the functions of the package that are given a setting, until its last one is.

    A function is given it as an argument, or as a field of an argument or of what a function that
    it calls returns, or it makes an object with it.
    The options are given to many, of which only those count that make records of them.
    """

    def __init__(self, setting: str) -> None:
        self.found: dict[str, None] = {}
        self._values = {SETTINGS[setting]}
        self._derives, self._last = setting == "seed", LAST[setting]

    def event(self, frame: FrameType, event: str, value: Any) -> None:
        if self._last in self.found or event not in ("call", "return"):
            return
        name, makes = (
            named(frame.f_code),
            frame.f_code.co_filename == "<string>" and event == "call",
        )  # a dataclass
        if not name and not makes:
            return
        if event == "call":
            if any(map(self._has, arguments(frame))):
                self._note(*list(callers(frame))[:1], name)
        elif name == PLAN[-1] and name in self.found:
            self._note(*callers(frame))
        elif name == DERIVED and self._derives:
            self._values.add(value)
        elif type(value) not in (int, float) and self._has(value):
            self._note(name, *list(callers(frame))[:1])

    def _note(self, *names: str) -> None:
        self.found |= dict.fromkeys(name for name in names if name and not name.startswith(RECORDS))

    def _has(self, given: Any) -> bool:
        if isinstance(given, dict):
            inner = given.get("sampling_params", {})  # the body of a request
            found = (
                [*given.values(), *inner.values()] if not SETTINGS.keys() <= given.keys() else []
            )
        else:
            found = [given, *fields(given)]
        return any(type(one) in (int, float) and one in self._values for one in found)


@contextmanager
def profiled(all_of: Iterable[Traced]) -> Iterator[None]:
    """They see the calls and returns of this thread, of the event loop's and of those that begin
    meanwhile.
    """

    def event(*about: Any) -> None:
        for one in all_of:
            one.event(*about)

    def profile(function: Any) -> None:
        background().call_soon_threadsafe(sys.setprofile, function)
        threading.setprofile(function)
        sys.setprofile(function)

    profile(event)
    try:
        yield
    finally:
        profile(None)


def fields(value: Any) -> Iterator[Any]:
    """Of an object of the package."""
    if type(value).__module__.startswith("lr_sglang"):
        if dataclasses.is_dataclass(value):
            yield from (getattr(value, field.name, None) for field in dataclasses.fields(value))
        else:
            yield from getattr(value, "__dict__", {}).values()


def arguments(frame: FrameType) -> Iterator[Any]:
    code = frame.f_code
    count = (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & 4)
        + bool(code.co_flags & 8)
    )
    return (frame.f_locals.get(name) for name in code.co_varnames[:count])


def named(code: CodeType) -> str:
    """File and name of a function of the package, for a function within it the outer one's; '' for
    any other.
    """
    path = code.co_filename
    for folder in (f"{ROOT}/lr_sglang/", f"{ROOT}/programs/"):
        if path.startswith(folder):
            return f"{path.removeprefix(folder)} {code.co_qualname.split('.<locals>')[0]}"
    return ""


def callers(frame: FrameType) -> Iterator[str]:
    """The functions of the package that wait for this one, the nearest first, up to the command's
    or the task's.
    """
    outer = frame.f_back
    while outer and not outer.f_code.co_filename.endswith("asyncio/events.py"):
        if name := named(outer.f_code):
            yield name
            if name == PLAN[0]:
                return
        outer = outer.f_back


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    command = [
        sys.executable,
        "-m",
        "cli",
        "simulate",
        "--port",
        "0",
        "--json",
        "--steps",
        "6",
        "--step-seconds",
        "0.02",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield json.loads(process.stdout.readline())["urls"]
        process.terminate()


@pytest.fixture(scope="module")
def traced(servers: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Traced]:
    """All settings, in one run."""
    import lr_sglang.api.runner  # noqa: F401 - SGLang, which the run would import otherwise

    options = [f"--{name}={value}" for name, value in (SETTINGS | servers).items()]
    found = {setting: Traced(setting) for setting in SETTINGS}
    with profiled(found.values()):
        done = CliRunner().invoke(
            cli, ["run", "How?", *options, "--output", str(tmp_path_factory.mktemp("x") / "run")]
        )
    assert not done.exit_code, done.output
    return found


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_passes_few_functions_and_goes_down(
    setting: str, traced: dict[str, Traced]
) -> None:
    passes = PASSES[setting]
    assert len(passes) <= AT_MOST
    heights = [HEIGHT[part_of(ROOT / "lr_sglang" / name.split()[0])] for name in passes]
    assert heights == sorted(heights, reverse=True)
    assert set(traced[setting].found) == {*passes, *READS[setting]}
