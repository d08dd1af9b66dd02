"""Servers are asked at start what they do: with seeds, if they run already, and with prompts."""

import random
from contextlib import nullcontext

import pytest

from lr_sglang.api import session
from lr_sglang.api import solve as api
from lr_sglang.api.configuration import Plan
from lr_sglang.config import ROLES, Deployment, Runtime, Sampling
from lr_sglang.engine.loop import call
from lr_sglang.engine.probes import seed_fault
from lr_sglang.engine.tokenizer import load_tokenizer
from lr_sglang.errors import ConfigError, RuntimeRefused
from lr_sglang.runtimes import Fleet, connect, load_deployment
from lr_sglang.runtimes.attach import without_seeds
from lr_sglang.sglang_api.plugin_protocol import FED_FIELD, PROTOCOL, place_of
from tests.stub import MODEL, Worker
from tests.trained import byte_level, saved

PROMPT = (11, 12, 13)


def draws(seed, place, count):
    """The tokens that a seed draws from a place of the answer on."""
    return [random.Random(f"{seed}/{place + n}").randrange(1000) for n in range(count)]


def asked(payload):
    params = payload["sampling_params"]
    place = place_of(params.get("custom_params"))
    return params["sampling_seed"], place, params["max_new_tokens"], len(payload["input_ids"])


# What is drawn, by the seed, the place in the answer, and how many tokens are asked for and given.
honours = lambda seed, place, count, position: draws(seed, place, count)
ignores = lambda seed, place, count, position: draws(random.random(), 0, count)


def fails(error):
    def drawn(*_):
        raise error

    return drawn


FAULTS = {
    "honours": (honours, ""),
    # as SGLang's deterministic inference
    "counts from the prompt's beginning": (
        lambda seed, place, count, position: draws(seed, position, count),
        "",
    ),
    "ignores": (ignores, "one seed gives different texts"),
    "greedy": (
        lambda seed, place, count, position: draws(0, position, count),
        "two seeds give the same text",
    ),
    "begins an answer in every request": (
        lambda seed, place, count, position: draws(seed, 0, count),
        "in two requests",
    ),
    "refuses": (
        fails(RuntimeRefused("custom_params: unknown field")),
        "could not be asked (custom_params: unknown field",
    ),
    "empty": (fails(KeyError("output_ids")), "could not be asked"),
}


class Server:
    """Draws as a function says."""

    def __init__(self, drawn):
        self.drawn, self.asked = drawn, 0

    async def generate(self, payload, request, timeout):
        self.asked += 1
        return {"output_ids": self.drawn(*asked(payload))}


@pytest.mark.parametrize(("drawn", "why"), FAULTS.values(), ids=FAULTS)
def test_what_a_server_does_with_seeds_is_found_out(drawn, why):
    server = Server(drawn)
    fault = call(seed_fault(server, PROMPT))
    assert fault == "" if not why else why in fault
    assert server.asked <= 5


class Drawing(Worker):
    """A server over HTTP that draws as a function says; ``seeds`` are those that it was sent."""

    def __init__(self, drawn, device="cpu"):
        super().__init__()
        self.seeds = []
        self.documents["/server_info"]["device"] = device

        def generate(handler, body):
            self.seeds.append(body["sampling_params"].get("sampling_seed"))
            handler.reply({"output_ids": drawn(*asked(body))})

        self.generate = generate


@pytest.fixture
def attached(serving):
    """Connects to servers at URLs, by role; yields their backends."""

    def connected(shared=None, **servers):
        urls = {role: serving(one).url for role, one in servers.items()}
        runtimes = {role: Runtime(url=url) for role, url in urls.items()}
        urls |= {role: urls[other] for role, other in (shared or {}).items()}
        plan = Deployment("attached", runtimes, shared=shared or {})
        return connect.connected(Fleet(plan, urls, dict.fromkeys(urls, MODEL)))

    return connected


def test_only_target_and_draft_at_a_url_are_asked_each_server_once(attached):
    one, two, three = Drawing(honours), Drawing(honours), Drawing(ignores)
    with attached(target=one, draft=two, judge=three) as roles:
        assert roles["target"].facts.seeded and roles["draft"].facts.seeded
        assert len(one.seeds) == len(two.seeds) == 5 and not three.seeds
        assert not list(without_seeds(roles))
    shared = Drawing(honours)
    with attached({"draft": "target"}, target=shared) as roles:
        assert roles["draft"].facts.seeded and len(shared.seeds) == 5


