"""Programs on the event loop behave as on SGLang's own executor: the same programs on both,
compared.
"""

import asyncio
import gc
import hashlib
import threading
import time
from typing import Any

import pytest
import sglang as sgl
from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.chat_template import get_chat_template
from sglang.lang.choices import ChoicesDecision
from sglang.lang.interpreter import ProgramState
from sglang.lang.ir import SglSamplingParams

from lr_sglang.errors import Cancelled, ConfigError, RuntimeDown
from lr_sglang.frontend import changes
from lr_sglang.frontend.executor import Executor, NotReady, sync
from tests import fixture_of, looping, run_by

changes.install_changes()


class _Written(BaseBackend):
    """Says something that follows from the prompt and the parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.chat_template = get_chat_template("chatml")
        self.committed = 0

    def get_chat_template(self) -> Any:
        return self.chat_template

    def commit_lazy_operations(self, s: Any) -> None:
        self.committed += 1

    def say(self, s: Any, params: SglSamplingParams) -> tuple[Any, dict[str, Any]]:
        if "fail" in (params.regex or ""):
            raise RuntimeDown("it is gone", role="target")
        shown = (
            str(s.text_),
            params.max_new_tokens,
            params.temperature,
            str(params.stop),
            params.regex,
        )
        text = hashlib.sha256(repr(shown).encode()).hexdigest()[:8]
        if params.regex == "think":
            text = f"<think>\nhm {text}\n</think>\n\nso {text}"
        return ([text + str(i) for i in range(params.n)] if params.n > 1 else text), {
            "tokens": len(text)
        }

    def choose(self, s: Any, choices: list[str]) -> ChoicesDecision:
        picked = choices[len(str(s.text_)) % len(choices)]
        return ChoicesDecision(picked, {"of": len(choices)})


class Threads(_Written):
    """For SGLang's executor."""

    def generate(self, s: Any, sampling_params: SglSamplingParams) -> tuple[Any, dict[str, Any]]:
        time.sleep(0.002)
        return self.say(s, sampling_params)

    def select(
        self, s: Any, choices: list[str], temperature: float, choices_method: Any
    ) -> ChoicesDecision:
        return self.choose(s, choices)


