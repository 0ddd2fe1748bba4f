"""HTML and SVG elements as text. What is not Markup is escaped, so no name, reason or source becomes markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

Attribute = str | int | float | bool | None
VOID = frozenset({"wbr"})


class Markup(str):
    """Text that is markup already, made by `element` or `join` only."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """Return one element. `class_` is class, `data_v` is data-v; True is a bare attribute, None and False are none."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[str], separator: str = "") -> Markup:
    """Return the parts in a row, each escaped unless it is Markup."""
    return Markup(separator.join(p if isinstance(p, Markup) else html.escape(p, quote=False) for p in parts))


def breakable(path: str) -> Markup:
    """Return a dotted or underscored name that may be broken after its dots and underscores, and nowhere else."""
    return join(re.split(r"(?<=[._])(?=\w)", path), element("wbr"))


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text)}"'