def test_a_server_that_ignores_seeds_is_sent_none_and_it_is_said_once(attached):
    with attached(target=Drawing(ignores), draft=Drawing(honours)) as roles:
        assert not roles["target"].facts.seeded and roles["draft"].facts.seeded
        (said,) = without_seeds(roles)
        assert said.startswith("target: seeds have no effect there: one seed gives different")
        assert "share no draws" in said and "lossless" in said


def test_a_token_layer_of_a_server_that_ignores_seeds_shares_no_draws(attached):
    for drawn, shares in ((honours, True), (ignores, False)):
        server = Drawing(drawn)
        layer = {"protocol": PROTOCOL, "width": 13, "draws": "seeds"}
        server.documents["/server_info"]["internal_states"][0][FED_FIELD] = layer
        with attached(target=server) as roles:
            assert roles["target"].facts.seeded is shares


def test_it_is_said_to_a_command_and_once_to_python(attached, monkeypatch):
    with attached(target=Drawing(ignores), draft=Drawing(ignores)) as roles:
        plan = Plan(deployment=load_deployment(), modes=("lossless",))
        told = []
        session.tell_faults(roles, plan, told.append)
        (text,) = told
        assert text.startswith("target and draft: seeds have no effect")
        session.tell_faults(
            roles, plan.with_settings(sampling=Sampling(temperature=0.0)), told.append
        )
        assert told == [text]

        monkeypatch.setattr(api, "deployed", lambda *_, **more: nullcontext(roles))
        monkeypatch.setattr(api, "model_of", lambda *_: MODEL)
        with pytest.warns(RuntimeWarning, match="target and draft: seeds have no effect") as said:
            api.deployment(target="http://127.0.0.1:1").open().close()
        assert len(said) == 1


def test_a_server_whose_settings_say_that_it_ignores_seeds_is_not_asked(attached):
    server = Drawing(ignores, "cuda")
    with attached(target=server) as roles:
        assert not roles["target"].facts.seeded and not server.seeds


class Tokenizing(Drawing):
    """Tokenizes and renders as a tokenizer does, which may be another one than the model's."""

    def __init__(self, known, begins=()):
        super().__init__(honours)

        def tokenize(body):
            if "messages" in body:
                return {"tokens": list(known.chat(body["messages"], True).ids)}
            return {"tokens": [*begins, *known.encode(body["prompt"])]}

        self.documents["/tokenize"] = tokenize
        self.documents["/detokenize"] = lambda body: {"text": known.decode(body["tokens"])}


POCKET = load_tokenizer(MODEL)
# What a server does, as arguments of ``Tokenizing``; the doubts that follow, and a part of their text.
OTHERS = {
    "no difference": ("", (), [], ""),
    "a prompt begins with a token": ("", (0,), ["tokens"], "<|endoftext|>"),
    "another template": ("USER: {{ messages[0].content }}", (), ["template"], "another template"),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("differs", OTHERS)
def test_a_server_of_any_role_that_makes_other_prompts_is_told(
    attached, role, differs, monkeypatch
):
    template, begins, found, text = OTHERS[differs]
    servers = {one: Tokenizing(POCKET) for one in ("target", "draft")}
    servers[role] = Tokenizing(load_tokenizer(MODEL, template), begins)
    with attached(**servers) as roles:
        doubts = {name: list(one.doubts.found) for name, one in roles.items()}
        assert doubts.pop(role) == found and not any(doubts.values())
        told = []
        plan = Plan(deployment=load_deployment(), modes=("lossless",))
        session.tell_faults(roles, plan, told.append)
        assert len(told) == len(found) and all(role in one and text in one for one in told)
        monkeypatch.setattr(api, "deployed", lambda *_, **more: nullcontext(roles))
        monkeypatch.setattr(api, "model_of", lambda *_: MODEL)
        if role == "judge":
            return  # whose verdicts would be asked for
        with pytest.warns(RuntimeWarning, match=text) if told else nullcontext():
            api.deployment(target="http://127.0.0.1:1").open().close()


@pytest.mark.parametrize("role", ROLES)
def test_a_server_of_any_role_whose_texts_would_be_wrong_is_refused(attached, role, tmp_path):
    others = Tokenizing(saved(byte_level("another one", 300), tmp_path, ("<s>",)))
    servers = {one: others if one == role else Tokenizing(POCKET) for one in ("target", role)}
    said = rf"^{role}: .*another tokenizer.*\nHint: .*runtimes\.{role}\.tokenizer"
    with pytest.raises(ConfigError, match=said), attached(**servers):
        pass
