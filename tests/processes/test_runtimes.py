"""Servers as processes, with a small script in SGLang's place: flags, readiness, death, and that
nothing is left.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from torch.distributed import TCPStore

from lr_sglang.api import solve as api
from lr_sglang.cli import launch as launch_command
from lr_sglang.cli import settings
from lr_sglang.config import Deployment, Runtime, Sampling, TokenLayer
from lr_sglang.errors import (
    ConfigError,
    LaunchError,
    RuntimeDown,
    RuntimeRefused,
    RuntimeTimeout,
)
from lr_sglang.runtimes import ProgressEvent, Server, launch, launched
from lr_sglang.runtimes.attach import attach
from lr_sglang.runtimes.launching import compilers, flags, fleet, probe
from lr_sglang.runtimes.launching import server as servers
from lr_sglang.runtimes.launching.flags import Platform
from lr_sglang.runtimes.launching.server import Reservation
from lr_sglang.runtimes.placement import gpus, models
from lr_sglang.sglang_api import release
from tests.called import called
from tests.serving import Process, begun, until

GPU, CPU = (
    Platform("cuda"),
    Platform("cpu", {"dtype": "float32", "sleep-on-idle": True}, {"SWITCH": "1"}),
)

# What stands in SGLang's place: three generations of processes, the last of them in a session of
# its own.
FAKE = """
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "--die" in options:
    print(options["--die"], flush=True)
    time.sleep(0.2)
    sys.exit(3)
nap = [sys.executable, "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
child = subprocess.Popen(nap)
stray = subprocess.Popen(nap, start_new_session=True)
print("pids", os.getpid(), child.pid, stray.pid, "TMPDIR", os.environ.get("TMPDIR"), flush=True)
if "--late" in options:
    time.sleep(600)
if "--says" in options:
    print(options["--says"], flush=True)
class Handler(BaseHTTPRequestHandler):
    def reply(self, body):
        if "--key" in options and self.headers["Authorization"] != "Bearer " + options["--key"]:
            return self.send_error(401)
        if self.path in options.get("--missing", "").split(","):
            return self.send_error(404)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())
    def do_GET(self):
        time.sleep(float(options.get("--slow", 0)))
        path = options["--model-path"]
        room = {"max_total_num_tokens": int(options.get("--holds", 0))}
        if self.path == "/server_info":
            return self.reply(room)
        if self.path == "/v1/models":
            return self.reply({"data": [{"max_model_len": int(options.get("--context", 1 << 20))}]})
        self.reply({"model_path": path, "tokenizer_path": path})
    def do_POST(self):
        sys.stdout.write(self.rfile.read(int(self.headers["Content-Length"])).decode() + "\\n")
        sys.stdout.flush()
        if "--fail" in options:
            os._exit(4)
        if "--compiles" in options:
            open(options["--compiles"], "a").write("kernel")
        self.reply({"text": "2"})
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""

SOON = 40.0  # seconds in which a process does what it is told, on a busy machine


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    return path


