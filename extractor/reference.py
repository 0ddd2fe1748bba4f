"""Turn a region into a module that runs alone, and that into source a person can read.

Sizes become `input.size(dim)`, so one reference serves every length the region accepts.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .node_ops import example
from .regions import Region
from .sizes import SizeOf, symbolize


def region_module(gm: fx.GraphModule, region: Region) -> fx.GraphModule:
    """Return a standalone module: called with the values of `region.inputs`, it returns a tuple of `region.outputs`."""
    graph = fx.Graph()
    names = input_names(region)
    copies: dict[fx.Node, fx.Node] = {}
    for node, name in zip(region.inputs, names, strict=True):
        copies[node] = graph.placeholder(name)
        copies[node].meta["example_value"] = example(node)
    holders = [copies[n] for n in region.inputs]
    for node in region.nodes:
        args, kwargs = symbolize(node, region.inputs)
        args, kwargs = (_place(value, graph, holders, copies) for value in (args, kwargs))
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        copies[node].meta["example_value"] = example(node)
    graph.output(tuple(copies[n] for n in region.outputs))
    graph.lint()
    return fx.GraphModule(torch.nn.Module(), graph)


def _place(value: Any, graph: fx.Graph, holders: Sequence[fx.Node], copies: dict[fx.Node, fx.Node]) -> Any:
    if isinstance(value, fx.Node):
        return copies[value]
    if isinstance(value, SizeOf):
        return graph.call_method("size", (holders[value.source], value.dim))
    if isinstance(value, slice):
        return slice(*(_place(v, graph, holders, copies) for v in (value.start, value.stop, value.step)))
    if isinstance(value, list | tuple):
        return type(value)(_place(v, graph, holders, copies) for v in value)
    if isinstance(value, dict):
        return {k: _place(v, graph, holders, copies) for k, v in value.items()}
    return value


def input_names(region: Region) -> tuple[str, ...]:
    """Return short, unique argument names: a parameter keeps its own last name, an activation its node's."""
    names: list[str] = []
    for node in region.inputs:
        tail = re.split(r"_(?:parameters|buffers)_", node.name)[-1].strip("_")
        word = re.sub(r"^l_(?:kwargs|args|self)_", "", tail).strip("_") or "x"
        word = re.sub(r"_\d+$", "", word)
        if not word.isidentifier() or keyword.iskeyword(word):
            word = f"x{word}" if f"x{word}".isidentifier() else "x"
        while word in names:
            stem, _, number = word.rpartition("_")
            word = f"{stem}_{int(number) + 1}" if number.isdigit() and stem else f"{word}_2"
        names.append(word)
    return tuple(names)


def reference_source(module: fx.GraphModule, title: str) -> str:
    """Return the text of a `reference.py`: `reference(...)` alone, needing only torch, returning a tuple of tensors."""
    code = module.graph.python_code("self")
    body = re.sub(r";\s+\w+ = None(?:;\s*\w+ = None)*|(?<=\S)\s*;\s+(?:\w+ = )+None", "", code.src)
    body = re.sub(r"def forward\(self, ?", "def reference(", body).replace("def forward(self)", "def reference()")
    lines = [line.rstrip() for line in body.splitlines() if line.strip() and "torch.fx._lazy_graph_module" not in line]
    used = set(re.findall(r"[A-Za-z_]\w*", "\n".join(lines)))
    names = _global_lines({name: value for name, value in code.globals.items() if name in used})
    head = [f'"""{title}"""', "", "import torch", *names, "", ""]
    return "\n".join([*head, *lines]) + "\n"


def _global_lines(names: dict[str, Any]) -> list[str]:
    """Return import lines for what the generated code calls by a global name."""
    lines = []
    for name, value in sorted(names.items()):
        if name == "torch" or name.startswith("fx_pytree"):
            continue
        if isinstance(value, type(torch)):
            lines.append(f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}")
        elif isinstance(value, float):
            lines.append(f'{name} = float("{value}")')
        elif isinstance(value, torch.device | torch.dtype) or value is torch.device:
            lines.append(f"from torch import {name}")
        elif hasattr(value, "__module__") and hasattr(value, "__qualname__") and "." not in value.__qualname__:
            lines.append(f"from {value.__module__} import {value.__qualname__} as {name}")
        elif value is not type(None):
            lines.append(f"{name} = {value!r}")
    return lines
