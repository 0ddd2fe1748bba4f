# One pass: running maxima, sums below them and the two weighted sums, moved along whenever a maximum moves.
import torch
import triton
import triton.language as tl

CONSTRAINTS = {"contiguous": ["teacher", "student"]}
BLOCK = 4096
WARPS = 8


@triton.jit
def _row(teacher, student, divergence, entropy, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    max_t = -3.0e38
    max_s = -3.0e38
    sum_t = 0.0
    sum_s = 0.0
    own = 0.0  # sum of exp(t - max_t) * (t - max_t)
    other = 0.0  # sum of exp(t - max_t) * (s - max_s)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        t = tl.load(teacher + row * columns + start + at, inside, other=float("-inf")).to(tl.float32) / 2.0
        s = tl.load(student + row * columns + start + at, inside, other=float("-inf")).to(tl.float32) / 2.0
        new_t = tl.maximum(max_t, tl.max(t))
        new_s = tl.maximum(max_s, tl.max(s))
        shrunk = tl.exp(max_t - new_t)
        own = shrunk * (own + (max_t - new_t) * sum_t)
        other = shrunk * (other + (max_s - new_s) * sum_t)
        sum_t = shrunk * sum_t
        sum_s = tl.exp(max_s - new_s) * sum_s
        max_t = new_t
        max_s = new_s
        e = tl.exp(t - max_t)
        sum_t += tl.sum(e)
        sum_s += tl.sum(tl.exp(s - max_s))
        own += tl.sum(tl.where(inside, e * (t - max_t), 0.0))
        other += tl.sum(tl.where(inside, e * (s - max_s), 0.0))
    log_t = tl.log(sum_t)
    log_s = tl.log(sum_s)
    tl.store(divergence + row, (own - other) / sum_t - log_t + log_s)
    tl.store(entropy + row, log_t - own / sum_t)


def kernel(teacher, student):
    columns = teacher.shape[-1]
    divergence = torch.zeros(teacher.shape[:-1], dtype=torch.float32, device=teacher.device)
    entropy = torch.zeros_like(divergence)
    if teacher.numel():
        _row[(divergence.numel(),)](teacher, student, divergence, entropy, columns, BLOCK=BLOCK, num_warps=WARPS)
    return divergence, entropy
