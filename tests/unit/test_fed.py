"""Token layer `fed` in a server: what a verification is offered, whatever the messages say."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from lr_sglang.plugin.feeding import MARK, chains
from lr_sglang.plugin.kept_lines import TRIM, KeptLine, KeptLines
from lr_sglang.sglang_api.plugin_protocol import (
    MAX_ID,
    MAX_LINES,
    MAX_MESSAGE_LINES,
    MAX_TOKENS,
    PROTOCOL,
    read_deliveries,
)
from tests.called import python
from tests.fed import RELEASES, VOCABULARY, WIDTH, Request, Server, text

servers = pytest.mark.parametrize(
    "server",
    [
        pytest.param((release, overlap, grammar), id=f"{release}-{overlap}-{grammar}")
        for release in RELEASES
        for overlap in (False, True)
        for grammar in (False, True)
    ],
    indirect=True,
)


@pytest.fixture
def server(request):
    return Server(*getattr(request, "param", ("0.5.23", False, False)))


# -- what is offered


@servers
def test_a_right_line_gives_a_whole_width_each_time(server):
    fed, other = Request("fed", text(1)), Request("other", text(2))
    server.send(("fed", 0, fed.text))
    server.run(fed, other)
    assert fed.passes == -(-(len(fed.text) - 1) // WIDTH)
    assert other.passes == len(other.text) - 1
    counts = server.counts
    assert (counts["fed"], counts["late"], counts["failures"]) == (fed.passes, 0, 0)


@servers
def test_a_line_that_came_before_the_request_counts_from_its_first_token(server):
    fed = Request("fed", text(1))
    server.send(("fed", 0, text(1)[:21]))
    server.prefill(fed)
    server.step(fed)
    assert server.offered["fed"] == fed.text[1:5]
    server.send(("fed", 21, fed.text[21:]))  # goes on where the first one ends
    for _ in range(7):
        server.step(fed)
    assert fed.passes == 8 and len(fed.written) == 40


@servers
def test_increments_are_one_line_and_tokens_that_come_too_late_are_counted(server):
    fed = Request("fed", text(1))
    server.prefill(fed)
    server.send(("fed", 0, fed.text[:3]))
    server.step(fed)  # writes 1, 2, and 3, which the line lacks
    server.send(("fed", 3, fed.text[3:6]))
    server.step(fed)
    assert server.offered["fed"][:2] == fed.text[4:6] and server.counts["late"] == 1
    server.send(("fed", 3, fed.text[3:6]))  # again: nothing new is late
    server.step(fed)
    assert server.counts["late"] == 1


def test_the_token_that_a_whole_width_gives_besides_was_there_in_time(server):
    fed = Request("fed", text(1))
    server.send(("fed", 0, fed.text))
    server.run(fed)
    assert server.counts["late"] == 0


@servers
def test_a_line_that_parts_is_not_offered_until_it_goes_on_from_the_requests_own(server):
    fed = Request("fed", text(1))
    wrong = [*fed.text[:4], *text(9)]
    server.prefill(fed)
    server.send(("fed", 0, wrong))
    server.step(fed)
    assert server.offered["fed"] == wrong[1:5] and len(fed.written) == 5
    server.step(fed)
    assert server.offered["fed"] == [0] * (WIDTH - 1)
    server.send(("fed", len(fed.written), fed.text[len(fed.written) :]))
    server.step(fed)
    assert server.offered["fed"] == fed.text[6:10]


def test_a_delivery_after_the_parting_counts_though_the_server_has_not_seen_it(server):
    """Between two passes, prefills of others may run: the controller has the tokens by then."""
    fed = Request("fed", text(1))
    server.prefill(fed)
    server.send(("fed", 0, [*fed.text[:3], *text(9)]))
    server.step(fed)
    assert len(fed.written) == 4
    server.send(("fed", 4, fed.text[4:]))  # the server's line is still the old one up to here
    server.step(fed)
    assert server.offered["fed"] == fed.text[4:8]


def test_a_retracted_request_goes_on_with_its_line(server):
    fed, other = Request("fed", text(1)), Request("other", text(2))
    server.send(("fed", 0, fed.text))
    server.prefill(fed), server.prefill(other)
    server.step(fed, other)
    for _ in range(3):
        server.step(other)  # fed was retracted
    server.prefill(fed)  # of all that it has written, which gives its next token
    server.step(fed, other)
    assert server.offered["fed"] == fed.text[7:11]


def test_an_ended_requests_line_is_forgotten(server):
    first, second = Request("first", text(1, 12)), Request("second", text(2))
    server.send(("first", 0, first.text), ("second", 0, second.text))
    server.run(first, second)
    assert server.counts["lines"] == 1  # the last one, until the next pass
    server.run(Request("third", text(3)))
    assert server.counts["lines"] == 0


@pytest.mark.parametrize("retracted", [False, True])
def test_an_aborted_requests_line_is_forgotten(server, retracted):
    fed, other = Request("fed", text(1)), Request("other", text(2))
    server.send(("fed", 0, fed.text), ("other", 0, other.text))
    server.prefill(fed), server.prefill(other)
    server.step(fed, other)
    if retracted:
        server.step(other)
        assert server.counts["lines"] == 2
    fed.aborted = True
    server.step(other)
    assert server.counts["lines"] == 1 and set(server.feeder._fed) == {"other"}


def test_lines_that_come_when_their_requests_have_ended_make_room_for_others(server):
    for number in range(MAX_LINES + 10):
        one = Request(f"r{number}", text(number, 3))
        server.run(one)
        server.send((one.rid, 0, one.text))
    assert server.counts["lines"] == MAX_LINES and server.counts["pushed_out"] == 10
    assert not server.feeder._fed
    late = Request("late", text(1))
    server.send(("late", 0, late.text))
    server.run(late)
    assert late.passes == 8


def test_of_two_who_feed_one_request_the_last_is_believed_and_the_text_is_the_targets(server):
    """One of them is wrong from the beginning, and neither knows of the other."""
    fed, wrong = Request("fed", text(1, 80)), text(9, 80)

    def both():
        for ids in (wrong, fed.text):
            server.send(("fed", len(fed.written), ids[len(fed.written) :]))

    server.run(fed, each=both)
    assert fed.passes == -(-(len(fed.text) - 1) // WIDTH) and server.counts["failures"] == 0


@pytest.mark.parametrize("place", [0, 3])
def test_a_line_that_contradicts_what_the_request_has_written_is_not_offered(server, place):
    """What was right before an old, wrong delivery is no reason to believe what follows it."""
    fed = Request("fed", text(1))
    server.prefill(fed)
    server.send(("fed", 0, fed.text))
    server.step(fed)
    assert len(fed.written) == 6
    server.send(("fed", place, text(9)))
    server.step(fed)
    assert server.offered["fed"] == [0] * (WIDTH - 1)


def test_a_line_for_an_id_that_only_begins_like_a_requests_is_not_its(server):
    fed = Request("fed", text(1))
    server.send(("fe", 0, fed.text), ("fed2", 0, fed.text), ("FED", 0, fed.text))
    server.run(fed)
    assert fed.passes == len(fed.text) - 1 and server.counts["offered"] == 0


def test_an_emptied_cache_empties_the_lines(server):
    server.send(("any", 0, [1, 2]))
    assert server.counts["lines"] == 1
    server.feeder.clear(None, server)
    assert server.counts["lines"] == 0


@servers
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_delivered_the_text_is_the_targets(server, seed):
    """Wrong ids and places, gaps, repeats, old lines: two controllers that know nothing."""
    rng = random.Random(seed)
    requests = [Request(f"r{i}", text((seed, i), 80)) for i in range(3)]

    def deliver():
        for _ in range(rng.randrange(4)):
            one = rng.choice(requests)
            place = rng.choice([len(one.written), rng.randrange(90), 0, 2**31 - 1])
            ids = list(one.text[place : place + rng.randrange(20)])
            if ids and rng.random() < 0.4:
                ids[rng.randrange(len(ids))] = rng.randrange(VOCABULARY)
            server.send((rng.choice([one.rid, "unknown"]), place, ids))

    server.run(*requests, each=deliver)
    assert server.counts["failures"] == 0


def test_a_long_answer_does_not_grow_its_line(server):
    fed = Request("fed", text(1, 4 * TRIM))
    server.prefill(fed)
    sent = 0
    while len(fed.written) < len(fed.text):
        if sent < len(fed.written) + 20:
            server.send(("fed", sent, fed.text[sent : sent + 20]))
            sent += 20
        server.step(fed)
    assert fed.passes <= 1.1 * len(fed.text) / WIDTH
    assert len(server.feeder._lines.get("fed").ids) < TRIM + 100


# -- lines


def test_from_its_place_on_a_line_is_what_was_delivered_last():
    line = KeptLine(0, [1, 2, 3, 4])
    for place, ids, whole in [
        (4, [5, 6], [1, 2, 3, 4, 5, 6]),
        (2, [7], [1, 2, 7]),
        (2, [], [1, 2]),
        (3, [9], [9]),  # a gap: what was before it is gone
        (0, [1], [1]),
    ]:
        line.put(place, ids)
        assert (list(line.ids), line.end) == (whole, place + len(ids))


def test_lines_are_bounded_and_the_oldest_makes_room():
    lines = KeptLines(most=3)
    for name in "abcad":
        lines.put(name, 0, [1])
    assert [lines.get(name) is not None for name in "abcd"] == [True, False, True, True]
    assert (len(lines), lines.pushed_out) == (3, 1)
    for place in range(0, 3 * MAX_TOKENS, 100):
        lines.put("a", place, range(100))
    assert len(lines.get("a").ids) == MAX_TOKENS
    assert list(lines.get("a").ids[-2:]) == [98, 99]


# -- messages


def test_a_message_is_read_line_by_line():
    good = [["a", 0, [1, 2]], ["b", 7, []]]
    bad = {
        "": ["", 0, [1]],
        "x" * MAX_ID: ["x" * (MAX_ID + 1), 0, [1]],
        "place": ["place", -1, [1]],
        "far": ["far", 2**31, [1]],
        "beyond": ["beyond", 0, [1, VOCABULARY]],
        "below": ["below", 0, [-1]],
        "huge": ["huge", 0, [10**30]],
        "long": ["long", 0, [1] * (MAX_TOKENS + 1)],
    }
    found = read_deliveries({"lines": [*good, *bad.values()]}, VOCABULARY)
    assert [[*line] for line in found.taken] == good
    assert [rid for rid, _ in found.refused] == list(bad)
    assert all(why for _, why in found.refused)


@pytest.mark.parametrize(
    "body",
    [
        *(None, [], 3, "lines", {}, {"lines": 3}, {"lines": {}}, {"lines": ["abc"]}),
        *({"lines": [one]} for one in ([], ["a", 0], ["a", 0, [1], 2], {"rid": "a"})),
        *({"lines": [["a", 0, one]]} for one in (None, 1, "12", [True], [1.0], ["1"], [[1]])),
        *({"lines": [["a", one, [1]]]} for one in (None, True, 0.0, "0", [0])),
        *({"lines": [[one, 0, [1]]]} for one in (None, 1, ["a"])),
        {"lines": [["a", 0, [1]]] * (MAX_MESSAGE_LINES + 1)},
    ],
    ids=str,
)
def test_a_malformed_message_is_refused_whole(body):
    with pytest.raises(ValueError, match="lines"):
        read_deliveries(body, VOCABULARY)


# -- what else is in the server


def test_a_message_of_sglangs_own_is_its_own(server):
    """Its route takes the documents out before it sends the message on."""
    for corpus, documents in (("any", None), (MARK, None), ("any", ["a"])):
        message = SimpleNamespace(corpus_id=corpus, documents=documents, token_chunks=[[0, 1]])
        assert server.feeder.keep(lambda *given: given, server, message) == (server, message)


def test_an_exception_is_counted_and_sglangs_own_guesses_are_used(server, monkeypatch):
    fed, other = Request("fed", text(1)), Request("other", text(2))
    server.send(("fed", 0, fed.text), ("other", 0, other.text))
    message = SimpleNamespace(corpus_id=MARK, documents=["a"], token_chunks=[[], [1]])
    assert server.feeder.keep(None, server, message) is None
    assert server.counts["failures"] == 1
    server.prefill(fed), server.prefill(other)
    server.feeder._lines.get("fed").ids = None  # an exception for this one request
    server.step(fed, other)
    assert server.offered["other"] == other.text[1:5]
    assert server.offered["fed"] == [0] * (WIDTH - 1) and server.counts["failures"] == 2
    monkeypatch.setattr("lr_sglang.plugin.feeding.chains", lambda *given: 1 / 0)
    batch = server.batch([fed])
    for mine, theirs in zip(
        server.feeder.prepare(server.plain, server, batch), server.plain(server, batch), strict=True
    ):
        assert (mine == theirs).all()
    assert server.counts["failures"] == 3


def test_a_request_that_goes_on_from_another_token_is_not_fed(server):
    fed = Request("fed", text(1))
    server.send(("fed", 0, fed.text))
    server.prefill(fed)
    fed.output_ids[-1] += 1  # as if the splice of a release were another
    fed.text[0] += 1
    plain = server.plain

    def shifted(worker, batch):
        tokens, mask = plain(worker, batch)
        tokens[0] -= 1
        return tokens, mask

    tokens, _ = server.feeder.prepare(shifted, server, server.batch([fed]))
    assert tokens.tolist()[1:] == [0] * (WIDTH - 1) and server.counts["failures"] == 1


def test_a_tree_becomes_its_longest_chain():
    # 10 -> 11 -> 13 -> 14, and 10 -> 12
    tokens = np.array([10, 11, 12, 13, 14])
    seen = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 3, 4]]
    mask = np.array([[int(j in row) for j in range(5)] for row in seen])
    assert chains(tokens, mask, 5).tolist() == [[10, 11, 13, 14, 0]]
    alone = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]])
    assert chains(np.array([7, 0, 0]), alone, 3).tolist() == [[7, 0, 0]]


def test_the_servers_state_says_what_the_layer_is(server):
    told = server.told()
    assert (told["protocol"], told["width"], told["draws"]) == (PROTOCOL, WIDTH, "coins")
    assert "NGRAM" in server.told(draft_worker=None)["refused"]
    assert "tokenizer-worker-num" in server.told(workers=2)["refused"]


def test_the_plugin_needs_nothing_that_a_server_may_lack():
    """Whoever runs a server of their own may install the package without its dependencies."""
    blocked = "click rich aiohttp pydantic fastapi math_verify scipy prometheus_client"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked.split()!r}))\n"
        "import lr_sglang.plugin.hooks, lr_sglang.plugin.route\n"
        "assert not {'torch', 'sglang', 'transformers'} & set(sys.modules), 'too much is imported'"
    )
    python("-c", code)
