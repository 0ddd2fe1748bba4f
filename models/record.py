"""Frozen records that save and load as JSON: what one stage hands to the next.

A record is a frozen dataclass deriving from `Record`. Fields may be scalars, enums, `Literal`s, tuples, string-keyed
dicts, None and other records. Floats that JSON cannot carry (inf, nan) are refused where they are written.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from .errors import RecordError, ResourceExhausted


@dataclasses.dataclass(frozen=True)
class Record:
    """A frozen dataclass that round-trips through JSON.

    `SCHEMA` rises when a field changes meaning; a newer file is refused, an older one is read if its fields allow.
    """

    SCHEMA: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return typing.cast("dict[str, Any]", _plain(self))

    @classmethod
    def from_dict(cls, plain: dict[str, Any], where: str = "record") -> Self:
        """Return the record that `to_dict` made `plain` from; raise RecordError naming `where` and the field."""
        return typing.cast("Self", _build(cls, plain, where))

    def save(self, path: Path) -> None:
        """Write atomically: a reader sees the old file or the new one, never half of one."""
        body = {"schema": self.SCHEMA, "record": type(self).__name__, **self.to_dict()}
        write_text(path, json.dumps(body, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that `save` wrote; raise RecordError when it is absent, truncated, of another kind or newer."""
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RecordError(f"{path}: cannot be read ({error.strerror}); expected a {cls.__name__} file") from error
        except ValueError as error:
            raise RecordError(f"{path}: not whole JSON ({error}); the stage that wrote it must run again") from error
        kind, schema = (body.pop("record", None), body.pop("schema", 0)) if isinstance(body, dict) else (None, 0)
        if kind != cls.__name__:
            raise RecordError(f"{path}: expected a {cls.__name__}, got {kind or 'another kind of file'}")
        if schema > cls.SCHEMA:
            raise RecordError(
                f"{path}: schema {schema} is newer than {cls.SCHEMA}, the newest known here; update hotswap"
            )
        return cls.from_dict(body, str(path))


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, making its folder; raise ResourceExhausted when the disk refuses."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically, making its folder; raise ResourceExhausted when the disk refuses."""
    # Not mkstemp: its files are 0600 whatever the umask, and a report is there to be shown to others.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ResourceExhausted(
            f"{path}: cannot be written ({error.strerror}); free space or choose another --out"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value


def _build(kind: Any, plain: Any, where: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any or origin is typing.Literal:
        return plain
    if origin in (typing.Union, types.UnionType):
        return _build_union(args, plain, where)
    if origin is tuple and isinstance(plain, list):
        each = [args[0]] * len(plain) if len(args) == 2 and args[1] is Ellipsis else args
        return tuple(_build(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(each, plain, strict=True)))
    if origin is dict and isinstance(plain, dict):
        return {k: _build(args[1], v, f"{where}.{k}") for k, v in plain.items()}
    if isinstance(kind, type) and issubclass(kind, Record):
        return _build_record(kind, plain, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if isinstance(kind, type) and isinstance(plain, kind) and not (kind is int and isinstance(plain, bool)):
        return plain
    raise RecordError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {type(plain).__name__}")


def _build_union(args: tuple[Any, ...], plain: Any, where: str) -> Any:
    if plain is None and type(None) in args:
        return None
    problems = []
    for kind in args:
        if kind is not type(None):
            try:
                return _build(kind, plain, where)
            except RecordError as error:
                problems.append(str(error))
    raise RecordError("; ".join(problems))


def _build_record(kind: type[Record], plain: Any, where: str) -> Record:
    if not isinstance(plain, dict):
        raise RecordError(f"{where}: expected a {kind.__name__}, got {type(plain).__name__}")
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in plain:
            values[field.name] = _build(hints[field.name], plain[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{where}: field {field.name!r} of {kind.__name__} is missing")
    unknown = set(plain) - {f.name for f in dataclasses.fields(kind)}
    if unknown:
        raise RecordError(f"{where}: {kind.__name__} has no field {sorted(unknown)[0]!r}")
    return kind(**values)
