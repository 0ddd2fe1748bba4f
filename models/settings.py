"""Resolve settings: flag > environment > --config file > project file > default, each value with its source.

The one reader of the environment in the package: other modules ask `variable`.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

from .errors import SpecError
from .llm_budget import LlmBudget, LlmPrice
from .suggest import did_you_mean

logger = logging.getLogger(__name__)

Mode = Literal["auto", "eager", "planned", "cudagraph", "inductor", "inductor-cudagraph"]
Baselines = Literal["default", "all"]
DTypeName = Literal["auto", "bfloat16", "float16", "float32", "float64"]

PREFIX = "HOTSWAP_"
PROJECT_FILES = ("hotswap.toml", "pyproject.toml")
# Read by their own modules, not settings of a run.
_OTHER_VARIABLES = frozenset({"HOTSWAP_CACHE", "HOTSWAP_DEBUG"})
_SHORT_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
}
_UNIT_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_USUAL_LLM_BUDGET = LlmBudget(requests=200)


@dataclass(frozen=True)
class Settings:
    """The settings of one run.

    budget_s: seconds the search may take. out: run directory, None for `runs/<time>-<model>`.
    batch: None for the modality's usual one. seq_len: one example call for each length, () for the usual one.
    threads: None for what torch chooses. sources: setting to where its value came from.
    llm: a model by LiteLLM's name for it, None to ask none. api_base: the server to ask in place of the provider's own.
    llm_price: None for the one LiteLLM knows. llm_parallel: requests in flight. llm_timeout_s: of one request.
    """

    budget_s: float = 600.0
    top: int = 8
    seed: int = 0
    mode: Mode = "auto"
    baselines: Baselines = "default"
    out: Path | None = None
    dtype: DTypeName = "auto"
    device: str = "auto"
    batch: int | None = None
    seq_len: tuple[int, ...] = ()
    threads: int | None = None
    llm: str | None = None
    api_base: str | None = None
    llm_budget: LlmBudget = _USUAL_LLM_BUDGET
    llm_price: LlmPrice | None = None
    llm_parallel: int = 4
    llm_timeout_s: float = 180.0
    gpus: int = 1
    ray: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


def variable(name: str) -> str | None:
    """Return an environment variable, None where it is unset or empty."""
    return os.environ.get(name) or None


def resolve(flags: Mapping[str, Any], *, config: Path | None = None, folder: Path | None = None) -> Settings:
    """Return the settings in force.

    flags: what the command line was given, None for a flag that was not. config: the `--config` file.
    folder: where the project file is looked for, the working directory unless given.
    Raises SpecError naming the flag, variable, or file and line of a bad value or unknown name.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in _layers(flags, config, folder or Path.cwd()):
        for name, (raw, source) in layer.items():
            if name not in values:
                values[name] = parse(name, raw, source)
                sources[name] = source
    for name in _PARSERS:
        sources.setdefault(name, "default")
    return Settings(**{_FIELDS[name]: value for name, value in values.items()}, sources=sources)


def rows(settings: Settings) -> list[tuple[str, str, str]]:
    """Return (setting, value, source) for each setting, in the order of the record."""
    return [
        (name, _shown(getattr(settings, _FIELDS[name])), settings.sources.get(name, "default")) for name in _PARSERS
    ]


def parse(name: str, raw: Any, source: str) -> Any:
    """Return the value of setting `name` that `raw` (text or TOML) means; raise SpecError naming `source`."""
    parser, expected = _PARSERS[name]
    try:
        return parser(raw)
    except (ValueError, TypeError) as error:
        named = source if name in source.lower().replace("-", "_") else f"{source}: {name}"
        raise SpecError(f"{named}: expected {expected}, got {raw!r}; correct or remove it") from error


