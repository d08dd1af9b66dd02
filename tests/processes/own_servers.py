"""``lr-sglang`` that starts simulated runtimes in the place of SGLang servers: run as a program,
with the options of the simulation as words of SIMULATION.
"""

import os
import sys
from typing import Any

if __name__ == "__main__":  # before anything imports SGLang, as the command line does
    from lr_sglang.sglang_api.light_import import leave_torch_out

    leave_torch_out()

from lr_sglang.cli import main
from lr_sglang.runtimes.launching import flags


def command(runtime: Any, port: int, platform: Any, *, where: str, **given: Any) -> flags.Command:
    """In place of ``flags.command``; ``where`` is ``[runtimes.ROLE]``."""
    role = where.strip("[]").partition(".")[2]
    words = ["--role", role, "--port", str(port), *os.environ["SIMULATION"].split()]
    return flags.Command((sys.executable, "-m", "tests.simulated", *words))


if __name__ == "__main__":
    flags.command = command  # type: ignore[assignment]
    flags.meeting = lambda runtime: ""  # type: ignore[assignment]
    main()
