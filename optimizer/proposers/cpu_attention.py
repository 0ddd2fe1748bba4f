"""Offer attention on a CPU: scores, softmax and the second product of a few query rows in one pass.

torch's flash attention for the CPU spends most of a short sequence outside its products, and these are library calls a
block at a time. This one packs keys and values once a head and keeps a few rows in the nearest caches. One frame serves
two products: tile registers where the CPU has them, and vectors, which take bf16 by pairs where there are instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar

from ...extractor.task import ShapeCase, Task
from ...models.machine import cpu_flags
from ..attempt import Knob
from .anchor_template import AnchorTemplate, settings
from .attention_call import attention_call

# As the C++ names them: the element type of a call, and what a mask is.
_ELEMENTS = {"float32": 0, "bfloat16": 1, "float16": 2}
_MASKS = {None: 0, "bool": 1, "bfloat16": 2, "float32": 3, "float16": 4}
_CAUSAL = 5

# torch reads fp32 as it lies and is near the peak of the CPU in its products. Packing a head for fewer rows than these
# lost to it on a Zen 4 (0.4x at one row, 0.9x at eight), and so did heads beyond these (0.94x to 1.00x at 512).
_FEWEST_ROWS = 16
_WIDEST_HEAD = 256

# Keys of one block of the first setting.
_MANY_KEYS = 512

_PRODUCTS = {"tiles": ("attention_tiles.h", "Tiles"), "vectors": (None, "Vectors")}

_WRAPPER = """
LIBRARY = compile_cpp(SOURCE)
if PRODUCT == "tiles" and LIBRARY.attention_ready() != 0:
    raise RuntimeError("the kernel does not grant this process the AMX tile registers")
_NATIVE = LIBRARY.attention
_NATIVE.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_float]
_NATIVE.restype = None
_PLANS = {{}}
_MOST_PLANS = 1024


