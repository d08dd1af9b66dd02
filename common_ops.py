"""What `import sgl_kernel` loads where its CUDA libraries cannot be loaded.

sgl_kernel tries two libraries and last a plain `import common_ops`, in every
process of a server. With SGLANG_USE_CPU_ENGINE=1 this module registers our
PyTorch operators; without it, it refuses, so that a machine with a GPU and a
broken installation still sees sgl_kernel's own error.
"""

from lr_sglang import cpu

if not cpu.is_on_cpu():
    raise ImportError(
        f"common_ops of lr-sglang is for servers without a GPU: set {cpu.CPU_SWITCH}=1 to use it"
    )

from lr_sglang.cpu import operators

operators.register()
