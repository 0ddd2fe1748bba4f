"""What kernels share that are launched before the kernel they depend on has ended."""

# mypy: ignore-errors
# ruff: noqa: N803
import triton
import triton.language as tl


@triton.jit
def _wait(SOON: tl.constexpr):
    """Wait for the kernel before, and let the one behind be launched, which waits in its turn."""
    if SOON:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
