"""With the exact verifier an answer is the target's own draw: with one seed, plain decoding and
lookahead write the same tokens at every temperature, however the answer is cut into steps.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import pytest

from lr_sglang import tasks
from lr_sglang.config import Lookahead, Sampling, Schedule
from lr_sglang.steps.trace import Trace
from tests import FULL
from tests.e2e.conftest import Pocket, ask, assert_complete, assert_idle
from tests.serving import HTTP

PROBLEMS = tasks.load("pocket", limit=20 if FULL else 3)


@dataclass(frozen=True)
class Case:
    """One way to draw, and to cut the answer."""

    sampling: Sampling
    schedule: Schedule = "async"
    most: int = 100  # tokens of a step
    width: int = 1
    max_tokens: int = 300
    shared_draws: bool = True
    reading: Literal["auto", "never"] = "never"

    def look(self, verifier: str = "exact") -> Lookahead:
        return Lookahead(
            schedule=self.schedule,
            depth=6 if self.width == 1 else 2,
            width=self.width,
            max_step_tokens=self.most,
            verifier=verifier,
            shared_draws=self.shared_draws,
            reading=self.reading,
        )


WARM, HOT = Sampling(temperature=0.6, seed=3), Sampling(temperature=1.0, seed=3)
GREEDY = Sampling(temperature=0.0)
CASES = {
    "sync, greedy": Case(GREEDY, "sync"),
    "read": Case(WARM, reading="auto"),
    "read, hot, cut by the budget": Case(HOT, max_tokens=37, reading="auto"),
    "read, greedy, filters": Case(GREEDY.replace(top_k=5), "sync", reading="auto"),
    "hot, pieces of 8": Case(HOT, most=8),
    "sync, pieces of 5": Case(WARM, "sync", most=5),
    "filters, two alternatives": Case(HOT.replace(top_k=5, min_p=0.05), width=2),
}
if FULL:
    CASES |= {"greedy": Case(GREEDY), "sync, whole steps": Case(WARM, "sync")}
    CASES |= {"whole steps": Case(WARM), "read, sync": Case(WARM, "sync", reading="auto")}
    CASES |= {f"budget of {most}": Case(WARM, most=13, max_tokens=most) for most in range(1, 41)}
    CASES |= {
        f"read, budget of {most}": Case(WARM, max_tokens=most, reading="auto")
        for most in range(1, 41)
    }
    CASES |= {
        "every token, pieces of 8": Case(HOT.replace(top_p=1.0), "sync", most=8),
        "three alternatives, pieces of 8": Case(HOT, "sync", most=8, width=3),
        "draws of their own": Case(WARM, shared_draws=False),
    }
    CASES |= {
        f"{sampling.temperature}, {schedule}, {most}": Case(sampling, schedule, most)  # type: ignore[arg-type]
        for sampling in (WARM, HOT)
        for schedule in ("async", "sync")
        for most in (5, 8, 13)
    }


def answers(pocket: Pocket, case: Case, verifier: str | None) -> list[Trace]:
    """The answers to all problems at once; ``verifier`` None is plain decoding."""

    look, plain = case.look(verifier or "exact"), verifier is None
    answer = lambda one: ask(pocket, one, look, case.sampling, case.max_tokens, plain)
    with ThreadPoolExecutor(len(PROBLEMS)) as pool:
        return list(pool.map(answer, PROBLEMS))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_one_that_the_target_draws_alone(pocket: Pocket, name: str) -> None:
    case = CASES[name]
    plain, ahead = answers(pocket, case, None), answers(pocket, case, "exact")
    assert [one.ids for one in ahead] == [one.ids for one in plain]
    assert [one.text for one in ahead] == [one.text for one in plain]
    assert [one.finish for one in ahead] == [one.finish for one in plain]
    assert all(one.lossless == "text" for one in plain + ahead)
    draws = case.shared_draws and case.sampling.temperature > 0
    assert all(one.shared_draws is draws for one in ahead)
    assert all(bool(one.own_draws) is not draws for one in ahead)
    for one in ahead if case.most == 100 else ():  # else steps are cut
        assert_complete(one)
    assert_idle(pocket.roles)
    used = sum(len(one.ids) for one in ahead)
    if case.reading == "auto":  # of those read: on a busy machine a draft may take too long
        read = sum(one.read_tokens for one in ahead)
        assert 0 < read <= 2 * sum(one.agreed_tokens for one in ahead)
    elif case.schedule == "sync":  # otherwise drafts may come too late on a busy machine
        assert sum(one.accepted for one in ahead) > 0
    if case.schedule == "sync" and case.most < 10:
        drafted = sum(s.tokens for one in ahead for s in one.steps if s.source == "draft")
        assert drafted >= used / 2, f"{drafted} of {used} tokens are accepted drafts"


def test_a_prompt_of_another_length_draws_with_the_same_numbers(pocket: Pocket) -> None:
    """A place counts from the prompt's end, so a draft whose template is longer agrees as often.
    At this temperature the probabilities hardly matter, only the numbers.
    """
    asked = "<|im_start|>user\nSam has 3 pens.<|im_end|>\n<|im_start|>assistant\n"
    prompts = (asked, f"<|im_start|>system\nBe kind, and think of the pens.<|im_end|>\n{asked}")
    sampling = {"temperature": 8.0, "max_new_tokens": 10, "ignore_eos": True}

    def equal(*seeds: int) -> int:
        written = [
            HTTP.post(
                f"{pocket.fleet.urls['target']}/generate",
                json={"text": prompt, "sampling_params": {**sampling, "sampling_seed": seed}},
                timeout=60,
            ).json()["output_ids"]
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        return sum(a == b for a, b in zip(*written, strict=True))

    assert sum(equal(seed, seed) for seed in range(5)) > 37  # of 50
    assert sum(equal(seed, 100 + seed) for seed in range(5)) < 5
