"""Imported before anything else by what simulated runtimes are forked from: they need no torch."""

from lr_sglang.sglang_api.light_import import leave_torch_out

leave_torch_out()
