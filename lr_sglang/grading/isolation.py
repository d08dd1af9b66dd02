"""How code of answers is isolated on this machine: by bubblewrap, else by namespaces of our own,
else not at all.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import secrets
import shutil
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

CELL = Path(__file__).parent / "cell"
BUBBLEWRAP, NAMESPACES, NONE = "bubblewrap", "namespaces", "none"
USERS = 2_000_000_000  # higher numbers belong to no user
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
STREAMS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
}
# The parts of /usr and /etc that Python and packages with C code need.
SYSTEM = (
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
)
INSIDE = "/lr"  # path of the folder ``cell`` in bubblewrap's cells
FLAGS = (
    "--die-with-parent --new-session --as-pid-1 --unshare-pid --unshare-net --unshare-ipc "
    "--unshare-uts"
)
LAST = "--proc /proc --dir /answer --remount-ro / --chdir /"
# For the file system of each test, and for becoming a user that owns nothing; gone before any code
# of an answer runs.
CAPABILITIES = "--cap-drop ALL --cap-add CAP_SYS_ADMIN --cap-add CAP_SETUID --cap-add CAP_SETGID"


@dataclass(frozen=True)
class Layout:
    """The files of the machine that a cell can read; it can write none of them.

    Attributes:
        binds: files and folders.
        links: symbolic links, by path.
        covers: folders inside of ``binds`` that are empty in a cell.
        packages: folders in which the answer's imports are looked up after Python's own.
    """

    binds: list[str]
    links: dict[str, str]
    covers: list[str]
    packages: list[str]


@functools.cache
def layout() -> Layout:
    """Python, its packages and the system's libraries."""
    prefix = os.path.realpath(sys.base_prefix)
    packages = list(dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib")))
    wanted = [*SYSTEM, python(), f"{prefix}/lib", f"{prefix}/{sys.platlibdir}", *packages, *DEVICES]
    links = dict(STREAMS)
    for name in ("/lib", "/lib64"):
        if os.path.islink(name):
            links[name] = os.readlink(name)
        else:
            wanted.append(name)
    there = sorted({path for path in wanted if os.path.exists(path)})
    binds = [path for path in there if not any(path.startswith(f"{other}/") for other in there)]
    if not any(path.startswith("/tmp/") for path in binds):
        links["/tmp"] = "/answer"
    # Hides our package, which has questions with their solutions and tests.
    covers = [f"{path}/lr_sglang" for path in packages if os.path.isdir(f"{path}/lr_sglang")]
    return Layout(binds, links, covers, packages)


def python() -> str:
    """The interpreter, without a virtual environment."""
    return os.path.realpath(sys.executable)


def candidates() -> list[str]:
    """The kinds of isolation that may work here, the strongest first; ``sandbox.standing`` tries
    them.
    """
    if (
        sys.platform != "linux" or platform.machine() != "x86_64"
    ):  # the numbers of system calls are those of x86-64
        return []
    return [BUBBLEWRAP, NAMESPACES] if shutil.which("bwrap") else [NAMESPACES]


def command(wall: str, control: int, folder: str) -> list[str]:
    """The command line that starts a cell.

    Args:
        control: number of the socket that the cell gets.
        folder: where tests get their folders, if there is no isolation.
    """
    about = {
        "name": wall,
        "folder": folder,
        "user": USERS + secrets.randbelow(1 << 24),
        **asdict(layout()),
    }
    home = INSIDE if wall == BUBBLEWRAP else str(CELL.parent)
    code = (
        f"import sys; sys.path.insert(0, {home!r}); from cell.first_process import main; "
        "del sys.path[0]; main()"
    )
    start = [python(), "-I", "-S", "-B", "-c", code, str(control), json.dumps(about)]
    return [*_bubblewrap(layout()), *start] if wall == BUBBLEWRAP else start


def _bubblewrap(files: Layout) -> list[str]:
    words = ["bwrap", *FLAGS.split(), *CAPABILITIES.split()]
    for parent in sorted(
        {str(parent) for path in [*files.binds, f"{INSIDE}/cell"] for parent in Path(path).parents}
    ):
        words += ["--dir", parent]  # else only root may enter it
    for path in files.binds:
        words += ["--dev-bind" if path in DEVICES else "--ro-bind", path, path]
    for path in files.covers:
        words += ["--tmpfs", path, "--remount-ro", path]
    for path, target in files.links.items():
        words += ["--symlink", target, path]
    return [*words, "--ro-bind", str(CELL), f"{INSIDE}/cell", *LAST.split()]
