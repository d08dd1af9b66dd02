"""For all tests."""

import signal

# A shell without job control lets what it starts in the background ignore Ctrl-C, and so would everything started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
