"""What the kernel keeps a process from: the network, other processes, and files that are not its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 0x40000
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, RDONLY = 442, -100, 0x8000, 1
NETWORK, PROCESSES, FILES = "network namespace", "process namespace", "read-only files"

# Of the folder, in all; it is gone with its namespace, however deep an answer has dug in it.
ROOM = b"size=256m,nr_inodes=10000,mode=700"

libc = ctypes.CDLL(None, use_errno=True)


def isolate(folder: str) -> list[str]:
    """Leaves as many namespaces as the kernel permits; says which walls stand."""
    uid, gid = os.getuid(), os.getgid()
    for flags in (NEWUSER | NEWNET | NEWPID | NEWNS | NEWIPC, NEWNET | NEWPID | NEWNS | NEWIPC, NEWUSER | NEWNET):
        if libc.unshare(flags) == 0:
            break
    else:
        return []
    if flags & NEWUSER:
        with contextlib.suppress(OSError):
            write("/proc/self/setgroups", "deny")
        with contextlib.suppress(OSError):
            write("/proc/self/uid_map", f"{uid} {uid} 1")
            write("/proc/self/gid_map", f"{gid} {gid} 1")
    walls = [NETWORK]
    if flags & NEWPID:
        walls.append(PROCESSES)
    if flags & NEWNS and read_only(folder):
        walls.append(FILES)
    return walls


def read_only(folder: str) -> bool:
    """Makes every file system read-only but this folder, which gets one of its own in memory."""

    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]

    def set_attributes(path: str, flags: int, **given: int) -> bool:
        about = Attributes(**given)
        size = ctypes.c_size_t(ctypes.sizeof(about))
        done = libc.syscall(
            ctypes.c_long(MOUNT_SETATTR), AT_FDCWD, path.encode(), ctypes.c_uint(flags), ctypes.byref(about), size
        )
        return bool(done == 0)

    return (
        mount("none", "/", MS_REC | MS_PRIVATE)
        and mount("tmpfs", folder, MS_NOSUID | MS_NODEV | MS_NOEXEC, ROOM)
        and set_attributes("/", AT_RECURSIVE, set=RDONLY)
        and set_attributes(folder, 0, clear=RDONLY)
    )


def own_processes() -> None:
    """In a process namespace: /proc shows no others. Where it is masked, as in some containers, it stays as it is."""
    mount("proc", "/proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def mount(kind: str, place: str, flags: int, options: bytes | None = None) -> bool:
    """Whether the kernel did it."""
    name = kind.encode()
    return bool(libc.mount(name, place.encode(), name, ctypes.c_ulong(flags), options) == 0)


def write(path: str, text: str) -> None:
    """In one go: the kernel reads a whole map or none."""
    with open(path, "w") as file:
        file.write(text)


def drop_capabilities() -> None:
    """In its namespace the keeper is allowed everything, and so would its children be."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # which a change of capabilities would undo


def die_with_parent() -> None:
    """The kernel ends this process when the one that started it is gone."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def stand_alone() -> None:
    """Takes in orphans among the descendants, and lets nobody look into this process."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
