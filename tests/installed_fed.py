"""The plugin's layer `fed` with the parts of the installed SGLang that it hangs on: its n-gram
worker, its HTTP application and keys, its hooks.

SGLang chooses its platform at its first import: ``tests/integration/test_fed_server.py`` runs these
in a process of their own, as on a CPU.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.srt.entrypoints import http_server
from sglang.srt.managers.io_struct import AddExternalCorpusReqInput
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.speculative.ngram_worker import NGRAMWorker
from sglang.srt.utils import auth
from starlette.applications import Starlette
from starlette.testclient import TestClient

from lr_sglang.plugin import hooks, route, verification
from lr_sglang.plugin.feeding import Feeder
from lr_sglang.sglang_api import plugin_protocol as protocol
from lr_sglang.sglang_api.plugin_protocol import FED_FIELD, MAX_MESSAGE_BYTES, ROUTE
from tests.fed import VOCABULARY, WIDTH, Request, Server, text

# -- the worker of the installed release


class Corpus:
    """Guesses nothing."""

    def synchronize(self):
        pass

    def batch_get(self, rids, tokens, lengths):
        self.asked = dict(zip(rids, tokens, strict=True))
        guesses = np.zeros((len(rids), WIDTH), dtype=np.int64)
        guesses[:, 0] = [one[-1] for one in tokens]
        mask = np.zeros((len(rids), WIDTH, WIDTH), dtype=np.uint8)
        mask[:, :, 0] = mask[:, range(WIDTH), range(WIDTH)] = 1
        return guesses.reshape(-1), mask.reshape(-1)


class Installed(Server):
    """Its guesses are prepared by the installed worker's own code."""

    def __init__(self, overlap, grammar):
        super().__init__("", overlap, grammar)
        self.max_trie_depth, self.ngram_corpus = 8, Corpus()
        self._efficient_concat_last_n = NGRAMWorker._efficient_concat_last_n.__get__(self)

    def batch(self, requests):
        rows = [[*one.last, *[0] * (WIDTH - len(one.last))] for one in requests]
        spec_info = SimpleNamespace(
            accept_tokens=torch.tensor(rows).flatten(),
            accept_lens=torch.tensor([len(one.last) for one in requests]),
        )
        for one in requests:
            one.origin_input_ids = one.origin_input_ids_unpadded = [5, 6, 7]
        return SimpleNamespace(
            reqs=requests,
            spec_info=spec_info,
            has_grammar=self.grammar,
            grammar_needs_sync=lambda: self.grammar,
        )

    def plain(self, worker, batch):
        return NGRAMWorker._prepare_draft_tokens(worker, batch)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("grammar", [False, True])
def test_the_installed_worker_prepares_what_the_layer_reads(overlap, grammar):
    server = Installed(overlap, grammar)
    fed, other = Request("fed", text(1)), Request("other", text(2))
    server.send(("fed", 0, fed.text))
    server.run(fed, other)
    assert fed.passes == -(-(len(fed.text) - 1) // WIDTH)
    assert (server.counts["failures"], server.counts["late"]) == (0, 0)


def test_the_hooks_have_their_places_in_the_installed_release(monkeypatch):
    registered = {}
    monkeypatch.setattr(
        HookRegistry, "register", lambda name, hook, kind: registered.update({name: kind})
    )
    hooks.install(fed=True, seeds=True)
    hooks.need(registered)
    assert len(registered) == 8
    assert registered[f"{hooks._WORKER}._prepare_draft_tokens"] == HookType.AROUND


def test_where_acceptance_is_simulated_seeds_are_neither_honoured_nor_told(monkeypatch):
    """SGLang overwrites what was verified."""
    registered = []
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "2.5")
    monkeypatch.setattr(hooks, "FEEDER", Feeder())
    monkeypatch.setattr(HookRegistry, "register", lambda name, hook, kind: registered.append(hook))
    hooks.install(fed=True, seeds=True)
    assert hooks._tell_seeds not in registered and verification.verify_with_seeds not in registered
    assert hooks.FEEDER.draws == "coins"


def test_an_untested_release_goes_on_without_the_layer_and_says_so(monkeypatch):
    registered, logged = {}, []
    monkeypatch.setattr(hooks.logger, "error", lambda *words: logged.append(words[0] % words[1:]))
    monkeypatch.setattr(hooks, "FEEDER", Feeder())
    monkeypatch.setattr(hooks.release, "version", lambda: "0.5.99")
    monkeypatch.setattr(
        HookRegistry, "register", lambda name, hook, kind: registered.update({name: hook})
    )
    hooks.install(fed=True, seeds=True)
    ((name, tell),) = registered.items()
    assert name.endswith("get_internal_state")
    found = SimpleNamespace(internal_state={})
    tell(found, SimpleNamespace(draft_worker=None))
    assert "SGLang 0.5.99 is not tested; tested with" in found.internal_state[FED_FIELD]["refused"]
    assert ["token layer fed is refused: SGLang 0.5.99" in line for line in logged] == [True]


