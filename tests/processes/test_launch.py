"""``lr-sglang launch``: up, attached to and taken down, with a small script in SGLang's
place.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from lr_sglang.api import solve as deployment
from lr_sglang.cli import cli, launch, settings
from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import launched
from lr_sglang.runtimes.launching import compilers, flags
from lr_sglang.runtimes.placement import gpus
from tests.processes.test_runtimes import FAKE, pids_in, runs, wait_for

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
def home(tmp_path, monkeypatch) -> Path:
    """A folder with a deployment, and a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(compilers, "environment", dict)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / "program.py").write_text(PROGRAM)
    write(tmp_path)
    return tmp_path


def write(home: Path, target: str = "", draft: str = "") -> None:
    (home / "mine.toml").write_text(FILE.format(target=target, draft=draft))


class Started:
    """An ``lr-sglang launch`` in a process of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self.out, self.err = home / f"out{time.monotonic_ns()}", home / f"err{time.monotonic_ns()}"
        argv = [
            sys.executable,
            str(home / "program.py"),
            str(home / "fake.py"),
            "launch",
            *arguments,
        ]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(argv, stdout=out, stderr=err)

    def up(self, name: str = "mine") -> launched.Launched:
        def there() -> Any:
            assert self.process.poll() is None, self.err.read_text()
            return launched.path_of(name).exists() and "http" in self.out.read_text()

        wait_for(there, 20)
        return launched.find(name)

    def says(self, text: str) -> None:
        wait_for(lambda: text in self.err.read_text(), 15)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(15)

    def server_pids(self, name: str = "mine") -> list[int]:
        logs = self.home / "state" / "lr-sglang" / "logs" / name
        return [pid for role in ("target", "draft") for pid in pids_in(logs / f"{role}.log")]


@pytest.fixture
def start(home) -> Iterator[Any]:
    made: list[Started] = []

    def go(*arguments: str) -> Started:
        made.append(Started(home, *arguments))
        return made[-1]

    yield go
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def call(*arguments: str) -> Any:
    return CliRunner().invoke(cli, list(arguments))


# -- up and down


def test_it_comes_up_can_be_attached_to_and_goes_as_a_whole(start, home):
    one = start("mine.toml", "--depth", "3")
    found = one.up()
    pids = one.server_pids()
    assert found.pid == one.process.pid and set(found.roles) == {"target", "draft", "judge"}
    assert (
        found.roles["judge"]["url"] == found.roles["target"]["url"] != found.roles["draft"]["url"]
    )
    one.says("run --attach mine")  # the last that it says
    lines = one.out.read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [
        [role, it["url"]] for role, it in found.roles.items()
    ]
    assert "draft: ready" in one.err.read_text()
    file = launched.path_of("mine")
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
    assert deployment.deployment(attach="mine").config.sampling.temperature == 0.3
    assert settings.modes_of({"attach": "mine"}) == ("lookahead",)
    assert f"up: mine (process {found.pid}" in call("launch", "--list").output
    assert (
        json.loads(call("launch", "--list", "--json").output)["up"]["mine"]["roles"] == found.roles
    )

    assert one.end(signal.SIGTERM) == 0
    assert not file.exists() and not any(map(runs, pids))
    assert "Traceback" not in one.err.read_text()


def test_options_of_launch_decide_how_servers_are_warmed(home):
    """A target that is named on the command line is drawn from as its makers advise."""
    given: dict[str, Any] = {
        "target": "Qwen/Qwen3-8B",
        "concurrency": 1,
        "name": None,
        "print": True,
    }
    plan = settings.settle({**given, "mode": ("autoregressive",)})
    made = launch.placed(plan, given)
    assert (
        made.sampling.top_k,
        plan.deployment.sampling.top_k,
        Deployment.from_dict(made.to_dict()).sampling.top_k,
    ) == (20,) * 3


def test_without_a_draft_it_goes_on_and_without_a_target_it_does_not(start):
    one = start("mine.toml", "--json")
    before = one.up()
    assert json.loads(one.out.read_text())["roles"] == before.roles
    target, *_, draft, _, _ = pids = one.server_pids()
    os.kill(draft, signal.SIGKILL)
    one.says("draft: the server ended with status 137")
    said = one.err.read_text()
    assert "answers go on without it" in said and "want of memory" in said
    assert one.process.poll() is None and launched.find("mine").roles == before.roles
    os.kill(target, signal.SIGKILL)
    assert one.process.wait(10) == 1
    assert "Error: target: the server ended with status 137" in one.err.read_text()
    assert not any(map(runs, pids)) and not launched.path_of("mine").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_before_it_is_up_its_name_is_taken_and_a_signal_is_an_interruption(start, home, number):
    write(home, draft="extra = {late = 1}")
    one = start("mine.toml")
    pids = one.server_pids()
    second = call("launch", "mine.toml")  # neither has written down yet that it is there
    assert second.exit_code == 2 and "is up already, or comes up" in second.output, second.output
    other = start("mine.toml", "--name", "other")
    assert other.server_pids("other")
    assert one.end(number) == 128 + number
    assert not any(map(runs, pids)) and not launched.path_of("mine").exists()
    with launched.claimed("mine"):
        other.end()


def test_a_name_is_taken_while_it_is_up_and_stale_after_a_kill(start, home):
    one = start("mine.toml", "--quiet")
    one.up()
    pids = one.server_pids()
    second = call("launch", "mine.toml")
    assert second.exit_code == 2 and "is up already" in second.output and "--name" in second.output
    one.end(signal.SIGKILL)
    wait_for(lambda: not any(map(runs, pids)))  # the guardians see to it
    with pytest.raises(ConfigError, match="is not up any more") as caught:
        settings.settle({"attach": "mine"})
    assert "lr-sglang launch FILE --name mine" in caught.value.hint
    result = call("run", "--attach", "mine", "how many?")
    assert result.exit_code == 2 and "is not up any more" in result.output
    assert "up:" not in call("launch", "--list").output
    again = start("mine.toml")
    wait_for(lambda: "http" in again.out.read_text(), 20)
    assert launched.find("mine").pid == again.process.pid and again.end() == 0


# -- attaching to what is not there


def test_attaching_to_nothing_and_to_two_things(home):
    result = call("run", "--attach", "nobody", "how many?")
    assert result.exit_code == 2 and "lr-sglang launch FILE --name nobody" in result.output
    path = launched.path_of("nobody")
    path.parent.mkdir(parents=True)
    path.write_text('{"name": "nobody"}')
    assert (
        "nobody.json.pid: field required" in call("run", "--attach", "nobody", "how many?").output
    )
    with pytest.raises(ConfigError, match="--attach and --deployment"):
        settings.settle({"attach": "nobody", "deployment": "pocket", "mode": ("lookahead",)})


def test_what_a_layered_deployment_is_asked_for(home):
    made = Deployment("x", {"target": Runtime(url="http://127.0.0.1:1")}).to_dict()
    about = ("x", os.getpid(), launched.born(os.getpid()), "now")
    launched.write(launched.Launched(*about, ["sd", "lookahead+sd"], True, {}, made))
    assert settings.modes_of({"attach": "x"}) == ("lookahead+sd",)
    from_python = deployment.deployment(attach="x", draft="http://127.0.0.1:2").config
    assert [from_python.runtimes[role].url[-1] for role in ("target", "draft")] == ["1", "2"]


# -- printing


def printed(*arguments: str) -> dict[str, Any]:
    result = call("launch", *arguments, "--print", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["servers"]


def test_commands_are_printed_as_a_shell_takes_them(home):
    result = call("launch", "qwen3-4gpu", "--print")
    assert result.exit_code == 0
    roles, lines = result.output.splitlines()[::2], result.output.splitlines()[1::2]
    assert roles == ["# target", "# draft", "# judge"]
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
    found = flags.platform("cuda", "x").flags.get("attention-backend")
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
    listed = json.loads(call("launch", "--list", "--json").output)
    assert (
        listed["up"] == {}
        and {"pocket", "qwen3-1gpu", "deepseek-4gpu"} <= listed["built_in"].keys()
    )
    assert all(listed["built_in"].values())
