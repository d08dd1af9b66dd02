"""Which system calls fail in a cell, and the filter (classic BPF, see seccomp(2)) that makes them
fail.
"""

from __future__ import annotations

import errno
import struct

ARCHITECTURE = 0xC000003E  # x86-64
CLONE, CLONE3, THREAD, X32 = 56, 435, 0x10000, 0x40000000
# By number, of x86-64. Threads are allowed, and pairs of sockets, which asyncio needs.
_REFUSED = """
shmget:29 socket:41 connect:42 bind:49 fork:57 vfork:58 execve:59 kill:62 semget:64 msgget:68 ptrace:101 syslog:103
rt_sigqueueinfo:129 personality:135 modify_ldt:154 pivot_root:155 chroot:161 mount:165 umount2:166 mq_open:240
add_key:248 request_key:249 keyctl:250 migrate_pages:256 unshare:272 move_pages:279 rt_tgsigqueueinfo:297
perf_event_open:298 fanotify_init:300 name_to_handle_at:303 open_by_handle_at:304 setns:308 process_vm_readv:310
process_vm_writev:311 kcmp:312 memfd_create:319 bpf:321 execveat:322 userfaultfd:323 pidfd_send_signal:424
io_uring_setup:425 io_uring_enter:426 io_uring_register:427 open_tree:428 move_mount:429 fsopen:430 fsconfig:431
fsmount:432 fspick:433 pidfd_open:434 pidfd_getfd:438 mount_setattr:442 memfd_secret:447
"""
REFUSED = {
    name: int(number) for name, _, number in (one.partition(":") for one in _REFUSED.split())
}

LOAD, EQUAL, AT_LEAST, HAS_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, KIND, FIRST_ARGUMENT = 0, 4, 16  # places in the kernel's struct seccomp_data
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def program() -> bytes:
    """The filter: 8 bytes an instruction."""
    refuse = (RETURN, 0, 0, FAIL | errno.EPERM)
    steps = [
        (LOAD, 0, 0, KIND),
        (EQUAL, 1, 0, ARCHITECTURE),
        (RETURN, 0, 0, KILL),  # a system call of 32 bits
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, KILL),
        (EQUAL, 0, 1, CLONE3),
        (
            RETURN,
            0,
            0,
            FAIL | errno.ENOSYS,
        ),  # a filter cannot read its flags in memory; libc then uses clone
    ]
    for number in REFUSED.values():
        steps += [(EQUAL, 0, 1, number), refuse]
    steps += [
        (EQUAL, 0, 3, CLONE),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (HAS_BIT, 1, 0, THREAD),
        refuse,
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
