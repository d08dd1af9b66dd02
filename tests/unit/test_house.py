"""The house rules: who may import whom, and what no file of the project holds."""

import ast
import graphlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From bottom to top. A module imports its own layer and those below it, never one above.
LAYERS = (
    {"errors", "config_model", "plugin_files"},
    {"config", "modes"},
    {"steps", "theory", "sglang_api", "tasks"},
    {"cpu", "pocket"},
    {"engine"},
    {"frontend"},
    {"algorithm"},
    {"verifiers", "programs"},
    {"user_programs"},
    {"runtimes", "results"},
    {"grading"},
    {"api"},
    {"simulated"},
    {"serve", "bench"},
    {"cli"},
)
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}

# These could stand alone: beside themselves they know only what is named here.
SELF_CONTAINED = {"cpu": {"errors", "config", "sglang_api"}, "pocket": {"errors", "config"}}

MAX_LINES = 300


def sources() -> Iterator[Path]:
    """Every Python file that is installed, and the two at the root."""
    for folder in ("lr_sglang", "programs"):
        yield from sorted((ROOT / folder).rglob("*.py"))
    yield from (ROOT / name for name in ("cli.py", "common_ops.py") if (ROOT / name).exists())


def package_of(path: Path) -> str:
    """The package that relative imports in this file start from (programs/ is
    lr_sglang.programs).
    """
    folder = path.relative_to(ROOT).parent.as_posix().replace("/", ".")
    return f"lr_sglang.{folder}" if folder.startswith("programs") else folder


def part_of(path: Path) -> str:
    """The entry of LAYERS that this file belongs to; '' for the root package itself."""
    below = (package_of(path) + "." + path.stem).split(".")[1:]
    return "" if below == ["__init__"] else below[0]


def nodes_of(source: str) -> list[ast.AST]:
    """The nodes of its tree from the top; the first is the module."""
    return list(ast.walk(ast.parse(source)))


@pytest.fixture(scope="module")
def nodes() -> dict[Path, list[ast.AST]]:
    """Those of every source, parsed once."""
    return {path: nodes_of(path.read_text("utf-8")) for path in sources()}


def imported_parts(nodes: list[ast.AST], package: str) -> set[str]:
    """The parts of lr_sglang that are imported anywhere, in functions and for type checkers too."""
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            kept = package.split(".")[: 1 - node.level] if node.level > 1 else package.split(".")
            base = ".".join(kept) if node.level else ""
            origin = ".".join(filter(None, (base, node.module)))
            names += [f"{origin}.{alias.name}" for alias in node.names]
    names = [name.removeprefix("lr_sglang.") for name in names if name.startswith("lr_sglang.")]
    # `from lr_sglang import __version__` names no module.
    return {name.split(".")[0] for name in names if not name.startswith("__")}


def wrongs(part: str, imported: set[str]) -> list[str]:
    """What is wrong with these imports in a module of that part."""
    allowed = SELF_CONTAINED.get(part)
    if allowed is not None:
        return [
            f"{part} must stand alone but imports {name}"
            for name in sorted(imported - allowed - {part})
        ]
    if part == "":
        return []
    unknown = sorted(({part} | imported) - HEIGHT.keys())
    if unknown:
        return [
            f"{name} has no place yet: put it into LAYERS in {Path(__file__).name}"
            for name in unknown
        ]
    return [
        f"{part} imports {name}, which is above it"
        for name in sorted(imported)
        if HEIGHT[name] > HEIGHT[part]
    ]


def installed_modules() -> Iterator[Path]:
    return (path for path in sources() if path.parent != ROOT)


def test_nothing_is_imported_upward(nodes):
    found = []
    for path in installed_modules():
        imported = imported_parts(nodes[path], package_of(path))
        found += [f"{path.relative_to(ROOT)}: {wrong}" for wrong in wrongs(part_of(path), imported)]
    assert not found, "\n".join(found)