class Loop(_Written):
    """For ours."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__()
        self.loop = loop
        self.calls = self.cancelled = 0
        self.hold: asyncio.Event | None = None

    async def agenerate(self, s: Any, params: SglSamplingParams) -> tuple[Any, dict[str, Any]]:
        self.calls += 1
        try:
            await (asyncio.sleep(0.002) if self.hold is None else self.hold.wait())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.say(s, params)

    def opened_thought(self, s: Any) -> str:
        return ""

    async def aselect(
        self, s: Any, choices: list[str], temperature: float, method: Any
    ) -> ChoicesDecision:
        await asyncio.sleep(0)
        return self.choose(s, choices)


loop = fixture_of(looping)


@sgl.function
def turns(s, question):
    s += sgl.system("Be brief.") + sgl.user(question)
    s += sgl.assistant(
        sgl.gen("first", max_tokens=8) + " and " + sgl.gen("second", temperature=0.5)
    )
    with s.user():
        s += "more of "
        s += s["first"]
    with s.assistant():
        s += sgl.gen("third", stop=["\n"])


@sgl.function
def chosen(s, question):
    s += question + " "
    s += sgl.select("which", ["left", "right", "straight on"]) + "; " + sgl.gen("why", max_tokens=5)


@sgl.function
def forked(s, question):
    s += question + sgl.gen("plan")
    forks = s.fork(3)  # it is still generating
    forks += lambda i: f" {i}: " + sgl.gen("answer", max_tokens=4 + i)
    below = forks[1].fork(2)
    below += " below " + sgl.gen("deep")
    below.join()
    forks.join()
    s += " ".join(s["answer"]) + " ".join(forks[1]["deep"])


@sgl.function
def appended(s, question):
    s += question
    forks = s.fork(2)
    forks += lambda i: f" part {i} " + sgl.gen("part")
    forks.join("concate_and_append")
    s += " end " + sgl.gen("last")


@sgl.function
def scoped(s, question):
    s += question
    with s.var_scope("span"):
        s += " in "
        s += sgl.gen("inner")
    s += " out " + s["span"]
    s["own"] = "set by hand"
    with s.copy() as other:
        other += "copied" + sgl.gen("copied")


@sgl.function
def reasoned(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.separate_reasoning(sgl.gen("answer", regex="think"), model_type="qwen3"))


@sgl.function
def several(s, question):
    s += question + sgl.gen("first")
    s += " then " + sgl.gen("one", regex="[0-9]+")


@sgl.function
def nested(s, question):
    inner = turns.run(question=question + "?", backend=s.stream_executor.backend)
    s += inner["first"] + sgl.gen("outer")


PROGRAMS = [turns, chosen, forked, appended, scoped, reasoned, several, nested]


def seen(state: ProgramState) -> dict[str, Any]:
    executor = state.stream_executor
    state.sync()
    return {
        "text": state.text(),
        "variables": dict(executor.variables),
        "meta": dict(executor.meta_info),
        "messages": state.messages(),
        "error": state.error(),
    }


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.func.__name__)
def test_a_program_leaves_the_same_state(program: Any, loop: asyncio.AbstractEventLoop) -> None:
    theirs, ours = Threads(), Loop(loop)
    expected = seen(program.run(question="why", backend=theirs, max_new_tokens=77))
    state = program.run(question="why", backend=ours, max_new_tokens=77)
    assert type(state.stream_executor) is Executor
    assert seen(state) == expected
    # theirs looks for text before it is there
    assert ours.committed == theirs.committed or program is forked


def test_a_stream_is_refused_with_what_takes_its_place(loop: asyncio.AbstractEventLoop) -> None:
    with pytest.raises(ConfigError, match=r"stream=True.*\nHint: .*lr\.stream"):
        turns.run(question="why", backend=Loop(loop), stream=True)


async def _state(backend: Loop, text: str = "start ") -> ProgramState:
    backend.loop = asyncio.get_running_loop()
    state = ProgramState(Executor(backend, {}, SglSamplingParams(), None, False))
    state += text
    return state


@run_by(asyncio.run)
async def test_on_the_loop_reading_too_early_raises_and_waiting_works() -> None:
    s = await _state(Loop())
    s += sgl.gen("x")
    for read in (lambda: s["x"], s.text, s.sync, lambda: s.get_meta_info("x")):
        with pytest.raises(NotReady, match="generated"):
            read()
    await sync(s)
    assert s.text().endswith(s["x"]) and s.get_meta_info("x") == {"tokens": 8}


@run_by(asyncio.run)
async def test_on_the_loop_a_state_is_forked_when_it_has_generated() -> None:
    s = await _state(Loop())
    s += sgl.gen("x")
    with pytest.raises(NotReady, match="the state"):
        s.fork(1)
    await sync(s)
    left, right = s.fork(2)
    left += " left " + sgl.gen("y")
    left["own"] = "set by hand"
    s += " after the fork"
    await sync(s, left, right)
    assert left["x"] == s["x"] == right["x"] and "own" not in s
    assert s.text() == right.text() + " after the fork"
    assert left.text() == right.text() + " left " + left["y"]


class _Slow(Executor):
    """Takes its time between two expressions, and within one."""

    def _pause(self) -> None:
        self.paused.set()  # type: ignore[attr-defined]
        time.sleep(0.05)

    def _execute(self, expr: Any) -> None:
        self._pause()
        super()._execute(expr)


def test_a_thread_that_reads_waits_for_all_that_it_has_sent(
    loop: asyncio.AbstractEventLoop,
) -> None:
    made = _Slow(Loop(loop), {}, SglSamplingParams(), None, False)
    made.paused, state = threading.Event(), ProgramState(made)
    state += "start"
    assert made.paused.wait(10) and state.text() == "start"
    made.paused.clear()
    made.when_done(made._pause)
    state += sgl.gen("x") + " more"
    assert made.paused.wait(10) and state.text() == f"start{state['x']} more"


@run_by(asyncio.run)
async def test_a_state_that_has_failed_cannot_be_forked() -> None:
    s = await _state(Loop())
    s += sgl.gen("x", regex="fail")
    await sync(s)
    with pytest.raises(RuntimeDown):
        s.fork(1)


@run_by(asyncio.run)
async def test_cancelling_ends_the_request_and_tells_the_reader() -> None:
    backend = Loop()
    backend.hold = asyncio.Event()
    s = await _state(backend)
    fork = s.fork(1)[0]
    fork += sgl.gen("x")
    await asyncio.sleep(0)
    fork.stream_executor._task.cancel()
    await sync(fork)
    with pytest.raises(Cancelled):
        fork["x"]
    assert backend.cancelled == 1 and s.text() == "start "


@run_by(asyncio.run)
async def test_forks_have_no_threads_and_leave_no_objects() -> None:
    backend, threads = Loop(), threading.active_count()
    s = await _state(backend)
    for _ in range(20):
        forks = [s.fork(1)[0] for _ in range(10)]
        for fork in forks:
            fork += sgl.gen("step")
        await sync(*forks)
        s += forks[0]["step"]
    assert threading.active_count() == threads and backend.calls == 200
    del forks, fork
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, Executor)]
    assert sum(one.backend is backend for one in left) == 1


def test_speculative_execution_of_services_is_refused(loop: asyncio.AbstractEventLoop) -> None:
    @sgl.function(num_api_spec_tokens=8)
    def spec(s):
        s += sgl.gen("x")

    with pytest.raises(ConfigError, match="num_api_spec_tokens"):
        spec.run(backend=Loop(loop))


# What a state of SGLang's has, and what ours adds. ``Executor.forked`` makes some of it anew for a
# fork, and shares the rest: whoever adds a name here has decided which.
STATE = {
    *("arguments", "backend", "chat_template", "cur_images", "cur_role", "cur_role_begin_pos"),
    *("default_sampling_para", "fork_start_text_pos", "images_", "messages_", "meta_info"),
    *("num_api_spec_tokens", "sid", "speculated_text", "stream", "stream_text_event"),
    *("stream_var_event", "text_", "use_thread", "variable_event", "variables"),
    *("_idle", "_on_done", "_received", "_sent", "_task", "_waiting"),
    *("error_", "is_finished", "loop", "opened", "opening", "request", "turns"),
}


@run_by(asyncio.run)
async def test_a_fork_shares_no_attribute_that_a_new_release_adds() -> None:
    s = await _state(Loop())
    assert set(vars(s.stream_executor)) == STATE
