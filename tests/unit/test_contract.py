"""import-linter's contracts are those of the table of layers, and a wrong import breaks them."""

import importlib.util
from pathlib import Path

import pytest

from tests.unit.test_house import LAYERS, SELF_CONTAINED

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("imports", ROOT / "scripts" / "imports.py")
imports = importlib.util.module_from_spec(spec)
spec.loader.exec_module(imports)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return imports.lay_out(tmp_path_factory.mktemp("installed"))


def test_the_table_is_the_houses():
    assert imports.table("LAYERS") == LAYERS
    assert imports.table("SELF_CONTAINED") == SELF_CONTAINED


def test_all_of_the_package_is_looked_at(package):
    assert "programs" in imports.parts(package)
    everywhere = {name for layer in LAYERS for name in layer}
    assert imports.parts(package) <= everywhere


def test_the_contracts_hold(package):
    done = imports.check(package.parent)
    assert done.returncode == 0, done.stdout + done.stderr


WRONG = {
    "steps/step.py": ("from lr_sglang import cli", "lr_sglang.steps.step -> lr_sglang.cli"),
    "programs/judge.py": (
        "import lr_sglang.api.runner",
        "lr_sglang.programs.judge -> lr_sglang.api.runner",
    ),
    "errors.py": (
        "def late():\n    from lr_sglang import config",
        "no import runs in a circle BROKEN",
    ),
    "cpu/seeds.py": ("import lr_sglang.modes", "cpu stands alone BROKEN"),
}


def test_wrong_imports_break_them(package):
    """Each says which it breaks; all at once, for a look at the package takes seconds."""
    before = {file: (package / file).read_text("utf-8") for file in WRONG}
    for file, (line, _) in WRONG.items():
        (package / file).write_text(f"{before[file]}\n{line}\n", "utf-8")
    try:
        done = imports.check(package.parent)
    finally:
        for file, text in before.items():
            (package / file).write_text(text, "utf-8")
    assert done.returncode == 1
    assert "nothing is imported upward BROKEN" in done.stdout
    for _, broken in WRONG.values():
        assert broken in done.stdout, done.stdout


def test_a_module_without_a_layer_breaks_them(package):
    path = package / "a_new_module.py"
    path.write_text("", "utf-8")
    try:
        done = imports.check(package.parent)
    finally:
        path.unlink()
    assert done.returncode != 0
    assert "a_new_module" in done.stdout + done.stderr
