"""What ``lr-sglang doctor`` finds, here and on machines that are made up."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lr_sglang.cli import doctor
from lr_sglang.doctor import checks
from lr_sglang.doctor.checks import Findings
from lr_sglang.doctor.finding import Finding
from lr_sglang.runtimes.launching import compilers, flags
from lr_sglang.runtimes.placement.gpus import Gpu
from lr_sglang.sglang_api import release
from tests.called import called


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")


def test_json_has_every_check():
    table = json.loads(called("doctor", "--json").stdout)
    assert table["ok"] is True and table["cpu"] is True
    names = {check["name"] for check in table["lines"]}
    assert {
        "Python",
        "system",
        "CPU",
        "memory",
        "sglang",
        "torch",
        "flashinfer-python",
    } <= names
    assert {"CPU pack", "pocket models", "C++ compiler", "model hub", "transformers"} <= names
    for check in table["lines"]:
        assert check["status"] in ("ok", "fault", "warning")
        assert check["advice"] or check["status"] == "ok"


def test_gpus_and_the_presets_that_fit_them(monkeypatch, tmp_path):
    for name in ("bin/nvcc", "lib64/libcudart.so"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    machine = [Gpu("H100", 79.6, 79.0, "580.95.05")] * 2
    monkeypatch.setattr(checks.gpus, "visible", lambda: machine)
    findings = checks.check_machine()
    assert findings.gpu
    assert findings.presets == [
        "deepseek-1gpu-fp8",
        "deepseek-2gpu",
        "gpt-oss-120b",
        "pocket-1gpu-24gb",
        "pocket-1gpu-80gb",
        "qwen3-1gpu-fp8",
        "qwen3-2gpu",
    ]
    assert "qwen3-2gpu" in " ".join(findings.verdict)


def test_a_driver_that_is_too_old(monkeypatch):
    monkeypatch.setattr(checks.gpus, "visible", lambda: [Gpu("A10", 22.0, 21.0, "550.1")])
    findings = checks.check_machine()
    assert not findings.gpu and findings.cpu
    assert next(check for check in findings.lines if check.name == "GPU driver").status == "fault"


def test_a_machine_that_can_do_nothing(monkeypatch):
    monkeypatch.setattr(checks.importlib.metadata, "entry_points", lambda **_: ())
    result = called("doctor", code=1)
    assert "pip install -e ." in result.output and "fault " in result.output


@pytest.mark.parametrize(
    ("installed", "status", "says"),
    [
        ("0.5.23", "ok", "0.5.23 (tested)"),
        ("0.5.16+cu130", "ok", "0.5.16+cu130 (tested)"),
        ("0.5.24rc1", "warning", "0.5.24rc1 (not tested; tested: 0.5.16, 0.5.23)"),
        ("", "fault", "not installed"),
    ],
)
def test_the_release_of_sglang(monkeypatch, installed, status, says):
    monkeypatch.setattr(release, "version", lambda: installed)
    check = checks.sglang()
    assert (check.status, check.found) == (status, says) and (check.advice or status == "ok")


@pytest.mark.parametrize("found_by", ["CUDA_HOME", "CUDA_PATH", "PATH"])
def test_the_cuda_toolkit_is_looked_for_where_sglang_does(found_by, tmp_path, monkeypatch):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    nvcc, library = tmp_path / "bin" / "nvcc", tmp_path / "lib64" / "libcudart.so"
    for path in (nvcc, tmp_path / "lib" / "libcudart.so.13"):  # pip's packages
        path.parent.mkdir()
        path.touch(mode=0o755)
    monkeypatch.setenv(found_by, str(nvcc.parent if found_by == "PATH" else tmp_path))
    monkeypatch.setattr(compilers, "packaged", lambda: None)
    monkeypatch.setattr(compilers, "DEFAULT_TOOLKIT", tmp_path / "default")
    check = checks.cuda_toolkit()
    assert (
        check.status == "fault"
        and "lacks lib64/libcudart.so" in check.found
        and "CUDA_HOME" in check.advice
    )
    library.parent.mkdir()
    library.touch()
    assert checks.cuda_toolkit() == Finding("", "CUDA toolkit", "ok", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("CUDA_PATH", "")  # which tvm-ffi takes for the folder
    assert checks.cuda_toolkit().status == "fault"
    # an nvcc on the path may be a script that calls that one
    monkeypatch.setattr(compilers, "DEFAULT_TOOLKIT", tmp_path)
    assert checks.cuda_toolkit().status == "ok"
    assert compilers.environment() == {"CUDA_HOME": str(tmp_path)}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """pip's packages in a folder of the test, and a machine without a toolkit."""
    made = tmp_path / "nvidia" / "cu13"
    for name in (
        *compilers.PACKAGED[:-1],
        "include/cccl/x",
        "lib/libcudart.so.13",
        "lib/libcudadevrt.a",
    ):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).touch(mode=0o755)
    spec = SimpleNamespace(submodule_search_locations=[str(made.parent)])
    monkeypatch.setattr(compilers, "find_spec", lambda name: spec)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setattr(compilers, "DEFAULT_TOOLKIT", tmp_path / "default")
    return made