def line(fake: Path, port: int, model: object, options: Mapping[str, object]) -> list[str]:
    """The command line of a fake server."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    start = [sys.executable, "-S", str(fake)]
    return [*start, "--port", str(port), "--model-path", str(model), *words]


@pytest.fixture
def start(fake: Path, tmp_path: Path) -> Iterator[object]:
    """Starts fake servers and stops them at the end."""
    started: list[Server] = []

    def go(meeting: str = "", **given: object) -> Server:
        reservation = Reservation()
        argv = line(fake, reservation.port, tmp_path, given)
        url = f"http://127.0.0.1:{reservation.port}"
        log = tmp_path / "logs" / f"{len(started)}.log"
        server = Server("draft", argv, url, log, {"TMPDIR": ""}, meeting=meeting)
        started.append(server)
        server.start()
        server.reservation = reservation
        return server

    yield go
    for server in started:
        server.stop()


def pids_in(log: Path) -> list[int]:
    """Those that a fake server has written down, once it has."""
    until(lambda: log.exists() and "TMPDIR" in log.read_text(), SOON)
    found = re.search(r"pids (\d+) (\d+) (\d+) TMPDIR", log.read_text())
    return [int(pid) for pid in found.groups()]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- flags
# -----------------------------------------------------------------------------------------------------------


def given(runtime: Runtime, platform: Platform = GPU, **more) -> dict[str, str | bool]:
    """The flags and variables of the command, as a dictionary."""
    command = flags.command(runtime, 4000, platform, **more)
    words = command.argv[command.argv.index("--model-path") :]
    values: dict[str, str | bool] = dict(command.env)
    for here, after in zip(words, [*words[1:], "--"], strict=True):
        if here.startswith("--"):
            values[here[2:]] = True if after.startswith("--") else after
    return values


EVERY_FIELD = Runtime(
    model="m", tensor_parallel=2, data_parallel=3, memory_fraction=0.5, dtype="bfloat16", quantization="fp8",
    context_length=4096, tokenizer="t",
)  # fmt: skip
FLAGS = {
    "tp-size": "2", "dp-size": "3", "mem-fraction-static": "0.5", "dtype": "bfloat16", "quantization": "fp8",
    "context-length": "4096", "tokenizer-path": "t", "device": "cuda",
}  # fmt: skip
REPEATABLE = Runtime(model="m", repeatable=True)


@pytest.mark.parametrize(
    ("runtime", "platform", "expected", "absent"),
    [
        (
            Runtime(model="owner/name"),
            GPU,
            {"model-path": "owner/name", "host": "127.0.0.1", "port": "4000"},
            "",
        ),
        (EVERY_FIELD, GPU, FLAGS, "attention-backend"),  # SGLang knows the GPU
        # What a runtime says goes before what the platform says.
        (Runtime(model="m"), CPU, {"dtype": "float32", "SWITCH": "1"}, ""),
        (Runtime(model="m", dtype="bfloat16"), CPU, {"dtype": "bfloat16"}, ""),
        (Runtime(model="m", extra={"sleep_on_idle": False}), CPU, {}, "sleep-on-idle"),
        # Repeatable keeps the prefix cache.
        (
            REPEATABLE,
            GPU,
            {"enable-deterministic-inference": True, "attention-backend": "triton"},
            "",
        ),
        (
            REPEATABLE.replace(extra={"attention-backend": "fa3"}),
            GPU,
            {"attention-backend": "fa3"},
            "",
        ),
        # SGLang refuses it; our sampler has seeds.
        (REPEATABLE, CPU, {}, "enable-deterministic-inference"),
    ],
)
def test_every_field_becomes_its_flag(runtime, platform, expected, absent):
    found = given(runtime, platform)
    assert expected.items() <= found.items() and absent not in found


def test_extra_flags_of_every_kind():
    extra = {
        "enable_metrics": True,
        "--log-level": "debug",
        "cuda-graph-bs": [1, 2],
        "json-model-override-args": {"a": 1},
    }
    words = flags.command(Runtime(model="m", extra=extra), 1, GPU).argv
    assert " ".join(words).endswith(
        '--enable-metrics --log-level debug --cuda-graph-bs 1 2 --json-model-override-args {"a": 1}'
    )


@pytest.mark.parametrize(
    ("extra", "target", "expected"),
    [
        ({}, False, (None, None)),
        ({}, True, ("auto", "auto")),
        ({"tool-call-parser": "llama3"}, True, ("llama3", "auto")),
    ],
)
def test_the_target_finds_calls_and_reasoning_by_its_template_unless_it_is_told_how(
    extra, target, expected
):
    found = given(Runtime(model="m", extra=extra), CPU, target=target)
    assert (found.get("tool-call-parser"), found.get("reasoning-parser")) == expected


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [((1,), None, "1"), ((0, 1), "4,5,6", "4,5"), ((2,), "GPU-a, GPU-b, GPU-c", "GPU-c")],
)
def test_gpus_count_within_those_that_we_may_see(gpus, visible, expected):
    environ = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    runtime = Runtime(model="m", gpus=gpus, tensor_parallel=len(gpus))
    command = flags.command(runtime, 1, GPU, environ=environ)
    assert command.env == {"CUDA_VISIBLE_DEVICES": expected, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    mine = flags.command(runtime, 1, GPU, environ={**environ, "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert mine.env == {"CUDA_VISIBLE_DEVICES": expected}


@pytest.mark.parametrize(
    ("runtime", "platform", "visible"),
    [
        (Runtime(model="m", gpus=(0,), tensor_parallel=2), GPU, None),
        (Runtime(model="m", gpus=(0, 1)), GPU, None),
        (Runtime(model="m", gpus=(0, 1, 2), data_parallel=2), GPU, None),
        (Runtime(model="m", gpus=(3,)), GPU, "0,1"),
        (Runtime(model="m", gpus=(0,)), CPU, None),
    ],
)
def test_gpus_that_cannot_be(runtime, platform, visible):
    with pytest.raises(ConfigError):
        flags.command(
            runtime, 1, platform, environ={"CUDA_VISIBLE_DEVICES": visible} if visible else {}
        )


@pytest.mark.parametrize(
    ("asked", "there", "expected"),
    [
        (Runtime(model="m"), 1, "cuda"),
        (Runtime(model="m"), 0, "cpu"),
        (Runtime(model="m", device="cpu"), 1, "cpu"),
        (Runtime(model="pocket:draft"), 1, "cpu"),
        (Runtime(model="pocket:draft", device="cuda"), 1, "cuda"),
        (Runtime(model="pocket:draft", gpus=(0,)), 1, "cuda"),
        (Runtime(model="m", device="cuda"), 0, ConfigError),
        (Runtime(model="m", gpus=(0,)), 0, ConfigError),
    ],
)
def test_where_a_runtime_runs(monkeypatch, asked, there, expected):
    monkeypatch.setattr(flags, "_gpus", lambda: there)
    with contextlib.nullcontext() if isinstance(expected, str) else pytest.raises(expected):
        assert flags.device(asked) == expected


# --- models
# ----------------------------------------------------------------------------------------------------------


def test_where_models_are(here):
    (here / "owner" / "here").mkdir(parents=True)
    assert models.locate("owner/name") == "owner/name"
    assert (
        models.locate("owner/here") == models.locate("./owner/here") == str(here / "owner" / "here")
    )
    (here / "file").touch()
    (here / "m.gguf").touch()
    assert models.locate("./m.gguf") == str(here / "m.gguf")
    for wrong in ("./nothing", "./file", "/nothing", "~/nothing/at/all", "pocket:drafter"):
        with pytest.raises(ConfigError, match=r"^draft: .*\nHint: "):
            models.locate(wrong, "draft")


# --- one server
# ------------------------------------------------------------------------------------------------------


def test_stop_ends_grandchildren_and_strays_too(start):
    """Of a server that is ready: it has answered one request."""
    server, stages = start(), []
    info = server.wait_ready(10, stage=stages.append)
    assert info.model == info.tokenizer
    assert stages == ["warming", "ready"] and "max_new_tokens" in servers.tail_of(server.log)
    assert server.alive() and server.status is None
    pids = pids_in(server.log)
    folder = re.search(r"TMPDIR (\S+)", server.log.read_text())[1]
    assert all(map(runs, pids)) and Path(folder).is_dir()
    server.stop()
    assert not any(map(runs, pids)) and not server.alive() and not Path(folder).exists()
    server.stop()
    server.ask_to_stop()


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    server = Server("draft", ["true"], "http://127.0.0.1:1", tmp_path / "file" / "draft.log")
    with pytest.raises(LaunchError, match=f"^draft: .*cannot be started: .*: {tmp_path}/file"):
        server.start()


@pytest.mark.parametrize(
    ("options", "limit", "said"),
    [({"fail": 1}, 10, "ended with status 4"), ({"late": 1}, 0.5, "not ready after")],
)
def test_a_server_that_does_not_get_ready(start, options, limit, said):
    server = start(**options)
    with pytest.raises(
        LaunchError, match=rf"(?s){said}.*\nHint: .*its log: {server.log}"
    ) as caught:
        server.wait_ready(limit)
    assert caught.value.detail == servers.tail_of(server.log)


def test_a_download_is_not_part_of_the_time_to_start(start, tmp_path, monkeypatch):
    blob = tmp_path / "models--owner--name" / "blobs" / "hash.incomplete"
    blob.parent.mkdir(parents=True)
    blob.touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    answers, asked = [], models.being_fetched

    def being_fetched(model: str) -> bool:
        answers.append(asked(model))
        if len(answers) == 5:
            blob.rename(blob.with_suffix(""))
        return answers[-1]

    monkeypatch.setattr(models, "being_fetched", being_fetched)
    server = start(late=1)
    server.model = "owner/name"
    with pytest.raises(LaunchError, match="is not ready after"):
        server.wait_ready(0.1)
    assert answers == [True] * 5 + [False] and server.fetched > 0


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_nothing_is_left_when_a_guardian_is_killed(start, which):
    """Not what the server's helpers have started either, in groups and sessions of their own."""
    server = start()
    pids = pids_in(server.log)
    folder = Path(re.search(r"TMPDIR (\S+)", server.log.read_text())[1])
    inner = psutil.Process(pids[0]).ppid()
    assert psutil.Process(inner).ppid() == server.pid
    os.kill(server.pid if which == "outer" else inner, signal.SIGKILL)
    until(lambda: not any(map(runs, (*pids, inner))) and not server.alive(), SOON)
    until(lambda: not folder.exists(), SOON)
    assert server.status == 128 + signal.SIGKILL
    server.stop()


