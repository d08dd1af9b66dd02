"""The rules of SGLang's scheduler on the virtual clock, one by one, and the real programs on it."""

import asyncio
from dataclasses import replace

import pytest

from lr_sglang.algorithm.policy import RunStatistics
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.probes import measure_costs
from lr_sglang.frontend.dsl import run_program
from lr_sglang.modes import MODES
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.tasks.task import messages
from lr_sglang.user_programs import request_maker
from lr_sglang.user_programs.request_maker import RequestMaker
from tests import FULL
from tests.simulated import measured_tables, runs
from tests.simulated.alike import Alike, AlikeWriter
from tests.simulated.clock import run_virtually
from tests.simulated.scheduled import scheduled_roles
from tests.simulated.scheduler import Device, Flags, Job, Scheduler
from tests.simulated.times import Curve, RoleTimes, Times
from tests.simulated.virtual import questions

PREFILL, DECODE = 0.04, 0.01  # seconds of a pass
ROW = 0.001  # of a row beyond eight
TIMES = RoleTimes(
    tokens=Curve(((1, DECODE), (8, DECODE), (16, DECODE + 8 * ROW))),
    read=PREFILL,
    layer_token=0.002,
)
FILE = {
    "roles": {
        "target": {"token, 1 at once": 10.0, "token, 8 at once": 10.0, "read a step after 256": 40},
        "draft": {"token, 1 at once": 1.0, "token, 8 at once": 1.0, "read a step after 256": 4},
        "judge": {"verdict": 4.0},
    },
    "assumed": {"host": 1.0, "graph prefill": 20.0},
}


class Server:
    """A scheduler, with the times at which its requests had each token."""

    def __init__(self, device: Device | None = None, times: RoleTimes = TIMES, **flags):
        self.scheduler = Scheduler(times, device or Device(), Flags(**flags))
        self.told: dict[str, list[tuple[int, float]]] = {}
        self.ended: dict[str, tuple[float, bool]] = {}
        self._left = set()

    def ask(self, name, tokens, prompt=10, ids=None, **given):
        loop = asyncio.get_running_loop()
        told = self.told[name] = []
        job = Job(
            name,
            prompt,
            tuple(ids or range(100, 100 + tokens)),
            tokens,
            loop.create_future(),
            lambda written: told.append((written, loop.time())),
            **given,
        )

        def done(future):
            told.append((job.written, loop.time()))
            self.ended[name] = (loop.time(), future.result())

        job.done.add_done_callback(done)
        self.scheduler.add(job)
        return job

    def at(self, name):
        """When its first, second and each further told token was there."""
        return [round(seconds, 6) for _, seconds in self.told[name]]


def scene(play, **flags):
    """Plays a coroutine function on a server, until all requests have ended."""

    async def all_of_it():
        server = Server(**flags)
        await asyncio.gather(*(job.done for job in (await play(server))))
        await asyncio.sleep(0)
        return server

    return run_virtually(all_of_it())


