"""What pyproject.toml says goes into the wheel is all that there is (scripts/wheel_test.sh builds
and tries it).
"""

import fnmatch
import subprocess
import tomllib
from pathlib import Path

import pytest

import lr_sglang
from tests import ROOT
from tools.faults import faults

SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
MAPPED = {name: ROOT / folder for name, folder in SETUPTOOLS["package-dir"].items()}


def folder(package: str) -> Path:
    return MAPPED.get(package, ROOT / package.replace(".", "/"))


def packages() -> set[str]:
    found = {
        path.parent.relative_to(ROOT).as_posix()
        for path in (ROOT / "lr_sglang").rglob("__init__.py")
    }
    return {name.replace("/", ".") for name in found} | set(MAPPED)


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_planted_fault_finds_its_line_and_its_tests(fault):
    """Else ``tools/faults.py`` stops, or no test is shown to notice it."""
    source = (ROOT / fault.file).read_text("utf-8")
    assert fault.planted(source) != source
    for test in fault.tests:
        file, _, name = test.partition("::")
        name = name.partition("[")[0]
        assert f"def {name}(" in (ROOT / file).read_text("utf-8")


def test_every_package_is_listed():
    assert set(SETUPTOOLS["packages"]) == packages()
    assert SETUPTOOLS["packages"] == sorted(SETUPTOOLS["packages"])


def test_every_file_that_is_no_code_is_taken():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "lr_sglang", "programs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("no git checkout")
    taken = [
        (folder(package), pattern)
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
    ]
    files = [ROOT / name for name in listed.stdout.split("\0") if name and not name.endswith(".py")]
    assert files
    lacking = [
        path
        for path in files
        if not any(
            path.is_relative_to(where)
            and fnmatch.fnmatch(path.relative_to(where).as_posix(), pattern)
            for where, pattern in taken
        )
    ]
    assert not lacking


@pytest.mark.parametrize("name", lr_sglang.__all__)
def test_every_public_name_is_there(name):
    assert getattr(lr_sglang, name)