def test_sglangs_own_operator_walks_the_trees_of_the_seeded_verification():
    """Two chains 5 -> 6 -> 7, and 5 -> 6 with a node that nothing leads to."""
    n, links = 3, torch.tensor([[1, 2, -1], [1, -1, -1]])
    tree = SimpleNamespace(
        draft_token=torch.tensor([5, 6, 7, 5, 6, 9]),
        draft_token_num=n,
        tree_topk=-1,
        retrieve_index=torch.arange(2 * n).view(2, n),
        retrieve_next_token=links,
        retrieve_next_sibling=torch.full_like(links, -1),
    )
    like = (
        torch.zeros(2 * n, dtype=torch.int32),
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(2, n, dtype=torch.int32),
    )
    wanted = torch.tensor([[6, 7, 8], [6, 4, 9]])
    tokens, counts, nodes = verification._walk(tree, wanted, like)
    assert (counts.tolist(), nodes.tolist()) == ([3, 2], [[0, 1, 2], [3, 4, -1]])
    assert tokens.tolist()[:5] == [6, 7, 8, 6, 4]


# -- the route


class Manager:
    """A tokenizer manager that keeps what it sends to the scheduler."""

    def __init__(self, algorithm="NGRAM"):
        self.server_args = SimpleNamespace(speculative_algorithm=algorithm)
        self.model_config = SimpleNamespace(vocab_size=VOCABULARY)
        self.sent = []

    def _dispatch_to_scheduler(self, message):
        self.sent.append(message)


@pytest.fixture
def manager(monkeypatch):
    manager = Manager()
    state = SimpleNamespace(tokenizer_manager=manager)
    monkeypatch.setattr(http_server, "get_global_state", lambda: state)
    monkeypatch.setattr(http_server, "app", Starlette())
    route.add_route()
    return manager


@pytest.fixture
def http(manager):
    return TestClient(http_server.app)


def test_the_route_sends_a_message_on_by_sglangs_own_path(manager, http):
    body = {"lines": [["a", 3, [1, 2]], ["b", 0, [VOCABULARY]], ["c", 0, []]]}
    answer = http.post(ROUTE, json=body)
    assert (answer.status_code, answer.json()["taken"]) == (200, 2)
    assert answer.json()["refused"] == [
        ["b", f"a token id is outside of the vocabulary of {VOCABULARY}"]
    ]
    (message,) = manager.sent
    assert type(message) is AddExternalCorpusReqInput
    server = Server()
    assert server.feeder.keep(None, server, message) is None
    assert list(server.feeder._lines.get("a").ids) == [1, 2]
    assert server.counts["lines"] == 2


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"nothing",
            b"[]",
            b'{"lines": [["a", 0, [1e400]]]}',
            b'{"lines": [["a", 0, [1',
            b"\xff",
        ),
        b"[" * 100_000,
        b'{"lines": [["a", 0, [%d]]]}' % 10**30,
    ],
    ids=lambda body: body[:20],
)
def test_a_malformed_message_is_answered_with_the_reason(manager, http, body):
    answer = http.post(ROUTE, content=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"]
    assert not manager.sent


def test_a_message_that_is_too_large_is_not_read_to_its_end(manager, http):
    def endless():
        for _ in range(50):
            yield b" " * (MAX_MESSAGE_BYTES // 10)

    answer = http.post(ROUTE, content=endless())
    assert answer.status_code == 413 and "bytes" in answer.json()["error"]["message"]
    assert not manager.sent


def test_a_server_without_n_grams_says_so(manager, http):
    manager.server_args.speculative_algorithm = None
    answer = http.post(ROUTE, json={"lines": [["a", 0, [1]]]})
    assert answer.status_code == 400 and "NGRAM" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("keys", "given", "status"),
    [
        (("", ""), "", 200),
        (("user", ""), "", 401),
        (("user", ""), "user", 200),
        (("user", "admin"), "user", 200),
        (("user", "admin"), "other", 401),
        (("", "admin"), "", 200),
    ],
)
def test_the_route_asks_for_the_key_of_generate(manager, keys, given, status):
    """An admin's route refuses the user's key where there are both."""
    app = http_server.app
    auth.add_api_key_middleware(app, api_key=keys[0], admin_api_key=keys[1])
    headers = {"Authorization": f"Bearer {given}"} if given else {}
    answer = TestClient(app).post(ROUTE, json={"lines": []}, headers=headers)
    assert answer.status_code == status


def test_the_protocol_is_version_one():
    """Another number is another protocol, to which connect and the docs must refer too."""
    assert (protocol.PROTOCOL, protocol.ROUTE) == (1, "/lr_sglang/lines")