def test_nothing_is_left_by_a_guardian_that_does_not_end_in_time(start, monkeypatch):
    server = start()
    pids = pids_in(server.log)
    guardians = [server.pid, psutil.Process(pids[0]).ppid()]
    for pid in guardians:
        os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("lr_sglang.runtimes.launching.server.STOP_LIMIT", 0.2)
    server.stop()
    until(lambda: not any(map(runs, (*pids, *guardians))), SOON)
    assert not Path(re.search(r"TMPDIR (\S+)", server.log.read_text())[1]).exists()


@pytest.mark.parametrize(
    "way", ["SIGKILL", "SIGTERM", "SIGINT", "exit", "exception", "fork", "stopped"]
)
def test_nothing_outlives_us(fake, tmp_path, popen, way):
    """However this process ends; "fork": killed while a forked copy of it, which holds its files,
    lives on; "stopped": killed while the guardian that watches the server is stopped.
    """
    program = f"""
        import os, sys, time
        from pathlib import Path
        from lr_sglang.runtimes.launching.server import Server
        argv = [sys.executable, "-S", {str(fake)!r}, "--late", "1"]
        Server("target", argv, "http://127.0.0.1:1", Path({str(tmp_path)!r}) / "one.log").start()
        while "pids" not in Path({str(tmp_path)!r}, "one.log").read_text(): time.sleep(0.05)
        if {way!r} == "fork" and os.fork() == 0: time.sleep(6); os._exit(0)
        Path({str(tmp_path)!r}, "up").touch()
        if {way!r} == "exit": sys.exit(1)
        if {way!r} == "exception": raise ValueError
        time.sleep(600)
    """
    process = popen([sys.executable, "-c", textwrap.dedent(program)], stderr=subprocess.DEVNULL)
    until((tmp_path / "up").exists, 30)
    pids = pids_in(tmp_path / "one.log")
    if way == "stopped":
        psutil.Process(pids[0]).parent().suspend()
    with contextlib.suppress(AttributeError):
        named = "SIGKILL" if way in ("fork", "stopped") else way
        process.send_signal(getattr(signal, named))
    process.wait(10)
    until(lambda: not any(map(runs, pids)), 5)


