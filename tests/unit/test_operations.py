"""The files of examples/operations: they name metrics, options, services and ports that
there are.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from lr_sglang.cli import cli
from lr_sglang.runtimes import load_deployment
from lr_sglang.runtimes.launching import server_options
from lr_sglang.serve.metrics import Metrics
from tests.unit.test_docs import parsed

FOLDER = Path(__file__).parents[2] / "examples" / "operations"
SERVICES = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))["services"]
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
PANELS = json.loads((FOLDER / "grafana.json").read_text("utf-8"))["panels"]
METRIC = re.compile(r"lr_sglang_\w+")


def exposed():
    """Names of the endpoint's metrics, with those of a histogram's series."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", Metrics().exposed().decode(), re.M))
    series = {
        f"{name}_{part}"
        for name, kind in kinds.items()
        if kind == "histogram"
        for part in ("bucket", "count")
    }
    return {name for name in kinds if not name.endswith("_created")} | series


def words(service):
    return shlex.split(SERVICES[service]["command"])


def option(service, name):
    command = words(service)
    return command[command.index(name) + 1]


def ports():
    """Where each service listens."""
    return {
        name: int(option(name, "--port"))
        for name, service in SERVICES.items()
        if "--port" in service.get("command", "")
    }


def test_every_metric_of_the_dashboard_and_of_the_alerts_is_exposed():
    shown = {
        name
        for panel in PANELS
        for target in panel["targets"]
        for name in METRIC.findall(target["expr"])
    }
    alerted = {name for rule in RULES for name in METRIC.findall(rule["expr"])}
    assert shown | alerted <= exposed()


@pytest.mark.parametrize(
    "arguments", [("rules", "alerts.yaml"), ("config", "--syntax-only", "prometheus.yaml")]
)
def test_prometheus_takes_its_files(arguments):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed here (it is in Debian's package prometheus)")
    checked = subprocess.run(
        [promtool, "check", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_who_is_woken_and_why(rule):
    assert (
        rule["labels"]["severity"] in ("page", "ticket")
        and rule["annotations"]["summary"]
        and rule["for"]
    )
    assert rule["expr"].count("(") == rule["expr"].count(")")
    roles = re.findall(r'role=~?"([\w|]+)"', rule["expr"])
    assert set("|".join(roles).split("|")) <= {"", "target", "draft", "judge"}


def test_the_endpoints_of_the_composition_are_commands_of_ours(monkeypatch):
    monkeypatch.setattr("click.Path.convert", lambda self, value, param, ctx: Path(value))
    for name in ("endpoint-1", "endpoint-2"):
        parsed(words(name))
    assert cli.get_command(None, "serve") is not None


@pytest.mark.parametrize("name", ["target-1", "target-2", "draft", "judge"])
def test_the_servers_of_the_composition_have_options_of_sglang(name):
    command = words(name)
    assert command[:3] == ["python3", "-m", "sglang.launch_server"]
    assert {word[2:] for word in command if word.startswith("--")} <= server_options.known()


def test_whoever_is_asked_listens_there():
    listening = {f"{name}:{port}" for name, port in ports().items()}
    asked = {
        runtime.url.removeprefix("http://")
        for runtime in load_deployment(FOLDER / "deployment.toml").runtimes.values()
    }
    router = words("router")
    asked |= {url.removeprefix("http://") for url in router[router.index("--worker-urls") + 1 :]}
    asked |= set(re.findall(r"server (\S+);", (FOLDER / "nginx.conf").read_text("utf-8")))
    scraped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text("utf-8"))["scrape_configs"]
    asked |= {
        target for job in scraped for one in job["static_configs"] for target in one["targets"]
    }
    assert asked == listening
    for name, service in SERVICES.items():
        assert (
            "HEALTH" not in service.get("environment", {})
            or f":{ports()[name]}/" in service["environment"]["HEALTH"]
        )


def test_an_answer_has_time_to_end_when_its_endpoint_is_stopped():
    (drain,) = (one.default for one in cli.get_command(None, "serve").params if one.name == "drain")
    assert all(
        int(SERVICES[name]["stop_grace_period"].rstrip("s")) > drain
        for name in ("endpoint-1", "endpoint-2")
    )


def test_the_proxy_waits_longer_than_an_endpoint_which_would_else_be_asked_twice():
    (limit,) = (
        one.default
        for one in cli.get_command(None, "serve").params
        if one.name == "request_timeout"
    )
    (waits,) = re.findall(r"proxy_read_timeout (\d+)s;", (FOLDER / "nginx.conf").read_text("utf-8"))
    assert int(waits) > limit


def test_the_router_of_the_composition_has_options_of_sglangs_router():
    arguments = pytest.importorskip("sglang_router.router_args").RouterArgs
    parser = argparse.ArgumentParser(exit_on_error=False)
    arguments.add_cli_args(parser)
    assert parser.parse_args(words("router")[3:]).policy == "manual"
