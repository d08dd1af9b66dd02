"""Checks an installed wheel alone: all files exist, every module can be imported, and no file is
used from elsewhere.

python scripts/wheel_check.py SOURCE ALONE: the sources it was built from, and the folder that it
was installed into.
"""

import importlib
import importlib.metadata
import sys
import tomllib
from pathlib import Path

GROUPS = ("sglang.srt.platforms", "sglang.srt.plugins")
CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.pop(0)  # this file's folder


def expected(source: Path) -> set[str]:
    """Files of the package, by their path in the wheel."""
    mapped = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"][
        "package-dir"
    ]
    folders = {
        "lr_sglang": "lr_sglang",
        **{name.replace(".", "/"): where for name, where in mapped.items()},
    }
    found = {"common_ops.py"}
    for there, here in folders.items():
        files = (
            path for path in (source / here).rglob("*") if path.is_file() and path.suffix != ".pyc"
        )
        found |= {f"{there}/{path.relative_to(source / here).as_posix()}" for path in files}
    return found


def modules(files: set[str]) -> list[str]:
    """Names of all modules among the files."""
    names = (name.removesuffix(".py").replace("/", ".") for name in files if name.endswith(".py"))
    return sorted(name.removesuffix(".__init__") for name in names)


def main(source: Path, alone: Path) -> None:
    """Raises AssertionError with the first problem."""
    files = expected(source)
    lacking = sorted(name for name in files if not (alone / name).is_file())
    assert not lacking, f"not in the wheel: {lacking}"
    for kind in (
        ".safetensors",
        ".toml",
        ".jsonl",
        ".html",
        ".css",
        ".js",
        ".jinja",
        ".json",
        ".svg",
        ".md",
    ):
        assert any(name.endswith(kind) for name in files), f"the sources have no {kind}"

    for group in GROUPS:
        (entry,) = importlib.metadata.entry_points(group=group, name="lr_sglang_cpu")
        where = Path(str(entry.dist.locate_file("lr_sglang"))).resolve()
        assert where == (alone / "lr_sglang").resolve(), f"{group} is found in {where}"
        assert callable(entry.load())

    # common_ops stands in for SGLang's compiled kernels: only SGLang may import it.
    names = [name for name in modules(files) if name != "common_ops"]
    for name in names:
        module = importlib.import_module(name)
        assert Path(module.__file__).resolve().is_relative_to(alone.resolve()), (
            f"{name} comes from {module.__file__}"
        )
    strangers = [
        name
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
        and Path(file).resolve().is_relative_to(CHECKOUT)
        and "site-packages" not in file
        and name not in ("__main__", "__mp_main__")  # this very file
    ]
    assert not strangers, f"from the checkout: {strangers}"
    sys.stdout.write(f"{len(files)} files, {len(names)} modules, entry points: all there\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