# --- ports and logs
# --------------------------------------------------------------------------------------------------


def test_a_reserved_port_is_kept_and_can_still_be_listened_on():
    reservation = Reservation()
    with pytest.raises(OSError), socket.socket() as other:
        other.bind(("127.0.0.1", reservation.port))
    # two roles of a deployment, or two that come up at once
    with pytest.raises(LaunchError, match="already in use"):
        Reservation(reservation.port, "judge")
    with socket.create_server(("127.0.0.1", reservation.port), reuse_port=False):
        socket.create_connection(("127.0.0.1", reservation.port), 2).close()
        reservation.release()
        with pytest.raises(LaunchError, match=str(reservation.port)):
            Reservation(reservation.port, "judge")


def test_the_port_where_a_servers_processes_meet_is_kept_until_it_is_ready(start):
    """SGLang's own choice is free when it looks, and may be anybody's when its scheduler listens,
    seconds later.
    """
    server = start(meeting="--nccl-port")
    told = Path(f"/proc/{pids_in(server.log)[0]}/cmdline").read_text().split("\0")
    port = int(told[told.index("--nccl-port") + 1])
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(OSError), socket.socket() as other:
            other.bind((host, port))
    # as SGLang's scheduler
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    store.set("a", "b")
    del store
    server.wait_ready(20)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("0.0.0.0", port))
        other.listen()


@pytest.mark.parametrize("more", [{"data_parallel": 2}, {"extra": {"nccl_port": 4001}}])
def test_a_server_that_needs_several_such_ports_or_is_given_one_is_told_none(more):
    assert flags.meeting(Runtime(model="m")) == "--nccl-port"
    assert not flags.meeting(Runtime(model="m", **more))


def test_a_tail_counts_a_progress_bar_as_one_line(tmp_path):
    log = tmp_path / "log"
    assert servers.tail_of(log) == ""
    log.write_bytes(b"one\r\ntwo\n\n 10%\r 50%\r100%\nlast \xff")
    assert servers.tail_of(log, 3) == "two\n100%\nlast \ufffd"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("[Errno 98] error while attempting to bind: address already in use", "'port'"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "memory_fraction"),
        ("RuntimeError: Not enough memory. Please try to increase it.", "memory_fraction"),
        ("OSError: x/y is not a local folder and is not a valid model identifier", "no such model"),
        ("OSError: You are trying to access a gated repo.", "HF_TOKEN"),
        ("OSError: We couldn't connect to the hub. LocalEntryNotFoundError", "out of reach"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "doctor"),
        ("RuntimeError: Could not find CUDA installation. Please set CUDA_HOME.", "doctor"),
        ("RuntimeError: Cannot find any model weights with `/m`", "whole model"),
        ("OSError: /m does not appear to have a file named config.json.", "config.json"),
        ("usage: x\nsglang serve: error: argument --dtype: invalid choice: 'x'", "'extra'"),
        ("launch_server.py: error: unrecognized arguments: --schedule-polcy x", "'extra'"),
        ("RuntimeError: No CUDA GPUs are available", "device = 'cpu'"),
        (
            "ValueError: Warning: User-specified context_length (9) is greater than the derived "
            "context_length (4).",
            "'context_length'",
        ),
        ("ValueError: Unrecognized model in /m. Should have a `model_type` key", "whole model"),
        (
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).",
            "want of memory",
        ),
        ("Ignore import error when loading sglang.srt.models.x: ImportError: no vllm", ""),
        ("all is well", ""),
    ],
)
def test_what_a_log_says(line, hint):
    assert (hint in servers.advice(f"before\n{line}\nafter", 1)) and bool(hint) == bool(
        servers.advice(line, 1)
    )


