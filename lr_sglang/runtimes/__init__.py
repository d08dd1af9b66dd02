"""Launching, watching, attaching to and stopping SGLang servers; reading deployments."""

from lr_sglang.runtimes.deployments import built_in, load_deployment, override_all
from lr_sglang.runtimes.launching.fleet import Fleet, launch
from lr_sglang.runtimes.launching.server import ProgressEvent, Server

__all__ = [
    "Fleet",
    "ProgressEvent",
    "Server",
    "built_in",
    "launch",
    "load_deployment",
    "override_all",
]
