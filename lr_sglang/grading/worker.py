"""A process that compares answers with Math-Verify: JSON in, JSON out.

Math-Verify limits its time by SIGALRM, which only a main thread can receive, and which cannot
interrupt the computation of a huge power. So the process that waits for this one kills it when its
time is over.
"""

from __future__ import annotations

import json
import resource
from multiprocessing.connection import Connection
from typing import Any

MEMORY = 4 << 30  # bytes of address space
SECONDS = 4  # of parsing one side, or of comparing
ORPHANED = 60  # seconds of processor time for one answer, in a worker whose caller has gone
READY = "ready"


def compare(gold: str, answer: str) -> dict[str, Any]:
    """Whether Math-Verify finds them equal; answers that it cannot parse are not."""
    from math_verify import parse, verify

    try:
        known = parse(f"${gold}$", parsing_timeout=SECONDS)
        given = parse(f"${answer}$", parsing_timeout=SECONDS)
        if not given:
            return {"same": False, "why": "it cannot be read"}
        same = verify(known, given, timeout_seconds=SECONDS, allow_set_relation_comp=True)
        return {"same": bool(same), "why": ""}
    except Exception as error:  # noqa: BLE001 - it has many of its own, and all mean the same
        return {"same": False, "why": f"{type(error).__name__}: {error}"[:200]}


def main(pipe: int) -> None:
    """Serves until the other end of its pipe is closed."""
    import logging

    import math_verify  # noqa: F401 - so that the first answer need not wait for it

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = Connection(pipe)
    asked.send_bytes(json.dumps(READY).encode())
    while True:
        try:
            gold, answer = json.loads(asked.recv_bytes())
        except (EOFError, OSError):
            return
        _have_an_end()
        asked.send_bytes(json.dumps(compare(gold, answer)).encode())


def _have_an_end() -> None:
    """Limits this process's processor time for one answer, in case its parent has died and will not
    kill it.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + ORPHANED, most))