def test_a_release_that_is_not_tested_may_be_the_reason(monkeypatch):
    monkeypatch.setattr(release, "version", lambda: "0.5.24rc1")
    assert "pip install 'sglang==0.5.23'" in servers.advice("AttributeError: x", 1)


def test_the_cause_is_the_last_error():
    log = (
        "ValueError: first\nTraceback\n  File x\ntorch.OutOfMemoryError: "
        "second\nRuntimeError: Rank 0 scheduler died\nx"
    )
    assert servers.cause(log) == "torch.OutOfMemoryError: second"
    alone = "RuntimeError: Rank 0 scheduler died during initialization (exit code: -11)."
    assert servers.cause(f"fine\n{alone}\nx") == alone
    assert (
        servers.advice("", 137)
        and not servers.advice("", 1)
        and not servers.advice("KeyError: x", 137)
    )


# --- attaching and fleets
# --------------------------------------------------------------------------------------------


def test_attaching_finds_the_tokenizer(start, tmp_path, monkeypatch):
    server = start(key="secret")
    monkeypatch.setenv("KEY", "secret")
    until(lambda: socket.socket().connect_ex(("127.0.0.1", server.reservation.port)) == 0, SOON)
    monkeypatch.setenv("FROM_A_FILE", "secret\n")
    assert attach("draft", Runtime(url=server.url, api_key_env="FROM_A_FILE")).api_key == "secret"
    monkeypatch.setenv("STRANGE", "sécret")
    with pytest.raises(ConfigError, match="STRANGE") as caught:
        attach("draft", Runtime(url=server.url, api_key_env="STRANGE"))
    assert "cret" not in str(caught.value)
    found = attach("draft", Runtime(url=server.url + "/", api_key_env="KEY"))
    assert (found.url, found.tokenizer, found.api_key) == (server.url, str(tmp_path), "secret")
    assert "secret" not in repr(found)
    with pytest.raises(RuntimeRefused, match=r"Hint: .*api_key_env"):
        attach("draft", Runtime(url=server.url))
    with pytest.raises(ConfigError, match="NO_KEY"):
        attach("draft", Runtime(url=server.url, api_key_env="NO_KEY"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"slow": 3}, RuntimeTimeout),
        ({"model-path": "/not/here"}, ConfigError),
        ({"die": "x"}, RuntimeDown),
    ],
)
def test_attaching_to_what_will_not_do(start, options, error):
    server = start(**options)
    listens = lambda: not socket.socket().connect_ex(("127.0.0.1", server.reservation.port))
    until(lambda: listens() if error is not RuntimeDown else not server.alive(), SOON)
    with pytest.raises(error) as caught:
        attach("judge", Runtime(url=server.url), timeout=0.5)
    assert caught.value.role == "judge" and (caught.value.hint or error is not RuntimeDown)


@pytest.fixture
def faked(monkeypatch, fake):
    """``launch`` with fake servers."""

    def command(runtime, port, platform, *, model=None, **_):
        return flags.Command(line(fake, port, model, runtime.extra))

    monkeypatch.setattr(fleet.flags, "command", command)


def deployment(tmp_path: Path, draft: dict[str, object] | None = None) -> Deployment:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    runtimes = {role: Runtime(model=str(tmp_path), device="cpu") for role in ("target", "draft")}
    runtimes["draft"] = runtimes["draft"].replace(**(draft or {}))
    return Deployment("fakes", runtimes, {"judge": "target"})


@pytest.mark.parametrize("temperature", [0.9, 0.0])
def test_servers_are_warmed_greedily_and_as_the_deployment_draws(temperature, faked, tmp_path):
    """A greedy deployment is warmed for the sampled requests that its clients may send."""
    drawn = Sampling(temperature=temperature, top_p=0.8, top_k=7, min_p=0.1)
    with launch(
        deployment(tmp_path).replace(sampling=drawn), tmp_path / "logs", timeout=20
    ) as running:
        for server in running.servers.values():
            sent = [
                json.loads(line)["sampling_params"]
                for line in servers.tail_of(server.log).splitlines()
                if "{" in line
            ]
            assert [each["temperature"] for each in sent] == [
                0,
                temperature or probe.PROBED_SAMPLING["temperature"],
            ]
            assert (drawn.drawn() if temperature else probe.PROBED_SAMPLING).items() <= sent[
                1
            ].items()


