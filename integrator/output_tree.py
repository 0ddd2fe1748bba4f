"""Turn whatever a model returns into named leaves, so that all of it can be compared and not just the first tensor."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

_SCALARS = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device)


@dataclass(frozen=True)
class Leaf:
    """One value of an output tree. value: a tensor, a plain scalar, or the type's name of something opaque."""

    path: str
    value: Any

    @property
    def tensor(self) -> torch.Tensor | None:
        return self.value if isinstance(self.value, torch.Tensor) else None


def flatten(output: Any, root: str = "output") -> tuple[Leaf, ...]:
    """Return every leaf of `output` with its path, depth first.

    Mappings, sequences, dataclasses and registered pytrees are walked as such; any other object that holds a tensor
    somewhere (a key-value cache) is walked by its attributes, and one that holds none is a leaf named by its type.
    """
    return tuple(_walk(output, root, ()))


def snapshot(output: Any, root: str = "output") -> tuple[Leaf, ...]:
    """Return the leaves with tensors copied: later calls write into outputs that alias buffers or graph pools."""
    return tuple(
        Leaf(leaf.path, leaf.tensor.detach().clone()) if leaf.tensor is not None else leaf
        for leaf in flatten(output, root)
    )


def structure_difference(expected: tuple[Leaf, ...], got: tuple[Leaf, ...]) -> str | None:
    """Return one line on the first difference in paths, types, shapes, dtypes, devices or scalars, if any."""
    for one, other in zip(expected, got, strict=False):
        if one.path != other.path:
            return f"expected a leaf {one.path}, got {other.path}"
        difference = _leaf_difference(one, other)
        if difference:
            return f"{one.path}: {difference}"
    if len(expected) != len(got):
        longer = expected if len(expected) > len(got) else got
        side = "missing" if longer is expected else "not in the model's own output"
        return f"{longer[min(len(expected), len(got))].path}: {side}"
    return None


def _leaf_difference(expected: Leaf, got: Leaf) -> str | None:
    one, other = expected.tensor, got.tensor
    if one is None or other is None:
        if type(expected.value) is not type(got.value):
            return f"expected {type(expected.value).__name__}, got {type(got.value).__name__}"
        same = expected.value == got.value or expected.value != expected.value
        return None if same else f"expected {expected.value!r}, got {got.value!r}"
    for what in ("shape", "dtype", "device", "layout"):
        if getattr(one, what) != getattr(other, what):
            return f"expected {what} {_text(getattr(one, what))}, got {_text(getattr(other, what))}"
    return None


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, torch.Size) else str(value)


def _walk(value: Any, path: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    if isinstance(value, (torch.Tensor, *_SCALARS)):
        yield Leaf(path, value)
    elif id(value) in above:
        yield Leaf(path, "<cycle>")
    else:
        children = tuple(_children(value, path))
        leaves = [leaf for name, child in children for leaf in _walk(child, name, (*above, id(value)))]
        opaque = not _is_container(value) and not any(leaf.tensor is not None for leaf in leaves)
        # The kind of an empty or opaque value still counts: () is not None, and a lost cache is a difference.
        yield from (Leaf(path, f"<{type(value).__qualname__}>"),) if opaque or not children else leaves


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | tuple | list) or _is_record(value) or type(value) in pytree.SUPPORTED_NODES


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{path}.{key}", child) for key, child in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f"{path}.{name}", getattr(value, name)) for name in value._fields)
    elif isinstance(value, tuple | list):
        yield from ((f"{path}[{i}]", child) for i, child in enumerate(value))
    elif _is_record(value):
        yield from ((f"{path}.{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
    elif type(value) in pytree.SUPPORTED_NODES:
        pairs, _ = pytree.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
        yield from ((path + pytree.keystr(key), child) for key, child in pairs)
    elif not isinstance(value, type | torch.nn.Module) and not callable(value):
        yield from ((f"{path}.{name}", child) for name, child in _attributes(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
