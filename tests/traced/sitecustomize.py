"""Python imports this when it starts, in every process of the tests, for ``.ci/run`` has this folder in PYTHONPATH.

If Python crashes there, in a server or one of its children too, the trace of its threads is in LR_SGLANG_CRASH_FILE.
"""

import faulthandler
import fcntl
import os

if path := os.environ.get("LR_SGLANG_CRASH_FILE"):
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    crashes = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 100)  # out of the way of what a process opens
    os.close(opened)
    enable = faulthandler.enable
    # SGLang's processes and pytest would have it in a log that nobody sees.
    faulthandler.enable = lambda file=None, all_threads=True, **more: enable(crashes, all_threads)
    faulthandler.enable()