def test_a_fleet_is_ready_as_a_whole_and_goes_as_a_whole(faked, tmp_path):
    events: list[ProgressEvent] = []
    with launch(deployment(tmp_path), tmp_path / "logs", events.append, timeout=20) as running:
        assert running.urls["judge"] == running.urls["target"] != running.urls["draft"]
        assert set(running.tokenizers.values()) == {str(tmp_path)} and not running.keys
        running.check(pytest.fail)
        assert running.server("judge") is running.servers["target"]
        assert [e.stage for e in events if e.role == "draft"] == ["starting", "warming", "ready"]
        pids = [
            pid
            for role in ("target", "draft")
            for pid in pids_in(tmp_path / "logs" / f"{role}.log")
        ]
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: not running.servers["target"].alive(), SOON)
        with pytest.raises(LaunchError, match=r"^target: .*status 137"):
            running.check(pytest.fail)
        assert running.server("target").status == 137 and not any(map(runs, pids[:3]))
    assert not any(map(runs, pids))


IN_USE = "INFO fine\nValueError: address already in use"


def test_one_that_fails_says_why_and_takes_the_others_with_it(faked, tmp_path):
    with pytest.raises(LaunchError) as caught:
        launch(deployment(tmp_path, {"extra": {"die": IN_USE}}), tmp_path / "logs", timeout=20)
    error = caught.value
    assert error.role == "draft" and "status 3" in error.message
    assert "address already in use" in error.message
    assert "'port'" in error.hint and "INFO fine" in error.detail
    assert "INFO fine" in "".join(traceback.format_exception(error)), "a test's output has it too"
    began = servers.tail_of(tmp_path / "logs" / "target.log")
    assert "pids" not in began or not any(map(runs, pids_in(tmp_path / "logs" / "target.log")))


def test_the_log_of_a_start_that_failed_is_there_when_the_error_is(faked, tmp_path, monkeypatch):
    """Also where the folder is a temporary one, and beside the log of the next start."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(LaunchError) as caught:
        api.deployment(deployment(tmp_path, {"extra": {"die": "ValueError: no such thing"}})).open()
    log = Path(caught.value.hint.rpartition("its log: ")[2])
    assert "no such thing" in log.read_text()
    launch(deployment(tmp_path), log.parent, timeout=20).stop()
    assert "no such thing" not in log.read_text()
    assert "no such thing" in log.with_name("draft.log.1").read_text()


@pytest.mark.parametrize(
    ("draft", "error"),
    [
        ({"model": "./nothing"}, ConfigError),
        ({"tokenizer": "./nothing"}, ConfigError),
        ({"api_key_env": "KEY"}, ConfigError),
        ({"token_layer": TokenLayer("eagle", draft_model="./nothing")}, ConfigError),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(faked, tmp_path, draft, error):
    with pytest.raises(error):
        launch(deployment(tmp_path, draft), tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_servers_on_one_gpu_start_one_after_the_other(faked, tmp_path, monkeypatch):
    monkeypatch.setattr(flags, "device", lambda runtime, role=None: "cuda")
    events: list[tuple[str, str]] = []
    with launch(
        deployment(tmp_path),
        tmp_path / "logs",
        lambda e: events.append((e.role, e.stage)),
        timeout=20,
    ):
        assert events.index(("target", "ready")) < events.index(("draft", "starting"))


# -- lr-sglang launch


FILE = """
[runtimes]
judge = "target"
[runtimes.target]
model = "./model"
device = "cpu"
{target}
[runtimes.draft]
model = "./model"
device = "cpu"
{draft}
[sampling]
temperature = 0.3
[lookahead]
depth = 4
"""

# The installed command, but for what it starts.
PROGRAM = """
import sys
from lr_sglang import cli
from lr_sglang.runtimes.launching import flags, fleet

script = sys.argv[1]

def command(runtime, port, platform, *, model=None, **_):
    words = [word for key, value in runtime.extra.items() for word in (f"--{key}", str(value))]
    argv = (sys.executable, "-S", script, "--port", str(port), "--model-path", str(model), *words)
    return flags.Command(argv)

fleet.flags.command = command
sys.argv[:2] = ["lr-sglang"]
cli.main()
"""


@pytest.fixture
def home(here, fake, monkeypatch) -> Path:
    """A folder with a deployment, and a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(compilers, "environment", dict)
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text("{}")
    (here / "model" / "model.safetensors").touch()
    (here / "program.py").write_text(PROGRAM)
    write(here)
    return here


