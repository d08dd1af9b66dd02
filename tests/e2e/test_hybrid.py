"""Hybrids (Gated DeltaNet) and mixtures of experts on a server without a GPU: the tokens of
transformers, from the cache and without it, with n-grams and without; every mode, with a hybrid in
every role.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lr_sglang import tasks
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.bench.servers import Caches
from lr_sglang.config import (
    ROLES,
    Deployment,
    Limits,
    Lookahead,
    Runtime,
    Sampling,
    Schedule,
    TokenLayer,
)
from lr_sglang.engine.loop import call
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.results.record import Record
from lr_sglang.runtimes.connect import deployed
from lr_sglang.runtimes.placement.hybrid import COPIES, STRATEGY
from lr_sglang.steps.branch import Request
from lr_sglang.tasks import Question
from tests import FULL, plan
from tests.e2e.conftest import Pocket
from tests.hybrid import outside

GREEDY = Sampling(temperature=0.0)
SLOTS, CHUNK = 16, 64


# A family of models, a token layer, and where a server keeps states if not as we start it.
DENSE = "qwen3_5_text", "none"
EXPERTS = [
    ("qwen3_next", "none"),
    *[("qwen3_5_moe_text", "ngram"), ("qwen3_moe", "none")] * FULL,
]
SERVERS = [DENSE, *[("qwen3_5_text", "ngram"), *EXPERTS] * FULL]
# transformers cuts words by rules of the family there, which are not those of the pocket models.
RULES = {"qwen3_5_moe_text"}
ROUNDING = [(*DENSE, "extra_buffer")] * FULL  # the strategy of GPUs


@pytest.fixture(scope="module", params=SERVERS, ids="-".join)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RuntimeBackend]:
    """One server, which plays all roles."""
    family, layer, *strategy = request.param
    folder = tmp_path_factory.mktemp(family)
    outside("make", folder, family)
    target = Runtime(model=str(folder), token_layer=TokenLayer(layer), max_running_requests=SLOTS)
    if strategy:
        extra = {
            "mamba-radix-cache-strategy": strategy[0],
            **STRATEGY["cuda"],
            "chunked-prefill-size": 4096,  # as on a GPU: one pass over most prompts
            "max-mamba-cache-size": COPIES["cuda"] * SLOTS,
        }
        target = target.replace(extra=extra)
    with deployed(alone(target), tmp_path_factory.mktemp("logs"), timeout=280) as roles:
        assert [*roles["target"].doubts.found] == ["tokens"] * (family in RULES)
        yield roles["target"]


def on(servers: Sequence[tuple[str, ...]]) -> pytest.MarkDecorator:
    """Runs a test on these servers."""
    return pytest.mark.parametrize("server", servers, indirect=True, ids="-".join, scope="module")


def alone(target: Runtime) -> Deployment:
    return Deployment("hybrid", {"target": target}, {"draft": "target", "judge": "target"})


def written(server: RuntimeBackend, ids: list[int], count: int) -> tuple[list[int], int]:
    """The greedy tokens after a prompt, and how much of it came from the cache."""
    params = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": params}
    reply = call(server.transport.generate(body, Request(), 120), server.loop)
    return list(reply["output_ids"])[:count], int(reply["meta_info"]["cached_tokens"])


def emptied(server: RuntimeBackend) -> None:
    """Empties its cache; a request that has just been answered may still run for a moment."""
    Caches(pytest.fail).empty({"target": server})


def words(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, 800) for _ in range(count)]


@on(list(dict.fromkeys([*SERVERS, *EXPERTS, *ROUNDING])))
@pytest.mark.timeout(900)
def test_the_tokens_are_those_of_transformers(server: RuntimeBackend) -> None:
    draw, folder = random.Random(7), server.facts.infos[0]["model_path"]
    prompts = [(words(draw, length), count) for length, count in ((5, 40), (64, 40), (150, 60))]
    found = json.loads(outside("greedy", folder, json.dumps(prompts)).splitlines()[-1])
    for (ids, count), theirs in zip(prompts, found, strict=True):
        assert len(set(theirs)) > 5
        assert written(server, ids, count)[0] == theirs
        assert written(server, ids + theirs[:20], count - 20)[0] == theirs[20:]


@on([*SERVERS, *ROUNDING])
@pytest.mark.timeout(900)
def test_answers_from_the_cache_are_those_without_it(server: RuntimeBackend) -> None:
    """Forks of earlier prompts and answers, eight at a time; then each prompt with an empty
    cache.
    """
    draw, seen = random.Random(5), []
    known = [words(draw, draw.randrange(40, 300))]
    emptied(server)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            asked = []
            for _ in range(8):
                base = draw.choice(known)
                cut = draw.choice((len(base), len(base), draw.randrange(1, len(base) + 1)))
                asked.append(base[:cut] + words(draw, draw.randrange(1, 30)))
            replies = pool.map(lambda ids: written(server, ids, 20), asked)
            for ids, (out, cached) in zip(asked, replies, strict=True):
                seen.append((ids, out, cached))
                known += [ids, ids + out[: draw.randrange(1, 20)]]
    assert sum(cached for _, _, cached in seen) > 0.5 * sum(len(ids) for ids, _, _ in seen)
    for ids, out, _ in seen:
        emptied(server)
        assert written(server, ids, 20) == (out, 0)


@pytest.mark.timeout(900)
def test_a_chain_of_steps_reuses_all_of_its_prefix(server: RuntimeBackend) -> None:
    """A state is kept at the end of every prompt and answer, where lookahead forks."""
    emptied(server)
    ids = words(random.Random(3), 314)
    for _ in range(7):
        out, cached = written(server, ids, 14)
        last = len(ids) if cached else 0
        ids += out
    assert last - 14 <= cached < len(ids)


@pytest.mark.timeout(900)
def test_lookahead_on_a_hybrid_is_lossless_and_reuses_prefixes(server: RuntimeBackend) -> None:
    roles = {"target": server, "draft": server}
    # The first answer checks what the target reads right after its prompt, where no state is kept
    # one token before the end: a chunk is computed again.
    for branch in answers(roles)[0]["branches"]:
        assert branch["shareable"] - branch["cached"] <= CHUNK
    records = answers(roles)
    for one in records:
        longest = max(step["tokens"] for step in one["steps"])
        lost = [b["shareable"] - b["cached"] for b in one["branches"] if b["role"] == "target"]
        # the first prompt was asked before, whose state at its last token but one was not kept
        assert max(lost[1:], default=0) <= longest, "the end of the prompt before it is kept"
    if (
        not server.facts.token_layer
    ):  # a token layer keeps no answer that ends among verified tokens
        sums = [r["tokens"]["target"] for r in records]
        assert sum(t["reused"] for t in sums) > 0.9 * sum(t["shareable"] for t in sums)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.timeout(900)
def test_every_mode_with_a_hybrid_in_every_role(
    pocket: Pocket, server: RuntimeBackend, role: str
) -> None:
    """A judge with random weights accepts what it likes."""
    roles = {**pocket.roles, role: server}
    layer = "+sd" if roles["target"].facts.token_layer else ""
    # a draft that is late is refused without the judge; in sync none is
    schedule: Schedule = "sync" if role == "judge" else "async"
    modes = (f"lookahead{layer}", "auto")
    records = answers(roles, *modes, schedule=schedule)
    judged = records[: 2 * len(modes)]
    assert sorted(r["mode"] for r in judged if r["tokens"]["used"]) == sorted(2 * modes)
    assert sum(r["tokens"][role]["calls"] for r in records if r["mode"] != "auto") > 0


@pytest.mark.parametrize("layer", ["none", *["ngram"] * FULL])
@pytest.mark.timeout(900)
def test_the_pocket_hybrid_answers_right(pocket: Pocket, tmp_path: Path, layer: str) -> None:
    """Alone, and the same words in ``lossless``; the judged mode ends."""
    target = Runtime(model="pocket:target-hybrid", token_layer=TokenLayer(layer))
    asked = Deployment("hybrid", {"target": target.replace(max_running_requests=SLOTS)})
    with deployed(asked, tmp_path, timeout=280) as own:
        for schedule in ("async", "sync") if FULL else ("async",):
            settings = Plan().with_settings(
                lookahead=Lookahead(depth=4, schedule=schedule), sampling=GREEDY
            )
            modes = ("sd", "lookahead+sd") if layer == "ngram" else ("autoregressive", "lookahead")
            works = plan(tasks.load("pocket", limit=12 if FULL else 3), [*modes, "lossless"])
            records = list(Runner({**pocket.roles, **own}, settings, 1).run(works))
            exact = [r for r in records if r["mode"] != modes[1]]
            assert all(r["correct"] for r in exact)
            assert 3 * len({(r["question_id"], r["ids_digest"]) for r in exact}) == len(works)


def answers(
    roles: dict[str, RuntimeBackend], *modes: str, schedule: Schedule = "async"
) -> list[Record]:
    """Records of two questions in some modes, and by the exact verifier, where each has the text of
    plain decoding.
    """
    ahead = Lookahead(depth=4, max_false_accepts=1.0, schedule=schedule)
    judged = Plan().with_settings(lookahead=ahead, sampling=GREEDY, limits=Limits(160))
    exact = judged.with_settings(lookahead=ahead.replace(verifier="exact"))
    layered = bool(roles["target"].facts.token_layer)
    # ``lossless`` is written by a token layer alone
    plain, same = ("sd", "lookahead+sd") if layered else ("autoregressive", "lossless")
    questions = [Question("q", "How many?"), Question("r", "Which of them?")]
    wanted = list(Runner(roles, exact, 1).run(plan(questions, [plain, same])))
    records = list(Runner(roles, judged, 1).run(plan(questions, modes)))
    assert not [r["error"] for r in wanted + records if r["error"]]
    for question in questions:
        assert len({r["ids_digest"] for r in wanted if r["question_id"] == question.id}) == 1
    return records + [r for r in wanted if r["mode"] == same]
