"""For all tests."""

import signal

import hypothesis

# A shell without job control lets what it starts in the background ignore Ctrl-C, and so would everything started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The machine may be busy: what takes long is seen by the tests' own limits.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")
