"""``python -m lr_sglang.runtimes.launching.launcher FLAGS``: ``sglang.launch_server`` that starts
faster on a CPU.

A server is three processes, and SGLang lets each import everything anew ("spawn"), because CUDA
does not survive a fork. On a CPU this is nearly all of the start's time and memory, so the two
others are forked from the first one, after its imports and before its first thread.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from typing import Any

# SGLang's function that sets how processes are started.
SPAWNING = "sglang.srt.entrypoints.engine._set_envs_and_config"


def main(arguments: list[str]) -> None:
    """Runs a server until it ends.

    Args:
        arguments: as ``sglang.launch_server`` takes them.
    """
    gc.disable()  # garbage collection would take a third of these imports' time
    from sglang import launch_server
    from sglang.srt.entrypoints import http_server  # noqa: F401
    from sglang.srt.managers import detokenizer_manager, scheduler  # noqa: F401
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils.common import kill_process_tree

    HookRegistry.register(SPAWNING, _fork_from_now_on, HookType.AFTER)
    load_plugins()
    gc.freeze()  # imported objects are neither scanned again nor copied after the fork
    gc.enable()
    server_args = prepare_server_args(arguments)
    try:
        launch_server.run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _fork_from_now_on(*_: Any, **__: Any) -> None:
    """Sets "fork" after the hooked function, which ends by setting "spawn"."""
    multiprocessing.set_start_method("fork", force=True)


if __name__ == "__main__":
    main(sys.argv[1:])