def write(home: Path, target: str = "", draft: str = "") -> None:
    (home / "mine.toml").write_text(FILE.format(target=target, draft=draft))


class Started(Process):
    """An ``lr-sglang launch`` in a process of its own."""

    def up(self, name: str = "mine") -> launched.Launched:
        self.wait(lambda said: launched.launched_file(name).exists() and "http" in said, 20)
        return launched.find_launched(name)

    def says(self, text: str) -> None:
        until(lambda: text in self.said, 15)

    def server_pids(self, name: str = "mine") -> list[int]:
        logs = self.out.parent / "state" / "lr-sglang" / "logs" / name
        return [pid for role in ("target", "draft") for pid in pids_in(logs / f"{role}.log")]


@pytest.fixture
def launching(home, popen) -> Any:
    how = {"script": home / "program.py", "kind": Started, "popen": popen}
    return partial(begun, home, home / "fake.py", "launch", **how)


# -- up and down


def test_it_comes_up_can_be_attached_to_and_goes_as_a_whole(launching, home):
    one = launching("mine.toml", "--depth", "3")
    found = one.up()
    pids = one.server_pids()
    assert found.pid == one.pid and set(found.roles) == {"target", "draft", "judge"}
    assert (
        found.roles["judge"]["url"] == found.roles["target"]["url"] != found.roles["draft"]["url"]
    )
    one.says("run --attach mine")  # the last that it says
    assert [line.split()[:2] for line in one.output.splitlines()] == [
        [role, it["url"]] for role, it in found.roles.items()
    ]
    assert "draft: ready" in one.said
    file = launched.launched_file("mine")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    plan = settings.settle({"attach": "mine"})
    assert {role: it.url for role, it in plan.deployment.runtimes.items()} == {
        role: found.roles[role]["url"] for role in ("target", "draft")
    }
    assert plan.deployment.shared == {"judge": "target"} and plan.models["draft"] == str(
        home / "model"
    )
    assert (plan.deployment.lookahead.depth, plan.deployment.sampling.temperature) == (3, 0.3)
    assert (
        settings.settle({"attach": "mine", "temperature": 0.9}).deployment.sampling.temperature
        == 0.9
    )
    assert api.deployment(attach="mine").config.sampling.temperature == 0.3
    assert settings.modes_of({"attach": "mine"}) == ("lookahead",)
    assert f"up: mine (process {found.pid}" in called("launch", "--list").output
    listed = json.loads(called("launch", "--list", "--json").output)
    assert listed["up"]["mine"]["roles"] == found.roles

    assert one.stop(signal.SIGTERM) == 0
    assert not file.exists() and not any(map(runs, pids))
    assert "Traceback" not in one.said


def test_options_of_launch_decide_how_servers_are_warmed(home):
    """A target that is named on the command line is drawn from as its makers advise."""
    given: dict[str, Any] = {
        "target": "Qwen/Qwen3-8B",
        "concurrency": 1,
        "name": None,
        "print": True,
    }
    plan = settings.settle({**given, "mode": ("autoregressive",)})
    assert launch_command.fitting_answers(plan, given) == 1
    made = launch_command.placed_runtimes(plan, given)
    assert (
        made.sampling.top_k,
        plan.deployment.sampling.top_k,
        Deployment.from_dict(made.to_dict()).sampling.top_k,
    ) == (20,) * 3


def test_without_a_draft_it_goes_on_and_without_a_target_it_does_not(launching):
    one = launching("mine.toml", "--json")
    before = one.up()
    assert json.loads(one.output)["roles"] == before.roles
    target, *_, draft, _, _ = pids = one.server_pids()
    os.kill(draft, signal.SIGKILL)
    one.says("draft: the server ended with status 137")
    said = one.said
    assert "answers go on without it" in said and "want of memory" in said
    assert one.popen.poll() is None and launched.find_launched("mine").roles == before.roles
    os.kill(target, signal.SIGKILL)
    assert one.popen.wait(10) == 1
    assert "Error: target: the server ended with status 137" in one.said
    assert not any(map(runs, pids)) and not launched.launched_file("mine").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_before_it_is_up_its_name_is_taken_and_a_signal_is_an_interruption(launching, home, number):
    write(home, draft="extra = {late = 1}")
    one = launching("mine.toml")
    pids = one.server_pids()
    # neither has written down yet that it is there
    assert "is up already, or comes up" in called("launch", "mine.toml", code=2).output
    other = launching("mine.toml", "--name", "other")
    assert other.server_pids("other")
    assert one.stop(number) == 128 + number
    assert not any(map(runs, pids)) and not launched.launched_file("mine").exists()
    with launched.claimed("mine"):
        other.stop()