def imports_of(nodes: list[ast.AST], modules: set[str]) -> Iterator[str]:
    """The modules that one imports, also within functions and for type checkers alone."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for whole in (f"{node.module}.{alias.name}" for alias in node.names):
                yield whole if whole in modules else node.module


def test_no_modules_import_each_other(nodes):
    paths = {
        f"{package_of(path)}.{path.stem}".removesuffix(".__init__"): path
        for path in installed_modules()
    }
    found = {name: imports_of(nodes[path], set(paths)) for name, path in paths.items()}
    graphlib.TopologicalSorter(
        {name: set(imported) - {name} for name, imported in found.items()}
    ).prepare()


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("steps", "from lr_sglang.frontend.dsl import step"),
        ("engine", "def late():\n    from lr_sglang import cli"),
        ("config", "import lr_sglang.programs.lookahead"),
        ("cpu", "from lr_sglang.steps.step import split"),
        ("a_new_module", "import json"),
        ("cli", "from lr_sglang.a_new_module import thing"),
    ],
)
def test_a_wrong_import_is_seen(part, source):
    assert wrongs(part, imported_parts(nodes_of(source), "lr_sglang"))


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("frontend", "from lr_sglang.errors import LookaheadError\nfrom . import steps"),
        ("cpu", "from lr_sglang.cpu import plan\nfrom ..errors import SetupError"),
        ("results", "from lr_sglang import __version__"),
        ("runtimes", "from lr_sglang import cpu\nimport torch"),
    ],
)
def test_a_right_import_is_let_through(part, source):
    package = "lr_sglang.cpu" if part == "cpu" else "lr_sglang"
    assert wrongs(part, imported_parts(nodes_of(source), package)) == []


def is_print(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    )


def is_bare_except(node: ast.AST) -> bool:
    return isinstance(node, ast.ExceptHandler) and node.type is None


@pytest.mark.parametrize("is_wrong", [is_print, is_bare_except], ids=["print", "bare except"])
def test_the_package_has_none(is_wrong, nodes):
    found = [(path, node.lineno) for path, some in nodes.items() for node in some if is_wrong(node)]
    assert nodes and not [f"{path.relative_to(ROOT)}:{line}" for path, line in found]


def test_files_are_short():
    long = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in sources()
    }
    assert not {name: lines for name, lines in long.items() if lines > MAX_LINES}


# Where the modules went that stood flat in the package when every fork was a thread, without
# config, errors, tables and files: by their names then, the modules that do their work now. A
# module stands once.
CORE = {
    "aborter": "engine/client engine/refusal",
    "ahead": "frontend/gen_options",
    "answer": "algorithm/answer algorithm/verification",
    "api": "api/solve",
    "asking": "",
    "backend": "frontend/backend",
    "call": "engine/request",
    "catalog": "user_programs/program_registry",
    "chat": "engine/tokenizer engine/encoded_texts engine/end_ids",
    "choices": "frontend/choices",
    "connect": "runtimes/connect",
    "course": "user_programs/program_run",
    "delivery": "frontend/stream_text",
    "dsl": "frontend/dsl",
    "events": "steps/events",
    "flight": "algorithm/branches",
    "frontend": "user_programs/lookahead_backend",
    "generation": "engine/generation",
    "hearing": "algorithm/inquiry",
    "job": "algorithm/answer_request",
    "lean": "sglang_api/light_import",
    "live": "api/deployment",
    "modes": "modes",
    "node": "steps/node",
    "parts": "user_programs/generation_trace",
    "poison": "",
    "program": "user_programs/program",
    "reuse": "engine/prefix_reuse",
    "router": "engine/router",
    "runner": "api/runner",
    "solution": "api/solution",
    "spares": "",
    "speculation": "steps/speculation",
    "stages": "",  # with generation
    "steps": "steps/step steps/detokenize",
    "streaming": "api/stream",
    "tokens": "steps/token_text",
    "trace": "steps/trace",
    "transport": "",  # with aborter
    "tree": "steps/tree",
    "verifier_names": "verifiers/verifier_registry",
    "witness": "",  # with events
    "writing": "frontend/execution frontend/executor frontend/values "
    "engine/loop engine/pool engine/clock engine/lateness",
}
CORE_LINES = 6_900  # they may become fewer


def test_the_core_does_not_grow():
    modules = " ".join(CORE.values()).split()
    assert len(modules) == len(set(modules))
    files = [ROOT / "lr_sglang" / f"{module}.py" for module in modules]
    assert sum(len(file.read_text("utf-8").splitlines()) for file in files) <= CORE_LINES


# Answers are made on one event loop. Who knows of threads, and what for.
THREADS = {
    "engine/loop.py": "the loop's own thread, and one for each synchronous program",
    "frontend/values.py": "what such a program waits for when it reads a state",
    "api/stream.py": "a loop in the caller's thread over what the event loop makes",
    "api/runner.py": "records, from the event loop to the caller's thread",
    "engine/tokenizer.py": "a tokenizer is used on the loop, and in threads for long prompts",
    "engine/encoded_texts.py": "likewise",
    "runtimes/launching/fleet.py": "launching: servers start side by side",
    "runtimes/launching/server.py": "launching: what a server prints is read as it comes",
    "runtimes/launching/keeper.py": "launching: a server that has died is started again beside "
    "the others",
    "grading/pool.py": "grading: its processes are shared by those who wait for them",
    "grading/sandbox.py": "grading: likewise",
    "grading/regrade.py": "grading: answers side by side, of which one may never end",
    "grading/cell/test_process.py": "grading: threads that the code of an answer left",
    "results/store.py": "a record is written in a thread as its answer ends",
    "cli/session.py": "what takes seconds to import is imported while servers start",
    "cli/failures.py": "only the main thread takes signals",
    "cli/endpoint.py": "servers are looked after beside the endpoint's loop",
    "cli/doctor_checks.py": "a question that may never be answered",
    "simulated/measure.py": "threads are counted",
}


def test_who_knows_of_threads():
    known = re.compile(r"^\s*(import|from) (threading|queue)\b", re.MULTILINE)
    package = ROOT / "lr_sglang"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if known.search(path.read_text("utf-8"))
    }
    found.add(
        "grading/cell/test_process.py"
    )  # it runs beside code that must not see what it imports
    assert found == set(THREADS)


def test_every_module_says_what_it_is(nodes):
    """An empty __init__.py has nothing to say."""
    silent = [
        path
        for path, some in nodes.items()
        if path.stat().st_size and not ast.get_docstring(some[0])
    ]
    assert not [str(path.relative_to(ROOT)) for path in silent]


# Not for arXiv or a licence's page: for what belongs to one machine, or to one way of reaching a
# registry.
MACHINE = re.compile(
    r"(?<![\w.~*-])/(?:root|work|home/\w+|Users/\w+)/"
    r"|\b(?:pypi|pythonhosted|npmjs|debian)\.(?:org|com)\b"
    r"|\b(?:index-url|find-links|trusted-host|registry|resolved)\"? *[=:] *\"?https?:"
)


def tracked_texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive: what is installed, and the pages beside it
        paths = [*sources(), *ROOT.glob("*.*")]
    for path in paths:
        if path.is_file():
            try:
                yield str(path.relative_to(ROOT)), path.read_text("utf-8")
            except UnicodeDecodeError:
                continue  # weights and pictures


def test_no_file_knows_the_machine_it_was_written_on():
    found = [
        f"{name}: {hit[0]}" for name, text in tracked_texts() for hit in MACHINE.finditer(text)
    ]
    assert not found


@pytest.mark.parametrize(
    "text", ["see /ro~ot/x", "(/ho~me/me/a)", "in py~pi.org", 'regis~try = "https://a"']
)
def test_a_machine_is_recognised(text):
    """The mark ~ keeps this very file from being found."""
    assert MACHINE.search(text.replace("~", ""))


# Of environments of their own (scripts/clients.sh).
CLIENTS = {
    "constraints-clients.txt": ["openai", "anthropic", "llm", "lm-eval", "inspect-ai"],
    "constraints-litellm.txt": ["litellm"],
}


@pytest.mark.parametrize("file", sorted(path.name for path in ROOT.glob("constraints*.txt")))
def test_every_dependency_is_pinned(file):
    """Each file of pins holds names and exact versions only, among them what pyproject.toml, or its
    tests, ask for.
    """
    lines = (ROOT / file).read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert not [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[\w.+!]+", pin)]

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = CLIENTS.get(file) or sum(
        project["optional-dependencies"].values(), project["dependencies"]
    )
    names = {re.match(r"[\w.-]+", one)[0].lower().replace("_", "-") for one in asked}
    assert names - {"lr-sglang"} <= {pin.split("==")[0] for pin in pins}
