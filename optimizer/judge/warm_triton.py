"""Have Triton ready in the parent of workers, so that no candidate waits for it.

Its first launch in a process takes 1.3 s more than later ones, compilation apart (H200): modules are imported, ptxas
and the linker are asked what they are, a library that talks to the driver is built, all of which a fork inherits.
"""

from __future__ import annotations

import logging
import os
import tempfile

logger = logging.getLogger(__name__)


def warm_triton(capability: int) -> None:
    """Compile a kernel of ours for a device of this capability and load the driver's library; no device is touched.

    Candidates compile into folders of their own: what is compiled here lies in one that is gone when this returns.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver
    from triton.compiler import ASTSource

    from .fill_kernel import BLOCK, fill

    pointers = {"rooms": "*bf16", "sources": "*bf16", "which": "*i64", "first": "*i64", "by": "*fp32"}
    sizes = dict.fromkeys(("count", "room_stride", "source_stride"), "i32")
    constants = {"SCALED": True, "ALIGNED": 1, "BLOCK": BLOCK}
    signature = {**pointers, **sizes, **dict.fromkeys(constants, "constexpr")}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TRITON_CACHE_DIR"] = scratch
        triton.compile(ASTSource(fill, signature, constants), target=GPUTarget("cuda", capability, 32))
        try:
            triton.runtime.driver.set_active(CudaDriver())
        except (AssertionError, RuntimeError) as error:  # what Triton raises where it finds no driver
            logger.warning("Triton's library for the driver cannot be built ahead, each worker builds it: %s", error)
    del os.environ["TRITON_CACHE_DIR"]
