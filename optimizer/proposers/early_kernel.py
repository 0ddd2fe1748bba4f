"""What kernels share that are launched before the kernel they depend on has ended."""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl


@triton.jit
def _wait(SOON: tl.constexpr):
    """Wait for the kernel before, and let the one behind be launched, which waits in its turn."""
    if SOON:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def _launch(early, device):
    """Return what a launch by dependency asks for: nothing where it is not wanted or the device cannot (before 9.0)."""
    able = early and device.type != "cpu" and torch.cuda.get_device_properties(device).major >= 9
    return {"launch_pdl": True} if able else {}
