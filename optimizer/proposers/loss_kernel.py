"""What kernels of a loss share: the sum or mean of all rows."""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl

from .early_kernel import _launch, _wait


@triton.jit
def _reduce(
    loss_ptr, target_ptr, out_ptr, rows,
    IGNORED: tl.constexpr, MEAN: tl.constexpr, BLOCK: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    """Add up all rows in one program, always in the same order.

    Targets are counted before the wait: they were there before the kernel that makes the losses, which waited itself.
    """
    losses = tl.zeros([BLOCK], tl.float32)
    counts = tl.zeros([BLOCK], tl.float32)
    if MEAN:
        for done in range(0, rows, BLOCK):
            at = done + tl.arange(0, BLOCK)
            target = tl.load(target_ptr + at, mask=at < rows, other=IGNORED)
            counts += tl.where(target == IGNORED, 0.0, 1.0)
    count = tl.sum(counts, axis=0)
    _wait(SOON)
    for done in range(0, rows, BLOCK):
        at = done + tl.arange(0, BLOCK)
        losses += tl.load(loss_ptr + at, mask=at < rows, other=0.0)
    loss = tl.sum(losses, axis=0)
    if MEAN:
        loss = loss / count
    tl.store(out_ptr, loss)


def _reduced(loss, target, ignored, mean, dtype, early):
    """Return the sum or the mean of the losses of rows that count."""
    rows = target.shape[0]
    out = torch.empty((), dtype=dtype, device=loss.device)
    launch = _launch(early, loss.device)
    block, warps = (1024, 4) if rows <= 1024 else (4096, 8)
    _reduce[(1,)](
        loss, target, out, rows, IGNORED=ignored, MEAN=mean, BLOCK=block, SOON=bool(launch),
        num_warps=warps, **launch,
    )  # fmt: skip
    return out
