"""Imports what a process of an endpoint needs, without torch: for the process that all of them are
forked from.
"""

from lr_sglang.sglang_api.light_import import leave_torch_out

leave_torch_out()

from lr_sglang.serve.processes import worker  # noqa: E402, F401
