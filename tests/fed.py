"""A scheduler with the n-gram layer of SGLang, around which the plugin's layer `fed` works."""

import itertools
import random
from array import array
from types import SimpleNamespace

import numpy as np

from lr_sglang.plugin.feeding import MARK, Feeder
from lr_sglang.sglang_api.plugin_protocol import FED_FIELD

WIDTH, VOCABULARY = 5, 1000
RELEASES = ("0.5.16", "0.5.23")


class Request:
    """A request of a scheduler; `text` is all that its target will write."""

    def __init__(self, rid, text):
        self.rid, self.text, self.output_ids = rid, text, array("q")
        self.pending = []  # tokens that the overlap schedule has not recorded yet
        self.passes = 0
        self.aborted = False

    @property
    def written(self):
        return [*self.output_ids, *self.pending]

    def finished(self):
        return self.aborted or len(self.output_ids) >= len(self.text)


class Server:
    """A scheduler with the n-gram layer of a release, whose guesses are trees of 0 and 1."""

    def __init__(self, release="0.5.23", overlap=False, grammar=False):
        self.release, self.overlap, self.grammar = release, overlap, grammar
        self.feeder = Feeder()
        self.enable_overlap, self.draft_token_num = overlap, WIDTH
        config = SimpleNamespace(vocab_size=VOCABULARY)
        self.model_runner = SimpleNamespace(model_config=config)
        self.offered = {}

    def batch(self, requests):
        batch = SimpleNamespace(reqs=requests, has_grammar=self.grammar)
        if self.release == "0.5.23":
            batch.grammar_needs_sync = lambda: self.grammar
        return batch

    def plain(self, worker, batch):
        """Stages the last tokens as the release does, and guesses: two children of the root."""
        spliced = self.overlap and not self.grammar
        last = [request.last for request in batch.reqs]
        if spliced or self.release == "0.5.16":  # which stages them in any case
            rows = [[*tokens, *[0] * (WIDTH - len(tokens))] for tokens in last]
            self.prev_token_ids = list(itertools.chain(*rows))
            self.prev_accept_lens = [len(tokens) for tokens in last]
        else:
            self.prev_token_ids, self.prev_accept_lens = [], [0] * len(last)
        tokens = np.zeros((len(last), WIDTH), dtype=np.int64)
        tokens[:, 0] = [request.written[-1] for request in batch.reqs]
        mask = np.zeros((len(last), WIDTH, WIDTH), dtype=np.uint8)
        mask[:, :, 0] = 1
        mask[:, range(WIDTH), range(WIDTH)] = 1
        return tokens.reshape(-1), mask.reshape(-1)

    def prefill(self, request):
        request.last = request.text[len(request.written) :][:1]
        self.record(request, [])
        if not self.spliced:
            self.record(request, request.last)
        else:
            request.pending = list(request.last)

    @property
    def spliced(self):
        return self.overlap and not self.grammar

    def record(self, request, tokens):
        request.output_ids.extend(request.pending)
        request.pending = []
        request.output_ids.extend(tokens)

    def step(self, *requests):
        """One pass: what is offered, verified, and recorded, now or in the next pass."""
        tokens, mask = self.feeder.prepare(self.plain, self, self.batch(requests))
        assert tokens.dtype == np.int64 and mask.dtype == np.uint8
        chain = np.tile(np.tri(WIDTH, dtype=np.uint8).reshape(-1), len(requests))
        assert (mask == chain).all()
        for request, row in zip(requests, tokens.reshape(-1, WIDTH).tolist(), strict=True):
            assert row[0] == request.written[-1]
            right = 0
            wanted = request.text[len(request.written) :]
            while right < WIDTH - 1 and wanted[right : right + 1] == [row[right + 1]]:
                right += 1
            request.last = wanted[: right + 1]
            request.passes += 1
            self.offered[request.rid] = row[1:]
        for request in requests:
            self.record(request, [] if self.spliced else request.last)
            if self.spliced:
                request.pending = list(request.last)

    def run(self, *requests, each=lambda: None):
        for request in requests:
            self.prefill(request)
        while left := [one for one in requests if len(one.written) < len(one.text)]:
            each()
            self.step(*left)
        for request in requests:
            self.record(request, [])
            assert list(request.output_ids) == request.text

    def send(self, *lines):
        ids = [rid for rid, _, _ in lines]
        chunks = [[place, *tokens] for _, place, tokens in lines]
        message = SimpleNamespace(corpus_id=MARK, documents=ids, token_chunks=chunks)
        assert self.feeder.keep(None, self, message) is None

    @property
    def counts(self):
        return self.told()

    def told(self, **more):
        found = SimpleNamespace(internal_state={})
        worker = SimpleNamespace(ngram_corpus=1, draft_token_num=WIDTH)
        arguments = SimpleNamespace(tokenizer_worker_num=more.pop("workers", 1))
        given = {"draft_worker": worker, "server_args": arguments, **more}
        self.feeder.tell(found, SimpleNamespace(**given))
        return found.internal_state[FED_FIELD]


def text(seed=0, length=40):
    return [random.Random(f"{seed}/{i}").randrange(2, VOCABULARY) for i in range(length)]
