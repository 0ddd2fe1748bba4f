"""Turn a model spec, the text a user types, into a workload.

A spec is, in this order of recognition:
    NAME@full|slice|tiny       a zoo model: real dimensions, random weights
    path/to/file.py:factory    a function or class in a file
    path/to/model              a Hugging Face directory, or a config.json with --random-weights
    package.module:Class       an importable class, function or module object
    org/name[@revision]        a hub id
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from . import user_code
from .errors import EnvironmentMissing, InputError, SpecError
from .seeded import seeded
from .trial import explained
from .workload import Call, Workload, as_calls

FORMS = "NAME@full|slice|tiny, path/to/file.py:factory, a model directory, package.module:Class or a hub id"

Kind = Literal["zoo", "file", "directory", "config", "module", "hub"]


@dataclass(frozen=True)
class LoadOptions:
    """How a spec becomes a workload.

    dtype: "auto" is bf16 where the device multiplies it natively, else fp32; a user's model keeps its own under "auto".
    device: "auto" is the first GPU, else the CPU. batch, seq_len: sizes of the examples, None and () for the usual.
    inputs: `file.py:fn` of a function returning example inputs, None to make them.
    """

    random_weights: bool = False
    trust_remote_code: bool = False
    dtype: str = "auto"
    device: str = "auto"
    batch: int | None = None
    seq_len: tuple[int, ...] = ()
    inputs: str | None = None
    seed: int = 0


def load(spec: str, options: LoadOptions | None = None) -> Workload:
    """Return the workload that `spec` means: a model in eval mode on its device, and calls that fit its forward.

    The model is not run. Raises SpecError, InputError, EnvironmentMissing, ModelRaised or ResourceExhausted.
    """
    options = options or LoadOptions()
    device = resolve_device(options.device)
    kind = classify(spec)
    if kind in ("file", "module"):
        model, calls = _from_user(spec, kind, options, device)
    else:
        model, calls = _from_transformers(spec, kind, options, device), ()
    calls = _calls(spec, model, calls, options, device)
    return Workload(model=model, calls=calls, spec=spec)


def classify(spec: str) -> Kind:
    """Return which form of spec `spec` is; raise SpecError for what is none. Looks at the disk, not at the network."""
    if not spec.strip():
        raise SpecError(f"model: expected {FORMS}, got nothing")
    path = Path(spec).expanduser()
    if path.is_dir():
        return "directory"
    if ".py:" in spec or spec.endswith(".py"):
        return "file"
    if path.is_file():
        return "config" if path.suffix == ".json" else _not_a_spec(spec, "a file that is neither .py nor a config.json")
    if "@" in spec and "/" not in spec.partition("@")[0]:
        return "zoo"
    if spec.startswith((".", "/", "~")) or spec.endswith(("/", ".json")):
        _not_a_spec(spec, "a path where nothing is")
    if ":" in spec:
        return "module"
    from .hub import HUB_ID

    if not HUB_ID.fullmatch(spec):
        _not_a_spec(spec, "something that is none of these")
    return "hub"


def resolve_device(device: str) -> str:
    """Return the device that `device` means; raise EnvironmentMissing where it is not there."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    if not device.startswith("cuda"):
        raise SpecError(f"--device {device}: expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if not count or int(device.partition(":")[2] or 0) >= count:
        raise EnvironmentMissing(f"--device {device}: this machine has {count} CUDA devices; give --device cpu or auto")
    return device


def resolve_dtype(dtype: str, device: str) -> Any:
    """Return the torch dtype that `dtype` means on `device`."""
    import torch

    from .machine import cpu_flags, native_bf16
    from .settings import parse

    name = parse("dtype", dtype, "--dtype")
    if name != "auto":
        return getattr(torch, name)
    native = (
        torch.cuda.is_bf16_supported(including_emulation=False)
        if device.startswith("cuda")
        else native_bf16(cpu_flags())
    )
    return torch.bfloat16 if native else torch.float32


def _from_transformers(spec: str, kind: Kind, options: LoadOptions, device: str) -> Any:
    from . import hub
    from .zoo.catalog import config, names

    dtype = resolve_dtype(options.dtype, device)
    if kind == "zoo":
        return hub.from_config_alone(config(spec), name=spec, dtype=dtype, device=device, seed=options.seed)
    trust = options.trust_remote_code
    if options.random_weights:
        return hub.from_config_alone(
            spec, name=spec, dtype=dtype, device=device, seed=options.seed, trust_remote_code=trust
        )
    if kind == "config":
        raise SpecError(f"{spec}: a config has no weights; give --random-weights, or the directory of a checkpoint")
    try:
        return hub.from_checkpoint(spec, dtype=dtype, device=device, trust_remote_code=trust)
    except (SpecError, EnvironmentMissing) as error:
        if spec in names():  # "gpt2" is a hub id as well, so the hub is asked first
            raise type(error)(f"{error} (the zoo has {spec}@full, {spec}@slice and {spec}@tiny)") from error
        raise


def _from_user(spec: str, kind: Kind, options: LoadOptions, device: str) -> tuple[Any, tuple[Call, ...]]:
    """Return the user's model, moved and cast as asked, and the calls its factory gave, none if it gave none."""
    from torch import nn

    found = user_code.from_file(spec) if kind == "file" else user_code.from_module(spec)
    made: Any = found if isinstance(found, nn.Module) else _call_factory(found, spec, options.seed, device)
    model: Any
    if isinstance(made, Workload):
        model, calls = made.model, made.calls
    elif isinstance(made, tuple) and len(made) == 2:
        model, calls = made[0], as_calls(made[1])
    else:
        model, calls = made, ()
    if not isinstance(model, nn.Module):
        raise SpecError(
            f"{spec}: expected an nn.Module, (module, example_inputs) or a Workload, got {type(model).__name__}; "
            "change what the factory returns"
        )
    dtype = None if options.dtype == "auto" else resolve_dtype(options.dtype, device)
    elsewhere = options.device == "auto" and any(p.device.type != "cpu" for p in model.parameters())
    model = model.to(dtype=dtype) if elsewhere else model.to(device=device, dtype=dtype)
    return model.eval(), calls


def _call_factory(factory: Any, spec: str, seed: int, device: str) -> Any:
    if not callable(factory):
        raise SpecError(f"{spec}: expected a factory, a class or a module, got {type(factory).__name__}")
    needed = _required(factory)
    if needed:
        raise SpecError(
            f"{spec}: must be callable without arguments, but needs {', '.join(needed)}; "
            "wrap it in a factory that gives them"
        )
    try:
        with seeded(seed, device):
            return factory()
    except (Exception, SystemExit) as error:  # the user's factory may raise anything
        raise explained(error, spec, near=_file_of(factory)) from error


def _calls(spec: str, model: Any, calls: tuple[Call, ...], options: LoadOptions, device: str) -> tuple[Call, ...]:
    """Return the calls to serve: from --inputs, else the factory's own, else made for a model that describes itself."""
    from .hub import is_transformers_model
    from .input_tensors import parameters_of
    from .inputs import check_fit, example_calls, shown

    source = spec
    if options.inputs is not None:
        source = f"--inputs {options.inputs}"
        calls = as_calls(_call_inputs(options.inputs, model, options.seed, device))
    elif not calls and is_transformers_model(model):
        return example_calls(model, batch=options.batch, seq_lens=options.seq_len, seed=options.seed)
    elif not calls:
        raise InputError(
            f"{spec}: no example inputs for {type(model).__name__}.forward{shown(parameters_of(model))}; "
            "return (module, example_inputs) from the factory or give --inputs file.py:fn"
        )
    if options.batch is not None or options.seq_len:
        raise InputError(
            f"{source}: --batch and --seq-len shape only examples made here; this one brings its own, change them there"
        )
    check_fit(model, calls, source)
    return tuple(_placed(call, model, options, device) for call in calls)


def _call_inputs(text: str, model: Any, seed: int, device: str) -> Any:
    """Return what the user's function gives; it is called with the model if it takes an argument."""
    maker: Callable[..., Any] = user_code.from_file(text)
    if not callable(maker):
        raise SpecError(f"--inputs {text}: expected a function, got {type(maker).__name__}")
    needed = _required(maker)
    if len(needed) > 1:
        raise SpecError(
            f"--inputs {text}: expected a function of nothing or of the model, got parameters {', '.join(needed)}"
        )
    try:
        with seeded(seed, device):
            return maker(model) if needed else maker()
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        raise explained(error, f"--inputs {text}", near=_file_of(maker)) from error


def _placed(call: Call, model: Any, options: LoadOptions, device: str) -> Call:
    """Return the call on the model's device and, where a dtype was asked for, with its floats in that dtype."""
    import torch
    from torch.utils import _pytree as pytree

    dtype = None if options.dtype == "auto" else resolve_dtype(options.dtype, device)
    target = next((p.device for p in model.parameters()), torch.device(device))

    def place(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=target, dtype=dtype if value.is_floating_point() else None)

    args, kwargs = pytree.tree_map(place, (call.args, dict(call.kwargs)))
    return replace(call, args=args, kwargs=kwargs)


def _required(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # builtins have no signature
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variadic]


def _file_of(function: Any) -> Path | None:
    try:
        return Path(inspect.getfile(function))
    except TypeError:
        return None


def _not_a_spec(spec: str, got: str) -> NoReturn:
    raise SpecError(f"{spec}: expected {FORMS}, got {got}; check the spelling")
