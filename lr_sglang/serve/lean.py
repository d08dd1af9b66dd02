"""Imports what a process of an endpoint needs, without torch: for the process that all of them are forked from."""

from lr_sglang.lean import leave_torch_out

leave_torch_out()

from lr_sglang.serve import worker  # noqa: E402, F401
