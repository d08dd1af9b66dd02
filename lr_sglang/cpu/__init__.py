"""SGLang on a machine with no GPU: operators, attention and seeds in PyTorch.

SGLang loads this package by itself, in every process of a server, through the
entry points of our distribution. It does nothing unless SGLANG_USE_CPU_ENGINE=1
is set, which is SGLang's own switch for running on a CPU. Neither torch nor
sglang is imported until then.
"""

import sys

from lr_sglang.plugin import enabled

CPU_SWITCH = "SGLANG_USE_CPU_ENGINE"


def is_on_cpu() -> bool:
    """True where SGLang is set to run on a CPU."""
    return enabled(CPU_SWITCH)


def platform() -> None:
    """Entry point `sglang.srt.platforms`: register the operators, then decline.

    SGLang calls it before the first `import sgl_kernel`. None says that this is
    not a platform of its own: SGLang goes on with its CPU platform.
    """
    if is_on_cpu():
        # Kernels for GPUs: importing them takes seconds and gigabytes, and none can run here. None
        # makes `import flashinfer` an ImportError, which SGLang expects.
        sys.modules.setdefault("flashinfer", None)  # type: ignore[arg-type]

        from lr_sglang.cpu import operators

        operators.register()


def plugin() -> None:
    """Entry point `sglang.srt.plugins`: install the hooks."""
    if is_on_cpu():
        from lr_sglang.cpu import hooks

        hooks.install_cpu_hooks()