def _plan(q, k, v, mask):
    alike = q.shape[0] == k.shape[0] and k.shape[:2] == v.shape[:2] and (q.shape[1] == k.shape[1] or {grouped})
    shared, = torch.broadcast_shapes(k.shape[1:2], v.shape[1:2], () if {grouped} else q.shape[1:2])
    heads = q.shape[1] if {grouped} else shared
    batch, = torch.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])
    like, queries, depth = q, *q.shape[2:]
    q = q.expand(batch, heads, queries, depth)
    k, v = (t.expand(batch, shared, *t.shape[2:]) for t in (k, v))
    keys, wide = v.shape[2:]
    if k.shape[2] != keys or k.shape[3] != depth or heads % shared:
        raise ValueError(f"attention: query {{q.shape}}, key {{k.shape}} and value {{v.shape}} do not fit together")
    steps = (0, 0, 0, 0) if mask is None else mask.expand(batch, heads, queries, keys).stride()
    # torch's fused attention lays its result out as the query; where it does not apply, heads lie outside rows.
    fused = alike and wide == depth and all(t.stride(3) == 1 and t.numel() for t in (q, k, v))
    made = torch.empty_like(like) if fused else torch.empty(batch, heads, queries, wide, dtype=q.dtype)
    sizes = (batch, heads, heads // shared, queries, keys, depth, wide, {kind})
    numbers = (*sizes, *q.stride(), *k.stride(), *v.stride(), *steps, *made.stride())
    return made.shape, made.stride(), (ctypes.c_int64 * len(numbers))(*numbers), {scale}


def kernel({arguments}):
    q, k, v, mask = {q}, {k}, {v}, {mask}
    key = tuple((t.shape, t.stride()) for t in (q, k, v, mask) if t is not None)
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = _plan(q, k, v, mask)
    shape, stride, numbers, scale = plan
    out = torch.empty_strided(shape, stride, dtype=q.dtype)
    seen = mask.data_ptr() if mask is not None else 0
    _NATIVE(q.data_ptr(), k.data_ptr(), v.data_ptr(), seen, out.data_ptr(), ctypes.addressof(numbers), scale)
    return out
"""


@dataclass(frozen=True)
class _Attention:
    """The one call a reference makes. Names are inputs of the task; element and mask_kind: as the C++ counts them."""

    q: str
    k: str
    v: str
    mask: str | None
    element: int
    mask_kind: int
    scale: float | None
    grouped: bool


class CpuAttention(AnchorTemplate[_Attention]):
    """Proposes where the reference is one call of scaled dot product attention on a CPU, no dropout.

    Knobs: product, rows of queries taken at a time, block of keys between two looks at a row's maximum.
    """

    name: ClassVar[str] = "attention"
    device: ClassVar[str] = "cpu"
    choices: ClassVar[dict[str, tuple[Knob, ...]]] = {"rows": (16, 32, 64), "block": (512, 2048)}

    def look(self, task: Task) -> _Attention | None:
        """Return the attention a reference computes, None where it does anything else or more."""
        given = attention_call(self.loaded.reference)
        if given is None or (given.get("is_causal") and given.get("attn_mask") is not None):
            return None
        specs = {spec.name: spec for spec in task.cases[0].inputs}
        names = [str(given[name]) for name in ("query", "key", "value")]
        mask = str(given["attn_mask"]) if given.get("attn_mask") is not None else None
        dtypes = {specs[name].dtype for name in names}
        mask_dtype = specs[mask].dtype if mask else None
        fits = all(len(specs[name].shape) == 4 for name in names) and (not mask or len(specs[mask].shape) in (2, 4))
        if len(dtypes) != 1 or not dtypes <= set(_ELEMENTS) or mask_dtype not in _MASKS or not fits:
            return None
        if dtypes == {"float32"} and not any(_packing_pays(case, names[0]) for case in task.cases):
            return None
        kind = _CAUSAL if given.get("is_causal") else _MASKS[mask_dtype]
        scale, grouped = given.get("scale"), bool(given.get("enable_gqa"))
        return _Attention(names[0], names[1], names[2], mask, _ELEMENTS[dtypes.pop()], kind, scale, grouped)

    def first(self, found: _Attention, task: Task) -> Iterable[dict[str, Knob]]:
        """Return one setting a product this CPU has."""
        tiles = found.element == _ELEMENTS["bfloat16"] and "amx_bf16" in cpu_flags()
        rows: list[tuple[Knob, ...]] = [("tiles", 16, _MANY_KEYS)] if tiles else []
        return settings(("product", "rows", "block"), [*rows, ("vectors", 32, _MANY_KEYS)])

    def around(self, found: _Attention, task: Task) -> Mapping[str, Sequence[Knob]]:
        """Return the knobs where keys are many: at 128, twelve settings were within 3% of each other on a Zen 4."""
        keys = (spec.shape[2] for case in task.cases for spec in case.inputs if spec.name == found.k)
        return self.choices if max(keys) > _MANY_KEYS else {}

    def source(self, found: _Attention, task: Task, knobs: dict[str, Knob]) -> str:
        """Return the candidate file of one setting."""
        wrapper = _WRAPPER.format(
            arguments=", ".join(task.inputs),
            q=found.q,
            k=found.k,
            v=found.v,
            mask=found.mask,
            scale="depth**-0.5" if found.scale is None else repr(found.scale),
            kind=found.mask_kind,
            grouped=found.grouped,
        )
        return (
            f'"""Attention through {knobs["product"]}: {task.name}."""\n\nimport ctypes\n\nimport torch\n'
            f"from hotswap.optimizer.native import compile_cpp\n\nPRODUCT = {knobs['product']!r}\n"
            f'SOURCE = r"""\n{_native(found, knobs)}"""\n{wrapper}'
        )


def _packing_pays(case: ShapeCase, query: str) -> bool:
    """Return whether a call in fp32 has rows enough to pay for packing a head, and a head not too wide."""
    rows, depth = next(spec.shape[2:] for spec in case.inputs if spec.name == query)
    return rows >= _FEWEST_ROWS and depth <= _WIDEST_HEAD


def _native(found: _Attention, knobs: dict[str, Knob]) -> str:
    """Return the C++ of one setting: what is set, vectors, the product, the frame."""
    header, product = _PRODUCTS[str(knobs["product"])]
    given: dict[str, Any] = {"ELEMENT": found.element, "QUERY_ROWS": knobs["rows"], "KEY_BLOCK": knobs["block"]}
    parts = ["".join(f"#define {name} {value}\n" for name, value in given.items())]
    parts += [_text(file) for file in ("attention_vectors.h", header) if file]
    return "\n".join([*parts, f"using Product = {product};\n", _text("attention.cpp")])


def _text(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
