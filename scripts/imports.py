"""Holds import-linter's contracts over the package: nothing imports upward, nothing runs in a
circle.

The contracts are made from the tables LAYERS and SELF_CONTAINED, and hold for the package as it is
installed (with ``programs/`` inside).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "lr_sglang"

# From bottom to top. A module imports its own layer and those below it, never one above.
LAYERS: tuple[set[str], ...] = (
    {"errors", "hub", "json_text", "plugin_files"},
    {"config", "modes"},
    {"steps", "theory", "sglang_api", "tasks"},
    {"plugin"},
    {"cpu", "pocket"},
    {"engine"},
    {"delivery"},
    {"frontend"},
    {"algorithm"},
    {"verifiers", "programs"},
    {"user_programs"},
    {"runtimes", "results", "testing"},
    {"grading"},
    {"api"},
    {"serve", "bench", "doctor"},
    {"cli"},
)

# These could stand alone: beside themselves they know only what is named here.
SELF_CONTAINED = {
    "plugin": {"sglang_api"},
    "cpu": {"errors", "config", "sglang_api", "plugin"},
    "pocket": {"errors", "config"},
}


def contract(modules: set[str]) -> str:
    """import-linter's settings, as TOML. ``modules`` are the existing ones directly in
    the package.
    """
    # The highest layer comes first; modules of one layer may import each other. Brackets: the
    # module may be missing.
    rows = [
        " : ".join(name if name in modules else f"({name})" for name in sorted(layer))
        for layer in LAYERS[::-1]
    ]
    lines = [
        "[tool.importlinter]",
        f'root_package = "{PACKAGE}"',
        "include_external_packages = false",
        # Imports for type checkers count too: a type is knowledge of another room.
        "exclude_type_checking_imports = false",
        *_contract(
            "nothing is imported upward",
            "layers",
            containers=[PACKAGE],
            layers=rows,
            exhaustive=True,
        ),
        *_contract("no import runs in a circle", "acyclic_siblings", ancestors=[PACKAGE], depth=0),
    ]
    for name, known in sorted(SELF_CONTAINED.items()):
        forbidden = [f"{PACKAGE}.{other}" for other in sorted(modules - known - {name})]
        lines += _contract(
            f"{name} stands alone",
            "forbidden",
            source_modules=[f"{PACKAGE}.{name}"],
            forbidden_modules=forbidden,
            allow_indirect_imports=True,
        )
    return "\n".join(lines) + "\n"


def _contract(title: str, kind: str, **settings: object) -> Iterator[str]:
    yield from ("", "[[tool.importlinter.contracts]]", f'name = "{title}"', f'type = "{kind}"')
    for key, value in settings.items():
        yield f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"


def parts(package: Path) -> set[str]:
    """Modules and packages directly in the package."""
    found = {path.stem for path in package.glob("*.py")} - {"__init__"}
    return found | {path.parent.name for path in package.glob("*/__init__.py")}


def lay_out(folder: Path) -> Path:
    """Copies the package into the folder as the build lays it out; the copy's path."""
    mapped = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"][
        "package-dir"
    ]
    python_only = shutil.ignore_patterns("__pycache__", "weights", "data")
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=python_only)
    for name, source in mapped.items():
        shutil.copytree(ROOT / source, Path(folder, *name.split(".")), ignore=python_only)
    return folder / PACKAGE


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs import-linter over the copy in the folder."""
    settings = folder / "contract.toml"
    settings.write_text(contract(parts(folder / PACKAGE)), "utf-8")
    # The copy is found before the installed package.
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [
        Path(sys.executable).parent / "lint-imports",
        "--no-cache",
        "--no-logo",
        "--config",
        settings,
    ]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def main() -> int:
    """Prints import-linter's output if a contract is broken, else one line."""
    with tempfile.TemporaryDirectory() as name:
        lay_out(Path(name))
        done = check(Path(name))
    last = (
        done.stdout.strip().splitlines()[-1:]
        if done.returncode == 0
        else [done.stdout, done.stderr]
    )
    sys.stdout.write("\n".join(last) + "\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
