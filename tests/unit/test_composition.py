"""The composition of examples/operations, without containers: every command line in it is one that
is accepted.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "operations"
ROOT = FOLDER.parents[1]
COMPOSITION = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
SERVICES = COMPOSITION["services"]
DOCKERFILE = (FOLDER / "Dockerfile").read_text("utf-8")
NGINX = (FOLDER / "nginx.conf").read_text("utf-8")


def commands():
    """The instructions of the Dockerfile, each with what it says."""
    whole = DOCKERFILE.replace("\\\n", " ")
    return [line.split(None, 1) for line in whole.splitlines() if line and not line.startswith("#")]


def test_every_service_has_an_image_or_what_makes_one():
    for name, service in SERVICES.items():
        assert service.get("image") and not service["image"].endswith(":latest"), name
        if (build := service.get("build")) is not None:
            assert (FOLDER / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()


def test_what_a_service_waits_for_and_mounts_is_there():
    for name, service in SERVICES.items():
        waits = service.get("depends_on", ())
        assert set(waits) <= SERVICES.keys() - {name}
        for other, how in waits.items() if isinstance(waits, dict) else ():
            assert how["condition"] == "service_started" or "healthcheck" in SERVICES[other]
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (
                (FOLDER / source).is_file()
                if source.startswith(".")
                else source in COMPOSITION["volumes"]
            )
        assert set(service.get("secrets", ())) <= COMPOSITION["secrets"].keys()


def test_services_do_not_wait_for_each_other_in_a_circle():
    waiting = {name: set(service.get("depends_on", ())) for name, service in SERVICES.items()}
    while free := {name for name, others in waiting.items() if not others}:
        waiting = {name: others - free for name, others in waiting.items() if name not in free}
    assert not waiting


def test_only_the_proxy_and_the_dashboard_are_reached_from_outside():
    assert {name for name, service in SERVICES.items() if "ports" in service} == {
        "proxy",
        "grafana",
    }
    published = SERVICES["proxy"]["ports"][0].split(":")
    assert f"listen {published[-1]};" in NGINX


def test_the_dockerfile_builds_what_the_composition_starts():
    said = commands()
    names = [name for name, _ in said]
    assert names[0] == "FROM" and set(names) <= {
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "USER",
        "EXPOSE",
        "ENTRYPOINT",
        "CMD",
    }
    python = dict(said)["FROM"].partition("python:")[2].partition("-")[0]
    assert python in re.findall(r"[\d.]+", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert dict(said)["ENTRYPOINT"] == '["lr-sglang"]' and 'lr-sglang = "' in (
        ROOT / "pyproject.toml"
    ).read_text("utf-8")
    constraints = re.findall(r"-c (\S+)", DOCKERFILE)
    assert constraints and all((ROOT / file).is_file() for file in constraints)
    users = [index for index, name in enumerate(names) if name == "USER"]
    assert users and users[-1] < names.index("ENTRYPOINT"), "it does not run as root"


def test_nginx_takes_its_configuration(tmp_path):
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed here (Debian's package nginx-light is enough)")
    here = re.sub(
        r"endpoint-\d:8000", "127.0.0.1:8000", NGINX
    )  # names that only the composition knows
    logs = f"pid {tmp_path}/pid; error_log {tmp_path}/error;\n"
    folders = "".join(
        f"{kind}_temp_path {tmp_path};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        logs + here.replace("http {", f"http {{ access_log off; {folders}")
    )
    done = subprocess.run(
        [nginx, "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_braces_and_ends_of_lines_of_nginxs_configuration_are_right():
    """What is seen of it without nginx."""
    depth = 0
    for line in NGINX.splitlines():
        own = line.partition("#")[0].strip()
        assert not own or own[-1] in "{};", line
        depth += own.count("{") - own.count("}")
        assert depth >= 0
    assert depth == 0
    directives = set(re.findall(r"^\s*([a-z_]+)[ {]", NGINX, re.M))
    known = {
        "events",
        "http",
        "upstream",
        "least_conn",
        "server",
        "listen",
        "client_max_body_size",
        "location",
        "return",
    }
    assert directives - known == {name for name in directives if name.startswith("proxy_")}
