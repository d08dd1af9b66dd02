"""``lr-sglang bench`` in a process of its own over simulated runtimes, killed at any moment and
taken up again.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr_sglang.api.runner import Runner
from lr_sglang.bench import order, presets, servers
from lr_sglang.bench import variants as sweeps
from lr_sglang.bench.variants import WAYS, fair_baseline, variants
from lr_sglang.cli import bench as bench_command
from lr_sglang.cli import settings
from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import BadReply, ConfigError
from lr_sglang.modes import MODES
from lr_sglang.results import charts, collection, report, store
from lr_sglang.runtimes import launched, load_deployment
from lr_sglang.tasks import Question
from lr_sglang.tasks.task import Hub
from tests import FULL, ROOT, records
from tests.called import called
from tests.processes.mortal import mortals
from tests.scripted_cli import transports
from tests.serving import until

# In a short run it is killed once; tests/integration/test_runner.py has the Ctrl-C.
KILLS = 20 if FULL else 1
QUESTIONS = 6 if FULL else 3
COMPARED = ("autoregressive", "lookahead", "lossless")


# In the sync schedule no answer depends on what comes first.
OPTIONS = ("--modes", ",".join(COMPARED), "--limit", str(QUESTIONS), "--samples", "2")
OPTIONS += ("--schedule", "sync")


@pytest.fixture(scope="module")
def attach(tmp_path_factory):
    """Options that attach to simulated servers, in processes of their own."""
    speed = ("--steps", "6", "--step-seconds", "0.02", "--judge-seconds", "0.005", "--alpha", "0.6")
    with mortals(tmp_path_factory.mktemp("servers"), *speed) as runtimes:
        yield [word for role, one in runtimes.items() for word in (f"--{role}", one.url)]


def start(popen, folder, attach):
    """The benchmark, which goes on where there are records."""
    more = ["--resume"] if whole(folder) else []
    return popen(
        [sys.executable, ROOT / "cli.py", "bench", *OPTIONS, *attach, "--output", folder, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def bench(*arguments, code=0):
    return called("bench", *arguments, code=code)


def whole(folder):
    """Every complete line of every file of records."""
    return [
        line
        for path in sorted(folder.glob("*/records.jsonl"))
        for line in path.read_bytes().split(b"\n")[:-1]
    ]


def samples(folder):
    """The text of each sample, by its name."""
    made = records(folder)
    assert all(record["error"] is None for record in made)
    names = [
        (r["question_id"], r["sample"], r["mode"], r["config"]["sampling"]["temperature"])
        for r in made
    ]
    assert not [name for name, count in Counter(names).items() if count > 1]
    assert all(record["seeded"] for record in made)
    return dict(zip(names, (record["text"] for record in made), strict=True))


@pytest.mark.timeout(1500 if FULL else 600)
def test_killed_again_and_again_it_makes_the_same(tmp_path, popen, attach):
    bench(*OPTIONS, *attach, "--output", tmp_path / "undisturbed")
    wanted = samples(tmp_path / "undisturbed")
    assert len(wanted) == QUESTIONS * 2 * len(COMPARED)
    chance, folder = random.Random(os.environ.get("SEED", "7")), tmp_path / "killed"
    killed, lost = 0, 0
    for number in range(KILLS):
        process = start(popen, folder, attach)
        before = whole(folder)
        if number % 4 == 3:  # while it starts
            time.sleep(chance.uniform(0, 3))
        else:
            least = len(before) + max(1, (len(wanted) - len(before)) // (KILLS - number + 1) - 1)
            enough = lambda: len(whole(folder)) >= least or process.poll() is not None  # noqa: B023
            until(enough, 120, 0.003)
            time.sleep(chance.uniform(0, 0.1))
        killed += process.poll() is None
        gently = number == 1  # Ctrl-C keeps what is finished, and says how to go on
        process.send_signal(signal.SIGINT if gently else signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        kept = whole(folder)
        if gently:
            said = " ".join(err.split())
            assert process.returncode == 130
            assert f"samples are kept; the same options with --resume --output {folder}" in said
            # one more than is said, if the signal came while it was written
            assert any(f"{n} of {len(wanted)} samples" in said for n in (len(kept), len(kept) - 1))
        assert not [
            line for line in before if line not in kept
        ]  # what was there stays, to the byte
        assert all(json.loads(line)["text"] for line in kept)
        lost += sum(
            path.read_bytes()[-1:] not in (b"", b"\n") for path in folder.glob("*/records.jsonl")
        )
    assert killed >= max(1, KILLS - 1)
    assert len(whole(folder)) < len(wanted) and lost <= KILLS
    assert "Where the time went" in bench(*OPTIONS, *attach, "--output", folder, "--resume").stdout
    assert samples(folder) == wanted


# -- what is planned and reported


ALL = tuple(MODES)


# -- sweeps


@pytest.mark.parametrize(
    ("given", "name", "values"),
    [
        ("depth=1..3", "depth", [1, 2, 3]),
        ("sd-tokens=0,2..4, 4", "sd-tokens", [0, 2, 3, 4]),
        ("verifier=exact,judge", "verifier", ["exact", "judge"]),
        ("alpha=.5,0.63", "alpha", [".5", "0.63"]),
        ("gate=0,.05", "gate", [0.0, 0.05]),
        ("schedule=sync,async", "schedule", ["sync", "async"]),
    ],
)
def test_values_of_a_sweep(given, name, values):
    assert sweeps.parse_sweep(given) == [{name: value} for value in values]


@pytest.mark.parametrize(
    "wrong",
    [
        ["depth"],
        ["depth="],
        ["deepth=1"],
        ["depth=0"],
        ["depth=x"],
        ["depth=1..1000000000"],
        ["depth=5..1"],
        ["alpha=2"],
        ["alpha=x"],
        ["depth=\u0663..\u0665x"],
        ["depth=1", "depth=2"],
        ["budget=4"],
        ["alpha=.5", "verifier=judge"],
        ["gate=x"],
        ["token-layer=fed:0"],
        ["token-layer=fed, standalone:x"],
    ],
)
def test_what_cannot_be_swept(wrong):
    with pytest.raises(ConfigError):
        sweeps.points(wrong)


POINT = {"depth": 2, "verifier": "exact", "sd-tokens": 4, "concurrency": 2}


@pytest.mark.parametrize(
    ("point", "mode", "wanted"),
    [
        (POINT, "autoregressive", ("autoregressive", {"concurrency": 2})),
        (POINT, "sd", ("sd", {"sd-tokens": 4, "concurrency": 2})),
        (POINT, "lookahead+sd", ("lookahead+sd", POINT)),
        (POINT, "lossless", ("lossless", {"depth": 2, "concurrency": 2})),
        ({"sd-tokens": 0}, "sd", ("autoregressive", {})),
        ({"sd-tokens": 0, "depth": 3}, "lookahead+sd", ("lookahead", {"depth": 3})),
        ({"token-layer": "none"}, "sd", ("autoregressive", {})),
        ({"token-layer": "fed"}, "lookahead", ("lookahead", {})),
    ],
)
def test_a_mode_has_only_what_it_has_a_use_for(point, mode, wanted):
    assert sweeps.of_mode(point, mode) == wanted


# -- order


class Named(NamedTuple):
    name: str
    concurrency: int = 1
    task: str = "x"


kinds = st.tuples(st.sampled_from((1, 2, 8)), st.sampled_from("xy"))
sizes = st.fixed_dictionaries({"x": st.integers(0, 40), "y": st.integers(0, 9)})


@given(
    st.lists(st.lists(kinds, max_size=4), min_size=3, max_size=3),
    sizes,
    st.integers(0, 5),
    st.booleans(),
)
def test_every_variant_makes_every_sample_once(shapes, sizes, seed, blocks):
    sets = [[Named(f"{n}{v}", *kind) for v, kind in enumerate(of)] for n, of in enumerate(shapes)]
    items = {task: tuple(f"{task}{n}" for n in range(size)) for task, size in sizes.items()}
    stretches = (order.in_blocks if blocks else order.one_stretch)(sets, items, seed)
    made = Counter(
        (turn.variant, item)
        for stretch in stretches
        for turn in stretch.turns
        for item in turn.items
    )
    assert made == Counter(
        (variant, item) for of in sets for variant in of for item in items[variant.task]
    )
    for stretch in stretches:
        assert {int(turn.variant.name[0]) for turn in stretch.turns} <= set(stretch.servers)
    assert (order.in_blocks if blocks else order.one_stretch)(sets, items, seed) == stretches


def test_one_at_a_time_every_variant_has_every_place_equally_often():
    found = order.turns("abcd", range(40), 1, seed=3)
    assert all(len(turn.items) == 1 for turn in found)
    places = defaultdict(Counter)
    for number, turn in enumerate(found):
        assert turn.items == (number // 4,)
        places[turn.variant][number % 4] += 1
    assert all(count == {0: 10, 1: 10, 2: 10, 3: 10} for count in places.values())
    orders = {tuple(turn.variant for turn in found[n : n + 4]) for n in range(0, 160, 4)}
    assert len(orders) > 8  # not always the same neighbours
    assert found != order.turns("abcd", range(40), 1, seed=4)


def test_several_at_a_time_have_blocks_that_are_reversed():
    found = order.turns("abc", range(64), 8, seed=0)
    of = [turn.variant for turn in found]
    assert of[3:] == of[:3][::-1]
    assert [len(turn.items) for turn in found] == [32] * 6
    assert [len(turn.items) for turn in order.turns("abc", range(20), 8, seed=0)] == [20] * 3


def test_servers_that_cannot_be_up_together_take_turns():
    found = order.in_blocks([[Named("a"), Named("b")], [Named("c")]], {"x": tuple(range(6))}, 0)
    assert [stretch.servers for stretch in found] == [
        (0,),
        (1,),
        (0,),
    ]  # the second stays up: A B B A
    assert [len(stretch.turns) for stretch in found] == [6, 6, 6]
    items = [{turn.items[0] for turn in stretch.turns} for stretch in found]
    assert items == [{0, 1, 2}, set(range(6)), {3, 4, 5}]


# -- variants


def varied(modes=ALL, sweep=(), tasks=("pocket",), **given):
    """The variants of these modes and sweeps."""
    plan = settings.settle({"mode": modes, **given})
    return variants(plan, dict.fromkeys(tasks, ""), sweeps.points(sweep))


def test_all_modes_have_one_temperature():
    found = varied()
    assert {v.key for v in found} == {("sampled", mode) for mode in ALL}
    assert {v.config["sampling"]["temperature"] for v in found} == {0.6}
    assert [{v.mode for v in of} for of in servers.server_sets(found)] == [
        {"autoregressive", "lookahead", "lossless"},
        {"sd", "lookahead+sd", "auto"},
    ]


def test_a_sweep_makes_nothing_twice():
    found = varied(("autoregressive", "lookahead"), ["depth=1..4", "width=1,2"])
    assert Counter(v.mode for v in found) == {"autoregressive": 1, "lookahead": 8}
    assert len({json.dumps(v.config, sort_keys=True) for v in found}) == len(found)
    assert len({v.folder for v in found}) == len(found)
    (shared,) = servers.server_sets(found)
    assert servers.needed_runtimes(shared).runtimes["target"].max_running_requests >= 2**4


def test_drafted_tokens_with_and_without_lookahead():
    found = varied(("sd", "lookahead+sd"), ["sd-tokens=0,2,4"])
    assert {(v.folder, v.mode) for v in found} == {
        ("sampled", "autoregressive"),
        ("sampled", "lookahead"),
        *((f"sd-tokens-{n}", mode) for n in (2, 4) for mode in ("sd", "lookahead+sd")),
    }
    sets = servers.server_sets(found)
    tokens = [servers.needed_runtimes(of).runtimes["target"].token_layer.tokens for of in sets]
    assert tokens == [None, 2, 4]


def test_token_layers_are_compared_by_the_modes_that_each_of_them_has():
    modes = ("autoregressive", "sd", "lossless", "lookahead+sd")
    found = varied(modes, ["token-layer=none,standalone:6,fed"])
    assert {(v.folder, v.mode) for v in found} == {
        ("sampled", "autoregressive"),
        ("sampled", "lookahead"),
        ("token-layer-none", "lossless"),
        *(("token-layer-standalone-6", mode) for mode in ("sd", "lossless", "lookahead+sd")),
        *(("token-layer-fed", mode) for mode in ("lossless", "lookahead+sd")),
    }
    layers = [
        servers.needed_runtimes(of).runtimes["target"].token_layer
        for of in servers.server_sets(found)
    ]
    assert [(one.algorithm, one.tokens, bool(one.draft_model)) for one in layers] == [
        ("none", None, False),
        ("standalone", 6, True),
        ("fed", None, False),
    ]


def test_names_of_folders_are_names_of_folders():
    found = varied(("lookahead",), ["verifier=judge,random:0.5"], ("gsm8k:all", "../a.py:T"))
    assert len({v.folder for v in found}) == 4
    assert not [v.folder for v in found if set(v.folder) & set("/:\\ ") or v.folder.startswith(".")]


# -- fairness


def on_gpus(**roles):
    heads = {"target": "dummy:qwen3-32b", "draft": "dummy:qwen3-1.7b", "judge": "dummy:qwen2.5-7b"}
    return Deployment(
        "gpus",
        {
            role: Runtime(model=heads[role], gpus=of, tensor_parallel=len(of))
            for role, of in roles.items()
        },
    )


@pytest.mark.parametrize(
    ("way", "roles", "replicas", "parallel", "gpus"),
    [
        ("replicas", {"target": (0, 1), "draft": (2,), "judge": (3,)}, 2, 2, (0, 1, 2, 3)),
        ("replicas", {"target": (0,), "draft": (1,), "judge": (1,)}, 2, 1, (0, 1)),
        ("replicas", {"target": (0, 1), "draft": (2,), "judge": (3, 4)}, 2, 2, (0, 1, 2, 3)),
        ("tp", {"target": (0, 1), "draft": (2,), "judge": (3,)}, 1, 4, (0, 1, 2, 3)),
        ("tp", {"target": (0, 1), "draft": (2,), "judge": (4, 5)}, 1, 4, (0, 1, 2, 4)),
    ],
)
def test_the_baseline_gets_the_gpus(way, roles, replicas, parallel, gpus):
    deployment = on_gpus(**roles)
    shared = {role: one.replace(memory_fraction=0.4) for role, one in deployment.runtimes.items()}
    found, said = fair_baseline(deployment.replace(runtimes=shared), way)
    target = found.runtimes["target"]
    assert target.memory_fraction is None, "it has the GPUs to itself"
    assert (target.data_parallel, target.tensor_parallel, target.gpus) == (replicas, parallel, gpus)
    assert f"on {len(gpus)} GPUs" in said


@pytest.mark.parametrize(
    "deployment",
    [
        load_deployment("pocket"),
        on_gpus(target=(0,), draft=(0,)),
        Deployment("urls", {"target": Runtime(url="http://localhost:1")}),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_where_there_is_nothing_to_be_fair_with(deployment, way):
    with pytest.raises(ConfigError):
        fair_baseline(deployment, way)


# -- servers


@pytest.mark.parametrize(("free", "how"), [(64.0, "together"), (2.0, "blocks")])
def test_servers_are_up_together_if_memory_allows(monkeypatch, free, how):
    there = SimpleNamespace(available=free * 2**30)
    monkeypatch.setattr(servers.psutil, "virtual_memory", lambda: there)
    needed = [servers.needed_runtimes(of) for of in servers.server_sets(varied())]
    found, why = servers.together_or_in_turns("auto", needed)
    assert found == how
    assert "4 servers" in why  # draft and judge are shared
    assert servers.together_or_in_turns("blocks", needed)[0] == "blocks"
    assert servers.together_or_in_turns("blocks", needed[:1])[0] == "together"


# -- the command


@pytest.fixture
def double(servers):
    servers.transports = transports(0.0)
    return servers


def planned(*arguments):
    """What a benchmark would do."""
    return json.loads(bench(*arguments, "--print", "--json").stdout)


def test_all_modes_on_the_same_questions(double, tmp_path):
    result = bench(
        "--limit", 2, "--samples", 2, "--output", tmp_path / "out", "-o", "bench.servers=blocks"
    )
    made = records(tmp_path / "out")
    samples = {(r["question_id"], r["sample"], r["mode"]) for r in made}
    assert len(made) == len(samples) == 2 * 2 * len(ALL)
    assert {r["question_id"] for r in made} == {"pocket-0001", "pocket-0002"}
    assert "Where the time went" in result.output and "lookahead+sd" in result.output
    about = json.loads((tmp_path / "out" / "run.json").read_text())
    assert about["order"]["servers"] == "blocks"
    assert [one["servers"] for one in about["starts"]] == [[1], [2], [1]]
    assert len(double.started) == 3
    told = json.loads((tmp_path / "out" / "sampled" / "run.json").read_text())
    assert told["order"] == about["order"]


def test_the_results_of_another_benchmark_or_command_are_not_replaced(double, tmp_path):
    """Also where no folder of records is the same; and two benchmarks do not share a folder."""
    out = ("--limit", 1, "--output", tmp_path / "out")
    bench("--modes", "lookahead", *out)
    before = (tmp_path / "out" / "run.json").read_bytes()
    others = ("--modes", "autoregressive", "--temperature", 0.5, "--sweep", "concurrency=1,2")
    for more in ((), ("--resume",)):
        said = " ".join(bench(*others, *out, *more, code=1).stderr.split())
        assert "has the results of another benchmark (only one has concurrency-1" in said
        assert "/autoregressive, sampled/lookahead)" in said
        assert "Hint: resume with the same options, or give another --output" in said
    with store.own_folder(tmp_path / "out"):
        assert "another run is writing" in bench(*others, *out, code=1).stderr
    assert (tmp_path / "out" / "run.json").read_bytes() == before
    bench("--modes", "lookahead", *out, "--resume")
    called("run", "--task", "pocket", "--limit", 1, "--output", tmp_path / "run")
    said = bench("--limit", 1, "--output", tmp_path / "run", code=1).stderr
    assert "of another command" in " ".join(said.split())
    assert not list((tmp_path / "run").glob("*/records.jsonl"))


def test_nothing_is_learnt_from_a_warm_up(double, tmp_path, monkeypatch):
    """A policy that adapts would begin with times of servers that were cold, and in one of its
    settings only.
    """
    seen = defaultdict(list)
    run = Runner.run

    def heard(self, work, *rest):
        seen[self].extend(item.question.id for item in work)
        return run(self, work, *rest)

    monkeypatch.setattr(Runner, "run", heard)
    bench("--limit", 2, "--modes", "lookahead", "--output", tmp_path / "out")
    assert sorted(seen.values()) == [["pocket-0001", "pocket-0002"], ["warm-up"]]


def kept_in_order(folder):
    """Question and mode of each record of a benchmark with one folder, as they were written."""
    return [(one["question_id"], one["mode"]) for one in records(folder)]


def test_every_turn_begins_with_empty_caches(double, tmp_path, monkeypatch):
    """Each question in both modes, one after the other; several at a time in blocks A B B A."""
    seen = []
    transport = double.transports["target"]
    get = transport.get
    monkeypatch.setattr(transport, "get", lambda path, *rest: (seen.append(path), get(path))[1])
    asked = ("--modes", "autoregressive,lookahead")
    bench("--limit", 8, *asked, "--output", tmp_path / "a")
    assert seen.count("/flush_cache?timeout=5") == 16
    kept = kept_in_order(tmp_path / "a")
    names = [name for name, _ in kept]
    assert names[::2] == names[1::2] and len(set(names)) == 8
    pairs = Counter((one[1], other[1]) for one, other in zip(kept[::2], kept[1::2], strict=True))
    assert pairs == {("autoregressive", "lookahead"): 4, ("lookahead", "autoregressive"): 4}
    seen.clear()
    bench("--limit", 16, "--concurrency", 2, *asked, "--output", tmp_path / "b")
    assert seen.count("/flush_cache?timeout=5") == 4
    blocks = [
        (mode, len([*of]))
        for mode, of in itertools.groupby(kept_in_order(tmp_path / "b"), lambda one: one[1])
    ]
    first, second = blocks[0][0], blocks[1][0]
    assert blocks == [(first, 8), (second, 16), (first, 8)] and first != second


def test_caches_that_were_not_emptied_stand_beside_the_verdict(double, tmp_path, monkeypatch):
    def refused(path, timeout):
        raise BadReply("requests are running", role="draft")

    monkeypatch.setattr(double.transports["draft"], "get", refused)
    out = ("--modes", "autoregressive,lookahead", "--output", tmp_path / "out")
    done = bench("--limit", 2, *out)
    said = " ".join(done.stdout.split())
    verdict, warning = "Does looking ahead pay", "draft: its cache was not emptied at a turn"
    assert verdict in said and said.index(warning) > said.index(verdict)
    warnings = json.loads((tmp_path / "out" / "run.json").read_text("utf-8"))["warnings"]
    assert warning in warnings[-1]
    assert " ".join(done.stderr.split()).count(warning) == 1, "once, not at each turn"


def test_methods_share_the_servers_and_stand_in_one_table(double, tmp_path):
    methods = "rsd:threshold=0,most=50,conf_spec:sure=0,lookahead,autoregressive"
    asked = ("--methods", methods, "--sweep", "concurrency=1,2", "--samples", 2)
    done = bench("--limit", 2, *asked, "--output", tmp_path / "out")
    assert len(double.started) == 1
    made = records(tmp_path / "out")
    programs = Counter(one["config"].get("program", one["mode"]) for one in made)
    names = ["rsd:threshold=0,most=50", "conf_spec:sure=0", "lookahead", "autoregressive"]
    assert programs == dict.fromkeys(names, 2 * 2 * 2)
    found = report.make_report(collection.read_runs([tmp_path / "out"]))
    table = next(one for one in found.tables if one.title == "Methods")
    assert [row[1] for row in table.rows if "1 at once" in row[1]] == [
        "autoregressive (1 at once)",
        "lookahead (1 at once)",
        "conf_spec:sure=0 (1 at once)",
        "rsd:threshold=0,most=50 (1 at once)",
    ]
    by_name = {m.group.method: m for m in found.measures}
    assert by_name["rsd:threshold=0,most=50"].drafted == 1
    assert by_name["rsd:threshold=0,most=50"].decisions == 1  # each step is weighed
    assert by_name["conf_spec:sure=0"].decisions == by_name["autoregressive"].drafted == 0
    assert by_name["autoregressive"].written == {"target": 1, "draft": 0}
    drawn = {path.name for path in charts.draw_plots(found, tmp_path / "plots")}
    assert {"speedup.png", "speedup.svg"} <= drawn
    for verdict in found.verdicts:  # the fastest, and each program that is another one
        said = " ".join(verdict.words())
        assert all(f"{name} ({verdict.concurrency} at once)" in said for name in names[:2])
    shown = [line.split("  ")[2] for line in done.stderr.splitlines() if line[:1].isdigit()]
    assert {one for one in shown if "1" in one} == {  # answers as they come
        "rsd-threshold-0-most-50_concurrency-1",
        "conf_spec-sure-0_concurrency-1",
        "concurrency-1 lookahead",
        "concurrency-1 autoregressive",
    }


def test_programs_run_with_a_token_layer_if_one_is_asked_for():
    plan = planned("--methods", "specreason,sd", "--token-layer", "ngram")
    assert [*plan["variants"]] == ["specreason/lookahead+sd", "sampled/sd"]


def test_several_at_a_time_and_several_settings(double, tmp_path):
    options = (
        "--modes",
        "autoregressive,lookahead",
        "--sweep",
        "concurrency=1,2",
        "--sweep",
        "depth=2,4",
        "--json",
    )
    done = bench("--limit", 3, *options, "--output", tmp_path / "out")
    groups = json.loads(done.stdout)["groups"]
    assert Counter((g["mode"], g["concurrency"]) for g in groups) == {
        **{("autoregressive", n): 1 for n in (1, 2)},
        **{("lookahead", n): 2 for n in (1, 2)},
    }
    assert all(g["samples"] == 3 and not g["errors"] for g in groups)
    assert all(g["speed"] for g in groups if g["mode"] == "lookahead")


@pytest.mark.parametrize(
    ("free", "bodies"),
    [
        ([], "pocket-body"),
        ([11.0], "pocket-body"),
        ([22.5], "pocket-1gpu-24gb"),
        ([79.0, 79.0], "pocket-1gpu-80gb"),
        ([139.0], "pocket-1gpu"),
    ],
)
def test_figures_for_others_are_of_bodies_that_fit(monkeypatch, free, bodies):
    monkeypatch.setattr(presets.gpus, "visible", lambda: [SimpleNamespace(free=f) for f in free])
    found = planned("-o", "bench.figures=mine.json", "-o", "runtimes.draft.extra.page-size=16")
    command, variants = found["command"], found["variants"]
    assert command["deployment"] == bodies and command["limit"] == 8
    modes = [variant["config"]["mode"] for variant in variants.values()]
    assert modes == ["autoregressive", "lookahead", "lossless", "sd", "lookahead+sd"]
    runtimes = next(iter(variants.values()))["config"]["runtimes"]
    attention = {"attention-backend": "triton"} if bodies != "pocket-body" else {}
    assert runtimes["target"]["extra"] == attention
    drafted = next(
        one["config"] for one in variants.values() if one["config"]["mode"] == "lookahead"
    )
    assert drafted["runtimes"]["draft"]["extra"] == {**attention, "page-size": 16}


def test_the_papers_table(double, monkeypatch):
    counts = {"gsm8k": 100, "humaneval": 164}

    def read(hub, task, first=None):
        return [Question(f"{task}-{number}", "?") for number in range(counts[task])]

    monkeypatch.setattr(Hub, "read", read)
    tasks = ("--task", "gsm8k", "--task", "humaneval")
    plan = planned("-o", "bench.paper=table1", "--deployment", "qwen3-4gpu", *tasks)
    assert plan["samples"] == (100 + 164) * 16 * 4
    assert {name.split("/")[1] for name in plan["variants"]} == {
        "autoregressive",
        "sd",
        "lookahead",
        "lookahead+sd",
    }
    for one in plan["variants"].values():
        assert one["config"]["limits"]["max_tokens"] == 37 * 1024
        assert one["config"]["sampling"] | {"seed": 0} == {
            **{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "seed": 0}
        }
    assert not double.started


@pytest.mark.parametrize(
    ("layered", "roles", "modes"),
    [
        (False, ("target", "draft", "judge"), {"autoregressive", "lookahead", "auto", "lossless"}),
        (True, ("target", "draft", "judge"), {"sd", "lookahead+sd", "auto", "lossless"}),
        (True, ("target",), {"sd"}),
    ],
)
def test_a_deployment_that_is_up_is_asked_for_the_modes_that_it_can_answer_in(
    monkeypatch, tmp_path, layered, roles, modes
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(settings, "model_of", lambda role, runtime: f"known/{role}")
    up = Deployment(
        "x", {role: Runtime(url=f"http://127.0.0.1:{n}") for n, role in enumerate(roles, 1)}
    ).to_dict()
    about = ("x", os.getpid(), launched.born(os.getpid()), "now", ["sd"])
    launched.write(launched.Launched(*about, layered, {role: {} for role in roles}, up))
    assert {name.split("/")[1] for name in planned("--attach", "x")["variants"]} == modes


@pytest.mark.parametrize(
    ("task", "asked", "wanted"), [("livecodebench", None, 8), ("gsm8k", None, 16), ("gsm8k", 3, 3)]
)
def test_fewer_samples_of_livecodebench(task, asked, wanted):
    assert bench_command.answers_per_question(task, {"samples": asked, "paper": "table1"}) == wanted


# -- random weights


def test_random_weights_are_given_their_acceptance():
    swept = ("--sweep", "alpha=0.4,0.8", "--sweep", "depth=1,3")
    plan = planned("-o", "bench.dummy_weights=true", *swept)
    ahead = [one["config"] for one in plan["variants"].values() if one["config"]["lookahead"]]
    assert {(c["lookahead"]["depth"], c["lookahead"]["verifier"]) for c in ahead} == {
        (d, f"oracle:{a}") for d in (1, 3) for a in ("0.4", "0.8")
    }
    assert all(c["lookahead"]["half_sentence_guard"] is False for c in ahead)
    assert all((c["sampling"]["top_p"], c["sampling"]["top_k"]) == (1.0, -1) for c in ahead), (
        "no vocabulary is sorted"
    )
    assert all(c["runtimes"]["judge"]["model"].startswith("dummy:") for c in ahead)


def test_a_simulated_acceptance_is_said_with_the_figures():
    layer = ("--token-layer", "ngram", "-o", "runtimes.target.token_layer.accept_length=2.5")
    plan = planned("-o", "bench.dummy_weights=true", "--modes", "sd", *layer)
    config = next(iter(plan["variants"].values()))["config"]
    assert config["runtimes"]["target"]["token_layer"]["accept_length"] == 2.5
    group = collection.group_of({"mode": "sd", "config": config}, 1, {})
    assert group.marks == ("dummy weights", "simulated acceptance")