def seconds(raw: Any) -> float:
    """Return the seconds that "90s", "10m", "1.5h" or a number means; raise ValueError for anything else."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([smh]?)\s*", str(raw))
    if isinstance(raw, bool) or not match or float(match[1]) <= 0:
        raise ValueError(raw)
    return float(match[1]) * _UNIT_SECONDS[match[2]]


Layer = dict[str, tuple[Any, str]]


def _layers(flags: Mapping[str, Any], config: Path | None, folder: Path) -> Iterator[Layer]:
    given = {name: raw for name, raw in flags.items() if raw is not None and raw != ()}
    yield {
        name: (raw, f"flag --{name.replace('_', '-')}") for name, raw in given.items() if _known(name, f"flag --{name}")
    }
    yield _from_environment()
    if config is not None:
        yield _from_file(config, ())
    for file_name in PROJECT_FILES:
        path = folder / file_name
        if path.is_file():
            yield _from_file(path, ("tool", "hotswap") if file_name == "pyproject.toml" else ())


def _from_environment() -> Layer:
    layer: Layer = {}
    for key, raw in sorted(os.environ.items()):
        if not key.startswith(PREFIX) or key in _OTHER_VARIABLES or not raw:
            continue
        name = key.removeprefix(PREFIX).lower()
        if name in _PARSERS:
            layer[name] = (raw, key)
        else:  # another program's, or a newer hotswap's: not an error, but never silent
            logger.warning("%s is not a setting of hotswap%s", key, did_you_mean(name, _PARSERS))
    return layer


def _from_file(path: Path, table: tuple[str, ...]) -> Layer:
    try:
        text = path.read_text(encoding="utf-8")
        body: Any = tomllib.loads(text)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror}); expected a TOML file of settings") from error
    except ValueError as error:  # TOMLDecodeError says the line; UnicodeDecodeError has none
        raise SpecError(f"{path}: not TOML ({error}); mend that line") from error
    for key in table:
        body = body.get(key, {})
    layer: Layer = {}
    for key, raw in body.items():
        source = f"{path}:{_line_of(text, table, key)}"
        name = key.replace("-", "_")
        if _known(name, source):
            layer[name] = (raw, source)
    return layer


def _known(name: str, source: str) -> bool:
    if name not in _PARSERS:
        raise SpecError(f"{source}: no setting is called {name!r}{did_you_mean(name, _PARSERS)}")
    return True


def _line_of(text: str, table: tuple[str, ...], key: str) -> int:
    """Return the line where `key` is set in `table`; 1 where it is written in a form not looked for (inline tables)."""
    here: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        if header:
            here = tuple(part.strip().strip("\"'") for part in header[1].split("."))
        elif here == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return 1


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def _count(least: int) -> Callable[[Any], int]:
    def parse_count(raw: Any) -> int:
        if isinstance(raw, bool | float) or int(raw) < least:
            raise ValueError(raw)
        return int(raw)

    return parse_count


def _one_of(choices: tuple[str, ...], short: Mapping[str, str] | None = None) -> Callable[[Any], str]:
    def parse_choice(raw: Any) -> str:
        word = (short or {}).get(str(raw), str(raw))
        if word not in choices:
            raise ValueError(raw)
        return word

    return parse_choice


def _lengths(raw: Any) -> tuple[int, ...]:
    parts = raw.replace(",", " ").split() if isinstance(raw, str) else raw if isinstance(raw, list | tuple) else [raw]
    return tuple(_count(1)(part) for part in parts)


def _device(raw: Any) -> str:
    if not re.fullmatch(r"auto|[a-z]+(:[0-9]+)?", str(raw)):
        raise ValueError(raw)
    return str(raw)


def _path(raw: Any) -> Path:
    if not isinstance(raw, str | Path) or not str(raw):
        raise ValueError(raw)
    return Path(raw).expanduser()


def _word(raw: Any) -> str:
    if not isinstance(raw, str) or not re.fullmatch(r"[^\s]+", raw):
        raise ValueError(raw)
    return raw


def _server(raw: Any) -> str:
    # A key in an address would be written to run.json; keys belong in the provider's environment variable.
    if not re.fullmatch(r"https?://[^\s/@?]+(/[^\s@?]*)?", str(raw)):
        raise ValueError(raw)
    return str(raw)


_MODES, _BASELINES, _DTYPES = (cast("tuple[str, ...]", get_args(kind)) for kind in (Mode, Baselines, DTypeName))
# Setting to its parser and what the parser expects, in words.
_PARSERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "budget": (seconds, "a time such as 90s, 10m or 1h"),
    "top": (_count(1), "a whole number of 1 or more"),
    "seed": (_count(0), "a whole number of 0 or more"),
    "mode": (_one_of(_MODES), f"one of {', '.join(_MODES)}"),
    "baselines": (_one_of(_BASELINES), f"one of {', '.join(_BASELINES)}"),
    "out": (_path, "a directory"),
    "dtype": (_one_of(_DTYPES, _SHORT_DTYPES), f"one of {', '.join(_DTYPES)} (or bf16, fp16, fp32, fp64)"),
    "device": (_device, "auto, cpu, cuda or cuda:0"),
    "batch": (_count(1), "a whole number of 1 or more"),
    "seq_len": (_lengths, "whole numbers of 1 or more"),
    "threads": (_count(1), "a whole number of 1 or more"),
    "llm": (_word, "a model as LiteLLM names it, such as openai/gpt-5 or ollama/qwen3"),
    "api_base": (_server, "a server's address without a key in it, such as http://127.0.0.1:8000/v1"),
    "llm_budget": (LlmBudget.parse, "limits such as 2.50usd, 500k tokens, 100 requests, 10m"),
    "llm_price": (LlmPrice.parse, "US dollars a million tokens in and out, such as 3,15"),
    "llm_parallel": (_count(1), "a whole number of 1 or more"),
    "gpus": (_count(1), "a whole number of 1 or more"),
    "ray": (_word, "a cluster's address, auto for the one this machine belongs to, or local to start one"),
    "llm_timeout": (seconds, "a time such as 90s or 3m"),
}
_TIMES = {"budget": "budget_s", "llm_timeout": "llm_timeout_s"}
_FIELDS = {name: _TIMES.get(name, name) for name in _PARSERS}
assert set(_FIELDS.values()) == {f.name for f in fields(Settings)} - {"sources"}