@pytest.mark.parametrize("lacks", (*compilers.PACKAGED, "lib/libcudart.so.13"))
def test_pip_packages_stand_for_a_toolkit_if_all_are_there(packages, monkeypatch, lacks):
    assert checks.cuda_toolkit().status == "ok"
    (home,) = compilers.environment().values()
    assert not compilers.lacking(Path(home)) and (Path(home) / "include/cccl/x").exists()
    assert compilers.environment() == {"CUDA_HOME": home} == flags.server_platform("cuda", "x").env
    assert compilers.environment({"CUDA_HOME": home}) == {}
    if lacks == "include/cccl":
        (packages / lacks / "x").unlink()
        (packages / lacks).rmdir()
    else:
        (packages / lacks).unlink()
    assert checks.cuda_toolkit().status == "fault" and compilers.environment() == {}


def test_the_driver_is_linked_with_them(packages, tmp_path, monkeypatch):
    program, library = tmp_path / "bin" / "ldconfig", tmp_path / "driver" / "libcuda.so.1"
    for path in (program, library):
        path.parent.mkdir()
        path.touch(mode=0o755)
    program.write_text(f"#!/bin/sh\necho '\tlibcuda.so.1 (libc6,x86-64) => {library}'\n")
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    home = Path(compilers.environment()["CUDA_HOME"])
    assert (home / "lib64" / "stubs" / "libcuda.so").resolve() == library


# -- doctor --report


FOUND = Findings(
    [Finding("", "model hub", "ok", "https://me:pw@mirror.example/hub?key=1")],
    True,
    False,
    [],
    ["It runs."],
)
SECRETS = {"HF_TOKEN": "abc123", "LR_SGLANG_RUN_TARGET": "http://user:pw@host:30000/v1"}


def test_settings_are_named_and_no_secret_is_told():
    said = doctor.issue_text(FOUND, SECRETS | {"AWS_SECRET_ACCESS_KEY": "k8", "MY_OWN": "k9"})
    assert not [one for one in ("abc123", "pw", "user", "k8", "key=1") if one in said]
    assert "- HF_TOKEN is set" in said and "- LR_SGLANG_RUN_TARGET is set" in said
    assert "AWS" not in said and "MY_OWN" not in said
    assert "https://mirror.example/hub" in said


def test_nobodys_home_is_named(monkeypatch):
    monkeypatch.setenv("HOME", "/home/" + "somebody")
    assert doctor.without_secrets("/home/" + "somebody/models") == "~/models"
    assert doctor.without_secrets("/home/" + "somebodyelse") == "/home/" + "somebodyelse"


def test_the_command(monkeypatch):
    monkeypatch.setenv("LR_SGLANG_API_KEYS", "very-secret")
    result = called("doctor", "--report")
    sglang = f"- sglang: {release.version()}"
    for part in ("### Versions", sglang, "### Machine", "- CPU:", "### Settings", "pocket models"):
        assert part in result.stdout
    assert "very-secret" not in result.stdout
    called("doctor", "--report", "--json", code=2)
