"""For all tests."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import hypothesis
import pytest

from lr_sglang.engine.loop import background
from lr_sglang.sglang_api.light_import import leave_torch_out
from tests.crashes import (  # noqa: F401 - hooks of pytest
    leave_a_trace,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
    pytest_sessionfinish,
)

# A shell without job control lets what it starts in the background ignore Ctrl-C, and so would
# everything started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Set by scripts/test.sh for tests that need no torch in their own process, which is most of its imports.
if os.environ.get("LR_SGLANG_TESTS_LEAN") == "1":
    leave_torch_out()

# The machine may be busy: what takes long is seen by the tests' own limits.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")

JOIN_SECONDS = 10  # for threads of states that were ended


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    leave_a_trace()
    # until all tests are imported: a fifth of the time of these imports would go into looking for
    # garbage
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """A process waits at its end for its threads, and a state that a test has dropped has one until
    it is collected.

    If another is left the run fails and says which, instead of never ending.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # what is left is not looked through again
    left = [
        thread
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    deadline = time.monotonic() + JOIN_SECONDS
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    if names := [thread.name for thread in left if thread.is_alive()]:
        sys.stderr.write(f"\nthreads that nobody has ended: {', '.join(names)}\n")
        os._exit(1)


@pytest.fixture(autouse=True, scope="session")
def as_in_a_command() -> None:
    """The process's event loop runs from the start, so that tests that count threads count it
    always; what is imported by then is not looked through for garbage.
    """
    import lr_sglang.api.runner  # noqa: F401 - and with it SGLang
    from lr_sglang.engine.loop import keep_what_is_imported

    background()
    keep_what_is_imported()
    gc.enable()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder in which a test runs, which has it for itself."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def popen():
    """``subprocess.Popen``, whose processes end with the test."""
    with ExitStack() as stack:

        def started(*given, **options):
            process = stack.enter_context(subprocess.Popen(*given, **options))
            stack.callback(process.kill)
            return process

        yield started


@pytest.fixture
def servers(here, monkeypatch):
    """Scripted runtimes in the place of those that a command starts; it runs in a folder of its
    own.
    """
    from lr_sglang.api import session
    from tests.scripted_cli import Servers

    made = Servers()
    monkeypatch.setattr(session, "session", made)
    monkeypatch.setenv("COLUMNS", "80")
    return made


@pytest.fixture
def serving():
    """Serves what it is given until the test ends."""
    from tests.stub import served

    with ExitStack() as stack:
        yield lambda server: stack.enter_context(served(server))