def test_a_name_is_taken_while_it_is_up_and_stale_after_a_kill(launching, home):
    one = launching("mine.toml", "--quiet")
    one.up()
    pids = one.server_pids()
    second = called("launch", "mine.toml", code=2)
    assert "is up already" in second.output and "--name" in second.output
    one.stop(signal.SIGKILL)
    until(lambda: not any(map(runs, pids)), SOON)  # the guardians see to it
    again = "lr-sglang launch FILE --name mine"
    with pytest.raises(ConfigError, match=rf"is not up any more.*\nHint: .*{again}"):
        settings.settle({"attach": "mine"})
    assert "is not up any more" in called("run", "--attach", "mine", "how many?", code=2).output
    assert "up:" not in called("launch", "--list").output
    again = launching("mine.toml")
    until(lambda: "http" in again.output, 20)
    assert launched.find_launched("mine").pid == again.pid and again.stop() == 0


# -- attaching to what is not there


def test_attaching_to_nothing_and_to_two_things(home):
    asked = ("run", "--attach", "nobody", "how many?")
    assert "lr-sglang launch FILE --name nobody" in called(*asked, code=2).output
    path = launched.launched_file("nobody")
    path.parent.mkdir(parents=True)
    path.write_text('{"name": "nobody"}')
    assert "nobody.json.pid: field required" in called(*asked, code=2).output
    with pytest.raises(ConfigError, match="attach and a deployment both"):
        settings.settle({"attach": "nobody", "deployment": "pocket", "mode": ("lookahead",)})


def test_what_a_layered_deployment_is_asked_for(home):
    made = Deployment("x", {"target": Runtime(url="http://127.0.0.1:1")}).to_dict()
    about = ("x", os.getpid(), launched.born(os.getpid()), "now")
    launched.write(launched.Launched(*about, ["sd", "lookahead+sd"], True, {}, made))
    assert settings.modes_of({"attach": "x"}) == ("lookahead+sd",)
    from_python = api.deployment(attach="x", draft="http://127.0.0.1:2").config
    assert [from_python.runtimes[role].url[-1] for role in ("target", "draft")] == ["1", "2"]


# -- printing


def printed(*arguments: str) -> dict[str, Any]:
    return json.loads(called("launch", *arguments, "--print", "--json").output)["servers"]


def test_what_stays_up_has_the_draft_that_its_own_modes_do_not_ask(home):
    """As ``run --mode lookahead+sd`` does, which attaches to it."""
    assert printed("pocket", "--mode", "lossless", "--token-layer", "ngram").keys() >= {"draft"}


def test_commands_are_printed_as_a_shell_takes_them(home):
    result = called("launch", "qwen3-4gpu", "--print")
    roles, lines = result.output.splitlines()[::2], result.output.splitlines()[1::2]
    assert roles == ["# target, GPU 0 and 1", "# draft, GPU 2", "# judge, GPU 3"]
    words = shlex.split(lines[0])
    assert words[:2] == ["CUDA_VISIBLE_DEVICES=0,1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    assert words[2:6] == [sys.executable, "-P", "-m", "sglang.launch_server"]
    assert "--tp-size 2" in lines[0] and "--attention-backend" not in result.output
    assert not (home / "state").exists()


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize(
    ("name", "hopper"),
    [("NVIDIA H200", True), ("NVIDIA GH200 480GB", True), ("NVIDIA L40S", False)],
)
def test_hopper_gets_triton_where_the_library_of_fa3_is_missing(
    home, tmp_path, monkeypatch, library, name, hopper
):
    (tmp_path / "flash_ops.abi3.so").touch() if library else None
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(flags, "find_spec", lambda name: spec)
    monkeypatch.setattr(gpus, "visible", lambda: [gpus.Gpu(name, 80, 80)] * 4)
    found = flags.server_platform("cuda", "x").flags.get("attention-backend")
    assert found == ("triton" if hopper and not library else None)


def test_servers_with_their_token_layer_and_in_fp8(home):
    servers = printed("qwen3-2gpu", "--with-token-layer")
    assert "NGRAM" in servers["target"]["argv"] and "NGRAM" in servers["draft"]["argv"]
    assert "NGRAM" not in servers["judge"]["argv"]
    assert flags.PRECOMPILE not in servers["target"]["env"]
    assert flags.PRECOMPILE in printed("qwen3-1gpu-fp8")["target"]["env"]
    layered = printed("--mode", "sd")
    assert set(layered) == {"target"} and "STANDALONE" in layered["target"]["argv"]


def test_the_list_names_every_preset(home):
    listed = json.loads(called("launch", "--list", "--json").output)
    assert (
        listed["up"] == {}
        and {"pocket", "qwen3-1gpu", "deepseek-4gpu"} <= listed["built_in"].keys()
    )
    assert all(listed["built_in"].values())
