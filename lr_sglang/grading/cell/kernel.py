"""Calls of the Linux kernel for which Python has no function: namespaces, mounts, capabilities,
seccomp.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import Any

from .system_calls import program

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
NAMESPACES = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 1, 4, 22, 38, 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    0x1000,
    0x4000,
    0x40000,
)
PIVOT_ROOT, MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MNT_DETACH = (
    155,
    442,
    -100,
    0x8000,
    2,
)  # numbers of x86-64
FOLDER, FOLDER_SIZE, MODE = "/answer", b"size=64m,nr_inodes=10000,mode=1755", 0o41755

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the C library.

    Raises:
        OSError: the kernel refused.
    """
    if getattr(libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(
    kind: str, place: str, flags: int, options: bytes | None = None, source: str | None = None
) -> None:
    """Mounts a file system of a kind, or binds ``source``."""
    call(
        "mount",
        (source or kind).encode(),
        place.encode(),
        kind.encode(),
        ctypes.c_ulong(flags),
        options,
    )


def leave_namespaces() -> None:
    """Gives this process namespaces of its own; its next child is the first process of the process
    namespace.

    Raises:
        OSError: the kernel permits none.
    """
    uid, gid = os.getuid(), os.getgid()
    if uid == 0 and libc.unshare(NAMESPACES) == 0:
        return
    call("unshare", NAMESPACES | NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def change_root(binds: list[str], links: dict[str, str], covers: list[str]) -> None:
    """Makes a root in memory that has these files and folders, read-only, and leaves the old one.

    Args:
        binds: paths that stay.
        links: symbolic links, by path.
        covers: folders inside of ``binds`` that are empty here.

    Raises:
        OSError: the kernel refused a step.
    """
    new = "/proc"  # a folder that exists everywhere and contains no path of ``binds``
    mount("none", "/", MS_REC | MS_PRIVATE)
    mount("tmpfs", new, MS_NOSUID | MS_NODEV, b"size=1m,mode=755")
    for path in binds:
        if os.path.isdir(path):
            os.makedirs(new + path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(new + path), exist_ok=True)
            os.close(os.open(new + path, os.O_CREAT | os.O_WRONLY, 0o644))
        mount("none", new + path, MS_BIND | MS_REC, source=path)
    for path in covers:
        mount("tmpfs", new + path, MS_NOSUID | MS_NODEV, b"size=1m,mode=755")
    for path, target in links.items():
        os.makedirs(os.path.dirname(new + path), exist_ok=True)
        os.symlink(target, new + path)
    for path in (FOLDER, "/proc"):
        os.mkdir(new + path)
    with contextlib.suppress(
        OSError
    ):  # forbidden in containers that mask /proc; the cell then has no /proc
        mount("proc", new + "/proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(new)
    call("syscall", ctypes.c_long(PIVOT_ROOT), b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY | MS_NOSUID, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    call(
        "syscall",
        ctypes.c_long(MOUNT_SETATTR),
        AT_FDCWD,
        b"/",
        AT_RECURSIVE,
        ctypes.byref(attributes),
        size,
    )


def fresh_folder(user: int) -> str:
    """An empty file system in memory for one test; replaces that of the previous test if it was
    changed.
    """
    with contextlib.suppress(OSError):
        if os.stat(FOLDER).st_mode == MODE and not os.listdir(FOLDER):
            return FOLDER
    libc.umount2(FOLDER.encode(), MNT_DETACH)
    mount(
        "tmpfs",
        FOLDER,
        MS_NOSUID | MS_NODEV | MS_NOEXEC,
        FOLDER_SIZE + f",uid={user},gid={user}".encode(),
    )
    return FOLDER


def become(user: int) -> None:
    """Changes from root to a user that owns no files."""
    if os.getuid() == 0 and user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def drop_capabilities() -> None:
    """Drops the capabilities that the first process of a namespace has, also for its children."""
    call("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call(
        "prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0
    )  # again, because a change of user resets it


def filter_system_calls() -> None:
    """Makes the calls of ``system_calls.REFUSED`` fail in this process, for good."""

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    code = program()
    call("prctl", PR_SET_SECCOMP, FILTER, ctypes.byref(Program(len(code) // 8, code)), 0, 0)


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent dies."""
    call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def hide_memory() -> None:
    """Keeps other processes of the same user from reading this one's memory."""
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
