"""The files of examples/operations: they name metrics, options and ports that there are."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lr_sglang.runtimes import load_deployment
from lr_sglang.serve.monitoring import Metrics
from lr_sglang.serve.settings import ServeSettings
from tests.commands import parsed
from tests.operations import FOLDER, RULES, Service, unit, units

NGINX = (FOLDER / "nginx.conf").read_text("utf-8")
ENDPOINT = Service.read(FOLDER / "lr-sglang-serve@.service")
DEPLOYMENT = load_deployment(FOLDER / "deployment.toml")


def exposed():
    """Names of the endpoint's metrics, with those of a histogram's series."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", Metrics().exposed().decode(), re.M))
    buckets = {f"{name}_bucket" for name, kind in kinds.items() if kind == "histogram"}
    return kinds.keys() | buckets


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_about_metrics_that_there_are_and_says_who_is_woken_and_why(rule):
    assert set(re.findall(r"lr_sglang_\w+", rule["expr"])) <= exposed()
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"] and rule["for"]
    roles = re.findall(r'role=~?"([\w|]+)"', rule["expr"])
    assert set("|".join(roles).split("|")) <= {"", "target", "draft", "judge"}


def test_whoever_is_asked_listens_there():
    servers = {f"127.0.0.1:{one.port}" for one in DEPLOYMENT.runtimes.values()}
    assert {url.removeprefix("http://") for url in ENDPOINT.argv if "http://" in url} == servers
    endpoints = set(re.findall(r"server (\S+:\d+) max_fails=0;", NGINX))
    scraped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text("utf-8"))["scrape_configs"]
    assert {
        job["job_name"]: {target for one in job["static_configs"] for target in one["targets"]}
        for job in scraped
    } == {"lr-sglang": endpoints, "sglang": servers}
    (example,) = re.findall(r"enable --now (.*)", ENDPOINT.file.read_text("utf-8"))
    assert re.findall(r"@(\d+)", example) == [one.rpartition(":")[2] for one in sorted(endpoints)]


def test_the_endpoint_is_a_command_of_ours_and_has_time_to_end(monkeypatch):
    monkeypatch.setattr("click.Path.convert", lambda self, value, param, ctx: Path(value))
    program, *arguments = ENDPOINT.argv
    assert program.endswith("/lr-sglang")
    parsed([word.replace("%i", "8001") for word in arguments])
    assert ENDPOINT.stop_seconds > ServeSettings().drain
    assert ENDPOINT.restart == "always"


def test_the_proxy_waits_longer_than_an_endpoint_which_would_else_be_asked_twice():
    (waits,) = re.findall(r"proxy_read_timeout (\d+)s;", NGINX)
    assert int(waits) > ServeSettings().timeout


def test_the_units_of_the_servers_are_the_commands_that_launch_prints(tmp_path):
    found = units(FOLDER / "deployment.toml", tmp_path)
    assert found.keys() == {"target", "draft", "judge"}
    for role, service in found.items():
        runtime = DEPLOYMENT.runtimes[role]
        assert service.argv[1:4] == ["-P", "-m", "sglang.launch_server"]
        assert service.argv[service.argv.index("--port") + 1] == str(runtime.port)
        assert service.argv[service.argv.index("--model-path") + 1] == runtime.model
        gpus = ",".join(map(str, runtime.gpus))
        assert service.env["CUDA_VISIBLE_DEVICES"] == gpus and service.restart == "always"
    endpoint = tmp_path / "lr-sglang-serve@8001.service"
    program = sys.executable
    endpoint.write_text(
        re.sub("ExecStart=\\S+", f"ExecStart={program}", ENDPOINT.file.read_text("utf-8"))
    )
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    files = [*(service.file for service in found.values()), endpoint]
    checked = subprocess.run(
        ["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False
    )
    ours = [line for line in checked.stderr.splitlines() if str(tmp_path) in line]
    assert not ours, checked.stderr


@pytest.mark.parametrize(
    "word", ["plain", "two words", '{"a": "b c"}', "100%", "$HOME", "a\\b", "new 'quote'"]
)
def test_a_word_of_any_kind_reaches_a_server_as_it_is(word, tmp_path):
    made = unit("target", ["/bin/echo", word], {"WORD": word})
    file = tmp_path / "one.service"
    file.write_text(made, encoding="utf-8")
    service = Service.read(file)
    assert service.argv == ["/bin/echo", word] and service.env == {"WORD": word}
