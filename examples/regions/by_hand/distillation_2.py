# Everything below the row's largest value: three passes (maxima, sums, differences), no cancellation left.
import torch
import triton
import triton.language as tl

CONSTRAINTS = {"contiguous": ["teacher", "student"]}
BLOCK = 4096


@triton.jit
def _row(teacher, student, divergence, entropy, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    top_t = tl.full((BLOCK,), float("-inf"), tl.float32)
    top_s = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        t = tl.load(teacher + row * columns + start + at, inside, other=float("-inf")).to(tl.float32) / 2.0
        s = tl.load(student + row * columns + start + at, inside, other=float("-inf")).to(tl.float32) / 2.0
        top_t = tl.maximum(top_t, t)
        top_s = tl.maximum(top_s, s)
    max_t = tl.max(top_t)
    max_s = tl.max(top_s)
    sum_t = tl.zeros((BLOCK,), tl.float32)
    sum_s = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        t = tl.load(teacher + row * columns + start + at, inside, other=float("-inf")).to(tl.float32) / 2.0
        s = tl.load(student + row * columns + start + at, inside, other=float("-inf")).to(tl.float32) / 2.0
        sum_t += tl.exp(t - max_t)
        sum_s += tl.exp(s - max_s)
    log_t = tl.log(tl.sum(sum_t))
    log_s = tl.log(tl.sum(sum_s))
    cross = tl.zeros((BLOCK,), tl.float32)
    own = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        t = tl.load(teacher + row * columns + start + at, inside, other=0.0).to(tl.float32) / 2.0
        s = tl.load(student + row * columns + start + at, inside, other=0.0).to(tl.float32) / 2.0
        wanted = (t - max_t) - log_t
        given = (s - max_s) - log_s
        p = tl.exp(wanted)
        cross += tl.where(inside, p * (wanted - given), 0.0)
        own += tl.where(inside, p * wanted, 0.0)
    tl.store(divergence + row, tl.sum(cross))
    tl.store(entropy + row, -tl.sum(own))


def kernel(teacher, student):
    columns = teacher.shape[-1]
    divergence = torch.zeros(teacher.shape[:-1], dtype=torch.float32, device=teacher.device)
    entropy = torch.zeros_like(divergence)
    if teacher.numel():
        _row[(divergence.numel(),)](teacher, student, divergence, entropy, columns, BLOCK=BLOCK, num_warps=8)
    return divergence, entropy