TOGETHER = [0.04, 0.05, 0.06]
INTERVAL = {"prefill_decode_interval": 4}
# Flags; requests with the second at which each comes and its number of tokens; when each token is there.
RULES = {
    "all that waits is prefilled in one pass and then decoded together": (
        {}, [(0, "a", 3), (0, "b", 3), (0, "c", 3)], {"a": TOGETHER, "b": TOGETHER, "c": TOGETHER},
    ),
    "a prefill goes before decoding and stops all that runs": (
        {}, [(0, "a", 4), (0.045, "b", 2)], {"a": [0.04, 0.05, 0.1, 0.11], "b": [0.09, 0.1]},
    ),
    "a request that needs one token is done with its prefill": (
        {}, [(0, "read", 1), (0.05, "next", 1)], {"read": [0.04], "next": [0.09]},
    ),
    "a decode pass takes as long as its rows": (
        {}, [(0, str(n), 2) for n in range(12)], {"0": [0.04, round(0.04 + DECODE + 4 * ROW, 6)]},
    ),
    "requests beyond max_running_requests wait": (
        {"max_running_requests": 2},
        [(0, "a", 3), (0, "b", 3), (0, "c", 3)],
        {"b": TOGETHER, "c": [0.1, 0.11, 0.12]},
    ),
    "after a prefill four passes decode before the next one": (
        INTERVAL, [(0, "a", 20), (0.055, "b", 1)], {"b": [0.12]},
    ),
    "only while enough requests run": (
        INTERVAL | {"prefill_decode_interval_min_bs": 2}, [(0, "a", 20), (0.055, "b", 1)], {"b": [0.1]},
    ),
    "with overlap a request misses the pass that is chosen already": (
        {"overlap": True}, [(0, "a", 6), (0.045, "b", 1)], {"b": [0.1]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_the_scheduler(rule):
    flags, asked, times = RULES[rule]

    async def play(server):
        jobs = []
        for at, name, tokens in asked:
            if at:
                await asyncio.sleep(at - asyncio.get_running_loop().time())
            jobs.append(server.ask(name, tokens))
        return jobs

    server = scene(play, **flags)
    assert {name: server.at(name) for name in times} == times


def test_a_token_layer_reads_all_guesses_and_drafts_within_the_pass():
    async def play(server):
        return [server.ask(str(n), 8) for n in range(2)]

    guess = 0.003
    for agreement, passes in ((1.0, 2), (0.0, 7)):
        flags = {"layer": "standalone", "draft_tokens": 5, "layer_agreement": agreement}
        server = scene(play, times=replace(TIMES, read_token=guess), **flags)
        # what is read of two requests; five drafted tokens one after another
        prefill, verification = PREFILL + 19 * guess, DECODE + 2 * 5 * guess + 5 * 0.002
        assert server.ended["0"][0] == pytest.approx(prefill + passes * verification)
        assert server.scheduler.passes == passes


def test_a_verification_takes_a_delivered_line_as_far_as_it_agrees():
    ids = [*range(100, 120)]

    async def play(server):
        job = server.ask("a", 20, ids=ids)
        # after the first token of the answer; its fifth token is another
        server.scheduler.deliver([("a", 1, [*ids[1:5], 7, *ids[6:]])])
        return [job]

    server = scene(play, layer="fed", draft_tokens=8)
    written = [number for number, _ in server.told["a"]]
    assert written[:4] == [1, 6, 7, 8], "four of the line and one more; then the line is wrong"


def test_a_fed_target_verifies_its_own_guesses_where_nothing_was_delivered():
    async def play(server):
        job = server.ask("a", 13)
        server.scheduler.deliver([("a", 1, [*range(101, 104)])])
        return [job]

    flags = {"layer": "fed", "draft_tokens": 3}
    server = scene(play, **flags, layer_agreement=1.0)
    assert [number for number, _ in server.told["a"]] == [1, 5, 9, 13]
    server = scene(play, **flags)
    assert [number for number, _ in server.told["a"]] == [1, 5, *range(6, 14)]


@pytest.mark.parametrize("place", [2, 10])
def test_a_line_from_an_earlier_place_goes_on_and_one_from_a_later_place_waits(place):
    ids = [*range(100, 120)]

    async def play(server):
        job = server.ask("a", 20, prompt=3, ids=ids)
        server.scheduler.deliver([("a", place, ids[place:])])
        return [job]

    server = scene(play, layer="fed", draft_tokens=4)
    written = [number for number, _ in server.told["a"]]
    assert written[:3] == ([1, 2, 7] if place == 2 else [1, 2, 3])
    assert written[-1] == 20


def test_a_line_that_comes_late_is_counted_and_harmless():
    async def play(server):
        job = server.ask("a", 10)
        await asyncio.sleep(0.075)  # it has four tokens
        server.scheduler.deliver([("a", 1, [101, 102, 103, 104, 105]), ("gone", 3, [1])])
        return [job]

    server = scene(play, layer="fed", draft_tokens=4)
    assert server.scheduler.late == 3 and server.told["a"][-1][0] == 10


def test_an_aborted_request_ends_at_once_if_it_waits_else_with_its_pass():
    async def play(server):
        jobs = [server.ask("runs", 9), server.ask("goes on", 4)]
        await asyncio.sleep(0.055)  # within the second decode pass
        server.scheduler.abort("runs")
        jobs.append(server.ask("waits", 9))
        server.scheduler.abort("waits")
        return jobs

    server = scene(play)
    assert server.ended["waits"] == (0.055, True)
    assert server.ended["runs"] == (pytest.approx(0.06), True) and server.told["runs"][-1][0] == 3
    assert server.ended["goes on"] == (pytest.approx(0.07), False)


def test_servers_on_one_device_slow_each_other_while_both_compute():
    async def both():
        device = Device(0.5)
        one, two = Server(device), Server(device)
        jobs = [one.ask("a", 1), two.ask("b", 3)]
        await asyncio.gather(*(job.done for job in jobs))
        await asyncio.sleep(0)
        return one, two

    one, two = run_virtually(both())
    assert one.at("a") == two.at("b")[:1] == [0.06]
    assert two.at("b")[1:] == [0.07, 0.08], "alone from there on"


def test_a_prefill_takes_as_long_as_its_tokens_and_its_longest_prefix():
    async def play(server):
        return [server.ask(str(n), 1, prompt=30, find_cached=lambda n=n: 10 * n) for n in (1, 2)]

    server = scene(play, times=replace(TIMES, read_token=0.001, prefix=0.0001))
    assert server.at("1") == [round(PREFILL + (20 + 10 - 1) * 0.001 + 20 * 0.0001, 6)]


def test_requests_of_one_prefill_find_nothing_of_each_other_in_the_cache():
    known, jobs = set(), []

    async def play(server):
        def ask(name):
            found = {"find_cached": lambda: 8 * ("prompt" in known)}
            return server.ask(name, 1, **found, keep_prefilled=lambda: known.add("prompt"))

        jobs.extend([ask("a"), ask("b")])
        await asyncio.sleep(PREFILL / 2)  # within their prefill
        jobs.append(ask("c"))
        return jobs

    scene(play)
    assert [job.cached for job in jobs] == [0, 0, 8]


# -- the servers


@pytest.mark.parametrize(("graphs", "prefill"), [(False, 0.04), (True, 0.021)])
def test_the_probes_measure_what_the_file_says(graphs, prefill):
    """Full prefill graphs make a prefill cheaper."""
    times = Times.of(FILE).with_graphs() if graphs else Times.of(FILE)
    writer = AlikeWriter(Alike(agreement=0.8, steps=5, tokens=16))
    costs = run_virtually(measure_costs(scheduled_roles(times, writer)["target"].transport))
    assert costs.token == pytest.approx(0.01) and costs.slowdown == pytest.approx(0.0, abs=1e-6)
    assert costs.prefill == pytest.approx(prefill), "with the host's time"


def made(mode, flags=None, seeded=True, times=FILE, **look):
    """One answer: its trace, and the target's transport."""
    writer = AlikeWriter(Alike(agreement=0.9, alpha=(0.9,), steps=6, tokens=16, spread=0.3))

    async def answer():
        roles = scheduled_roles(Times.of(times), writer, flags, seeded=seeded)
        maker = RequestMaker(roles, "paper", RunStatistics())
        known = MODES[mode]
        given = known.lookahead(Lookahead(depth=5, **look))
        job = maker.make(known, given, Sampling(), Limits(), question="q")
        program = lookahead if known.ahead else autoregressive
        (asked,) = questions(1)
        await run_program(program, messages(asked.question), job, backend=roles["target"])
        return job.trace, roles["target"].transport

    return run_virtually(answer())


@pytest.mark.parametrize("seeded", [True, False])
def test_an_exact_answer_is_plain_decodings_written_and_read(seeded):
    plain, _ = made("autoregressive", seeded=seeded)
    for reading in ("never", "first"):
        exact, _ = made("lossless", reading=reading, seeded=seeded)
        assert exact.text == plain.text and len(plain.steps) == 6
        assert bool(exact.read_tokens) is (reading == "first")


def test_plain_decoding_takes_a_prefill_and_a_pass_for_each_further_token():
    trace, target = made("autoregressive")
    assert (target.scheduler.prefills, target.scheduler.passes) == (1, len(trace.ids) - 1)
    counts = trace.tokens()["target"]
    assert (counts["prefills"], counts["passes"]) == (1, len(trace.ids) - 1)
    # the host's time, a prefill of 40 ms less the host's time in that figure, passes of 10 ms
    assert trace.seconds == pytest.approx(0.001 + 0.039 + 0.01 * (len(trace.ids) - 1))


def test_judged_lookahead_accepts_about_alpha_of_the_steps_and_is_faster():
    plain, _ = made("autoregressive")
    trace, target = made("lookahead", reading="never")
    assert trace.accepted >= 4 and trace.seconds < plain.seconds
    branches = len(trace.of("target"))
    assert trace.tokens()["target"]["prefills"] <= branches
    assert 0 < target.scheduler.prefills <= branches and branches >= 6


@pytest.mark.skipif(not FULL, reason="minutes: LR_SGLANG_FULL=1")
def test_measured_tables_are_calculated_within_a_quarter_but_for_rows_with_a_cause():
    """``python -m benchmarks.simulated_gpu --validate``; docs/measurements.md has the table."""
    rows = list(measured_tables.calculated())
    off = [one for one in rows if not one.inside]
    assert not [(one, f"{one.error:+.0%}") for one in off if not one.cause]
    assert len(off) <= 0.2 * len(rows), off


@pytest.mark.skipif(not FULL, reason="minutes: LR_SGLANG_FULL=1")
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("alpha", [0.6, 0.85])
@pytest.mark.parametrize("layer", [Flags(), Flags("fed", 7)])
def test_auto_is_near_plain_decoding_where_prefills_stop_eight_answers(layer, alpha, shared):
    """On one H200's times; on one GPU it once looked ahead at .6 of it where steps agree well."""
    times = Times.load("h200") if shared else Times.load("h200").alone()
    writer = runs.pair(0.75, alpha, 40, 10)
    auto, plain = (
        runs.answers(times, writer, runs.Setting(mode, layer), 8, 32, first=32, seeded=False)
        for mode in ("auto", "autoregressive")
    )
    assert auto.pace >= 0.95 * plain.pace and auto.first_pace >= 0.77 * plain.first_pace


@pytest.mark.parametrize(("agreement", "alpha"), [(0.945, 0.89), (0.9, 0.64), (0.1, 0.82)])
def test_auto_soon_does_what_is_best_on_two_cores(agreement, alpha):
    """Four answers of five short steps at once: it reads portions of a draft that agrees, and
    writes alone beside one that writes in other words.
    """
    times, writer = Times.load("two-cores"), runs.pair(agreement, alpha, 16, 5)
    auto, plain, exact = (
        runs.answers(times, writer, runs.Setting(mode), 4, 8, first=8)
        for mode in ("auto", "autoregressive", "lossless")
    )
    assert auto.pace >= 0.9 * max(plain.pace, exact.pace)
    assert auto.first_pace >= 0.7 * plain.first_pace


def test_auto_finds_out_that_answers_take_longer_than_start_measured(monkeypatch):
    """Eight answers slow each other more than random tokens after short prompts, by which reading
    seems to gain nothing.
    """

    async def too_kind(*given):
        costs = await measure_costs(*given)
        return replace(costs, slowdown=costs.slowdown / 5)

    monkeypatch.setattr(request_maker, "measure_costs", too_kind)
    times, writer = Times.load("two-cores"), runs.pair(0.945, 0.89, 16, 8)
    auto, exact = (
        runs.answers(times, writer, runs.Setting(mode), 8, 16, first=16)
        for mode in ("auto", "lossless")
    )
    assert auto.pace >= 0.9 * exact.pace


@pytest.mark.parametrize(("agreement", "helped"), [(0.945, True), (0.1, False)])
def test_answers_that_wait_for_the_first_verdicts_have_the_drafts_help_where_it_pays(
    agreement, helped
):
    """Eight begin at once, and one looks ahead: the others read portions, until a read shows that
    this gains nothing.
    """
    times, writer = Times.load("two-cores"), runs.pair(agreement, 0.85, 16, 5)
    made = runs.answers(times, writer, runs.Setting("auto"), 8, 8)
    judged = [any(step.verdicts for step in one.steps) for one in made.traces]
    waiting = [one for one, own in zip(made.traces, judged, strict=True) if not own]
    # after the check of the target's log-probabilities
    first = {[b.purpose for b in one.branches if b.role == "target"][2] for one in waiting}
    assert len(waiting) >= 6 and first == {"read"}
    reads = [sum(one.reads.values()) for one in waiting]
    assert all(number > 2 for number in reads) if helped else all(number <= 2 for number in reads)


def test_a_table_of_one_role_alone_is_calculated_from_its_file():
    """What the file says of plain decoding comes out, and so does a token layer's gain by hand."""
    (h200,) = [one for one in measured_tables.TABLES if one.name == "one H200"]
    layered = replace(h200, rows=tuple(one for one in h200.rows if one.setting.mode == "sd"))
    assert all(one.inside for one in measured_tables.calculated([layered]))


@pytest.mark.parametrize("seeded", [True, False])
def test_a_fed_answer_is_plain_decodings_in_one_request_and_fewer_passes(seeded):
    plain, alone = made("autoregressive", seeded=seeded)
    exact, target = made("lossless", flags={"target": Flags("fed", 8)}, seeded=seeded)
    assert exact.text == plain.text and len(exact.of("target")) == 1
    assert target.scheduler.passes < alone.scheduler.passes / 2
