"""Python imports this when it starts, in every process of the tests, for ``.ci/run`` has this
folder in PYTHONPATH.

If Python crashes there, in a server or one of its children too, the trace of its threads is in
LR_SGLANG_CRASH_FILE.
"""

import faulthandler
import fcntl
import os
import sys

plain = faulthandler.enable


class Watch:
    """A finder that finds nothing. tvm_ffi, which SGLang imports, puts a handler of its own in the
    place of Python's.

    What that says goes to standard error, which pytest captures and a log keeps to itself. There is
    no switch.
    """

    done = False

    def find_spec(self, name, path=None, target=None):
        module = sys.modules.get("tvm_ffi")
        if module is not None and not self.done:
            self.done = not module.__spec__._initializing
            faulthandler.enable()


def leave_traces(path):
    """From now on, wherever others would have them."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # out of the way of what a process opens
    crashes = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 100)
    os.close(opened)

    def enable(file=None, all_threads=True, **more):
        faulthandler.disable()  # else it would leave the handlers as they are
        plain(crashes, all_threads)

    faulthandler.enable = enable
    enable()
    sys.meta_path.insert(0, Watch())


if given := os.environ.get("LR_SGLANG_CRASH_FILE"):
    leave_traces(given)
