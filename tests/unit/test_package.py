"""What pyproject.toml says goes into the wheel is all that there is (scripts/wheel_test.sh builds
and tries it).
"""

import fnmatch
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from lr_sglang import __version__

ROOT = Path(__file__).parents[2]
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


def test_the_citation_is_of_this_version_and_of_the_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert cited["version"] == project["version"] == __version__
    assert (cited["title"], cited["license"]) == (project["name"], project["license"])
    assert [one["identifiers"][0]["value"] for one in cited["references"]] == ["arXiv:2506.19830"]


def test_what_github_runs_is_what_a_change_must_pass():
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))[
        "jobs"
    ].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_hooks_before_a_commit_are_commands_of_the_environment():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    asked = {shlex.split(hook["entry"])[0].removeprefix(".venv/bin/") for hook in local["hooks"]}
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]["dev"]
    assert asked and asked <= set(dev)


@pytest.mark.parametrize(
    "form", sorted(path.name for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
)
def test_a_form_for_issues_has_what_github_asks_for(form):
    read = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / form).read_text("utf-8"))
    assert read["name"] and read["description"]
    assert all(
        one["type"] == "textarea" and one["id"] and one["attributes"]["label"]
        for one in read["body"]
    )
