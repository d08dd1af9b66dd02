"""A model of random weights with the vocabulary of a published one, Qwen3's 152,000 tokens, on real
servers: its ids, its conversations, and the text of ``lossless``.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.config import Deployment, Limits, Lookahead, Runtime, Sampling, TokenLayer
from lr_sglang.engine.loop import call
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.runtimes.connect import deployed
from lr_sglang.tasks import Question
from tests import FULL, plan
from tests.commands import tokenizer_of
from tests.conversations import CONVERSATIONS, TEXTS
from tests.hybrid import outside

QUESTIONS = [Question(str(number), text) for number, text in enumerate(TEXTS[: 4 if FULL else 2])]


@pytest.fixture(scope="module", params=["none", *["ngram"] * FULL])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RuntimeBackend]:
    """One server, which plays all roles."""
    source, folder = tokenizer_of("qwen3"), tmp_path_factory.mktemp("qwen3")
    outside("make", folder, "qwen3", source)
    extra = {"reasoning-parser": "qwen3"}
    target = Runtime(model=str(folder), token_layer=TokenLayer(request.param), extra=extra)
    shared = Deployment("qwen3", {"target": target}, {"draft": "target", "judge": "target"})
    with deployed(shared, tmp_path_factory.mktemp("logs"), timeout=280) as roles:
        yield roles["target"]


def asked(server: RuntimeBackend, path: str, **body: Any) -> dict[str, Any]:
    return call(server.transport.post(path, body), server.loop)


@pytest.mark.timeout(900)
def test_prompts_are_the_servers_own(server: RuntimeBackend) -> None:
    tokenizer = server.tokenizer
    assert not server.doubts.found and server.facts.forces_reasoning
    for text in TEXTS:
        ids = asked(server, "/tokenize", prompt=text)["tokens"]
        assert ids == list(tokenizer.encode(text))
        assert asked(server, "/detokenize", tokens=ids)["text"] == tokenizer.decode(ids) == text
    for messages, arguments in CONVERSATIONS:
        if "tools" in arguments:
            continue  # the endpoint lets the target render these
        body = {"messages": messages, "chat_template_kwargs": arguments}
        ids = asked(server, "/tokenize", **body)["tokens"]
        assert ids == list(tokenizer.chat(messages, True, arguments).ids)


@pytest.mark.timeout(900)
def test_lossless_is_plain_decoding(server: RuntimeBackend) -> None:
    # ``lossless`` is written by a token layer alone
    layered = bool(server.facts.token_layer)
    plain, ahead = ("sd", "lookahead+sd") if layered else ("autoregressive", "lossless")
    settings = Plan().with_settings(
        lookahead=Lookahead(depth=3, max_step_tokens=20, verifier="exact"),
        sampling=Sampling(temperature=1.0, top_k=20, seed=7),
        limits=Limits(100),
    )
    works = plan(QUESTIONS, [plain, ahead])
    records = list(Runner({"target": server, "draft": server}, settings, 1).run(works))
    assert not [one["error"] for one in records if one["error"]]
    for question in QUESTIONS:
        first, second = (one for one in records if one["question_id"] == question.id)
        assert (first["ids_digest"], first["text"]) == (second["ids_digest"], second["text"])
        assert len(second["steps"]) > 4 and second["tokens"]["draft"]["calls"] > 0
