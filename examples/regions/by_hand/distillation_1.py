# First draft: the textbook sums. log-sum-exp of each row, and sum p * t / T and sum p * s / T, all in two passes.
import torch
import triton
import triton.language as tl

CONSTRAINTS = {"contiguous": ["teacher", "student"]}
BLOCK = 4096


@triton.jit
def _row(teacher, student, divergence, entropy, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    sum_t = tl.zeros((BLOCK,), tl.float32)
    sum_s = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        t = tl.load(teacher + row * columns + start + at, inside, other=float("-inf")).to(tl.float32) / 2.0
        s = tl.load(student + row * columns + start + at, inside, other=float("-inf")).to(tl.float32) / 2.0
        sum_t += tl.exp(t)
        sum_s += tl.exp(s)
    log_t = tl.log(tl.sum(sum_t))
    log_s = tl.log(tl.sum(sum_s))
    cross = tl.zeros((BLOCK,), tl.float32)
    own = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        t = tl.load(teacher + row * columns + start + at, inside, other=0.0).to(tl.float32) / 2.0
        s = tl.load(student + row * columns + start + at, inside, other=0.0).to(tl.float32) / 2.0
        p = tl.where(inside, tl.exp(t - log_t), 0.0)
        cross += p * (t - s)
        own += p * t
    tl.store(divergence + row, tl.sum(cross) - log_t + log_s)
    tl.store(entropy + row, log_t - tl.sum(own))


def kernel(teacher, student):
    columns = teacher.shape[-1]
    rows = teacher.numel() // columns if columns else 0
    divergence = torch.empty(teacher.shape[:-1], dtype=torch.float32, device=teacher.device)
    entropy = torch.empty_like(divergence)
    if rows:
        _row[(rows,)](teacher, student, divergence, entropy, columns, BLOCK=BLOCK, num_warps=8)
    return divergence, entropy
