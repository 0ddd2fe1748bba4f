"""The one door to transformers: a config or a checkpoint becomes a live model. No architecture is known by name."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import EnvironmentMissing, HotswapError, ResourceExhausted, SpecError
from .fast_init import FastInit
from .seeded import seeded
from .trial import explained, first_line, out_of_memory

logger = logging.getLogger(__name__)

WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?(@[\w./-]+)?")


def is_transformers_model(model: Any) -> bool:
    """Tell whether `model` describes itself as transformers models do, so that inputs can be made for it."""
    return isinstance(getattr(model, "main_input_name", None), str | list | tuple) and hasattr(
        getattr(model, "config", None), "to_dict"
    )


def from_checkpoint(where: str, *, dtype: Any, device: str, trust_remote_code: bool) -> Any:
    """Return the trained model in the local directory or under the hub id (`org/name[@revision]`) `where`."""
    source, revision, local = _source(where)
    config = _config(where, source, revision, local_only=local, trust_remote_code=trust_remote_code)
    if local and not any(any(Path(source).glob(pattern)) for pattern in WEIGHT_PATTERNS):
        raise SpecError(
            f"{where}: no weights there; expected one of {', '.join(WEIGHT_PATTERNS[::2])}; "
            "complete the directory or give --random-weights to build from the config alone"
        )
    door = _door(config, trust_remote_code=trust_remote_code)
    try:
        with _no_progress_bar():
            model, loading = door.from_pretrained(
                source,
                config=config,
                dtype=dtype,
                revision=revision,
                local_files_only=local,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                # Not to accept them: the report then names them, where the exception does not.
                ignore_mismatched_sizes=True,
            )
        model = model.to(device).eval()
    except Exception as error:  # transformers, the checkpoint's own code and the file readers raise what they like
        raise _load_error(error, where) from error
    if mismatched := sorted(loading["mismatched_keys"]):
        key, stored, wanted = mismatched[0]
        raise SpecError(
            f"{where}: the weights are not this config's: {key} is {list(stored)} in the checkpoint, {list(wanted)} in "
            "the config; give the config.json that belongs to it"
        )
    if missing := sorted(loading["missing_keys"]):
        logger.warning(
            "%s: %d weights are not in the checkpoint and are random, the first is %s", where, len(missing), missing[0]
        )
    return model


def from_config_alone(
    where: str | Mapping[str, Any], *, name: str, dtype: Any, device: str, seed: int, trust_remote_code: bool = False
) -> Any:
    """Return a model with random weights; never touches the network.

    where: a local directory, a config.json, a cached hub id, or the config's own fields. name: what errors call it.
    """
    import torch

    if isinstance(where, Mapping):
        config = _config_from_fields(where, name)
    else:
        path = Path(where).expanduser()
        if path.is_file() and path.name != "config.json":
            config = _config_from_fields(_read_json(path), name)
        else:
            source, revision, _ = _source(str(path.parent) if path.is_file() else where)
            config = _config(name, source, revision, local_only=True, trust_remote_code=trust_remote_code)
    door = _door(config, trust_remote_code=trust_remote_code)
    try:
        with torch.device("meta"):
            bytes_needed = _parameter_bytes(door.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code))
        _check_memory(name, bytes_needed, device)
        with seeded(seed, device), torch.device(device), FastInit():
            return door.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code).eval()
    except Exception as error:  # a config's values may be anything, and so may the code that reads them
        raise _load_error(error, name) from error


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers' bar off stderr, where the command line draws its own; put it back after."""
    from transformers.utils import logging as bars

    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()  # type: ignore[no-untyped-call]


def _source(where: str) -> tuple[str, str | None, bool]:
    """Return (directory or repository, revision, whether it is local)."""
    path = Path(where).expanduser()
    if path.is_dir():
        return str(path), None, True
    repository, _, revision = where.partition("@")
    return repository, revision or None, False


def _config(where: str, source: str, revision: str | None, *, local_only: bool, trust_remote_code: bool) -> Any:
    transformers = _transformers()
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise SpecError(f"{where}: no config.json in {source}; expected a Hugging Face model directory")
    asked = {"revision": revision, "local_files_only": local_only}
    try:
        fields, _ = transformers.PretrainedConfig.get_config_dict(source, **asked)
        _refuse_remote_code(fields, where, trust_remote_code=trust_remote_code)
        _check_model_type(fields, where)
        return transformers.AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, **asked)
    except HotswapError:
        raise
    except Exception as error:  # network, cache, JSON and remote code all meet here
        raise _load_error(error, where) from error


def _config_from_fields(fields: Mapping[str, Any], name: str) -> Any:
    _check_model_type(fields, name)
    # A copy: configs made of other configs take their fields out of what they are given.
    rest = {key: copy.deepcopy(value) for key, value in fields.items() if key not in ("model_type", "auto_map")}
    try:
        return _transformers().AutoConfig.for_model(fields["model_type"], **rest)
    except Exception as error:  # configs validate themselves, with errors of their own
        said = " ".join(str(error).split())[:300] or type(error).__name__  # the reason stands below the first line
        raise SpecError(f"{name}: the config is refused: {said}; correct its fields") from error


def _refuse_remote_code(fields: Mapping[str, Any], where: str, *, trust_remote_code: bool) -> None:
    code = fields.get("auto_map")
    known = fields.get("model_type") in _transformers().CONFIG_MAPPING
    if code and not known and not trust_remote_code:
        files = sorted({str(ref).rpartition("--")[2].split(".")[0] + ".py" for ref in code.values() if ref})
        raise SpecError(
            f"{where}: the model needs code of its own ({', '.join(files)}); read it, then give --trust-remote-code"
        )


def _check_model_type(fields: Mapping[str, Any], where: str) -> None:
    transformers = _transformers()
    model_type = fields.get("model_type")
    if model_type is None:
        raise SpecError(f"{where}: the config has no model_type; expected the config.json of a transformers model")
    if model_type not in transformers.CONFIG_MAPPING and not fields.get("auto_map"):
        from .suggest import did_you_mean

        hint = did_you_mean(str(model_type), list(transformers.CONFIG_MAPPING.keys()))
        hint = hint if "mean" in hint else "; a newer transformers may"
        raise EnvironmentMissing(
            f"{where}: transformers {transformers.__version__} does not know model_type {model_type!r}{hint}"
        )


def _door(config: Any, *, trust_remote_code: bool) -> Any:
    """Return the auto class that builds what the config asks for.

    The class the config names in `architectures` decides; where it names none: the causal language model where the type
    has one and no masked one, the sequence-to-sequence one for encoder-decoders, else the bare model.
    """
    from transformers.models.auto import modeling_auto as auto

    wanted = tuple(getattr(config, "architectures", None) or ())
    remote = getattr(config, "auto_map", None) or {}
    if trust_remote_code:
        for key, reference in remote.items():
            if key.startswith("AutoModel") and (not wanted or str(reference).rpartition(".")[2] in wanted):
                return getattr(auto, key)
    for door in _doors(auto):
        classes = door._model_mapping.get(type(config), ())
        if {c.__name__ for c in (classes if isinstance(classes, tuple) else (classes,))} & set(wanted):
            return door
    kind = type(config)
    if wanted:
        logger.warning("transformers registers no auto class for %s: the config's type decides", wanted[0])
    if config.is_encoder_decoder:
        for door in (auto.AutoModelForSpeechSeq2Seq, auto.AutoModelForSeq2SeqLM):
            if kind in door._model_mapping:
                return door
    elif kind in auto.AutoModelForCausalLM._model_mapping and kind not in auto.AutoModelForMaskedLM._model_mapping:
        return auto.AutoModelForCausalLM
    if kind in auto.AutoModel._model_mapping:
        return auto.AutoModel
    return next((door for door in _doors(auto) if kind in door._model_mapping), auto.AutoModel)


def _doors(auto: Any) -> Iterator[Any]:
    for name, door in vars(auto).items():
        if name.startswith("AutoModel") and getattr(door, "_model_mapping", None) is not None:
            yield door


def _parameter_bytes(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _check_memory(name: str, needed: int, device: str) -> None:
    free = _free_bytes(device)
    if free is not None and needed > free:
        raise ResourceExhausted(
            f"{name}: the weights take {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB is free on {device}; "
            "use a smaller size such as @slice or @tiny, or a machine with more memory"
        )


def _free_bytes(device: str) -> int | None:
    """Return the memory free for weights, None where the system does not tell."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:  # not Linux
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _load_error(error: BaseException, where: str) -> HotswapError:
    """Return the error of ours for what went wrong between a name and a live model."""
    from huggingface_hub import errors as hub

    if isinstance(error, HotswapError):
        return error
    chain = list(_causes(error))
    said = first_line(error)
    # GatedRepoError derives from RepositoryNotFoundError: it is asked first.
    if any(isinstance(e, hub.GatedRepoError) for e in chain):
        return SpecError(
            f"{where}: access to this model must be granted on its page first; accept its terms and log in"
        )
    if any(
        isinstance(e, hub.RepositoryNotFoundError | hub.RevisionNotFoundError | hub.HFValidationError) for e in chain
    ):
        return SpecError(
            f"{where}: no such directory, and the hub has no such model or revision; check the name, or use a zoo name "
            "such as gpt2@tiny"
        )
    if any(isinstance(e, hub.LocalEntryNotFoundError | hub.OfflineModeIsEnabled | ConnectionError) for e in chain):
        return EnvironmentMissing(
            f"{where}: no such directory, not in the hub cache, and the hub cannot be reached; "
            "check the name, copy the model here, or use a zoo name such as gpt2@tiny"
        )
    if isinstance(error, ImportError):
        return EnvironmentMissing(f"{where}: a dependency of the model is missing: {said}")
    if out_of_memory(error):
        return ResourceExhausted(f"{where}: out of memory while loading ({said}); use a smaller model or dtype")
    if isinstance(error, OSError | ValueError) or type(error).__module__.startswith("safetensors"):
        return SpecError(f"{where}: cannot be loaded: {said}")
    return explained(error, where)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: not a JSON config ({error}); expected the config.json of a model") from error
    if not isinstance(fields, dict):
        raise SpecError(f"{path}: expected a JSON object, got {type(fields).__name__}")
    return fields


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise EnvironmentMissing(f"transformers cannot be imported ({error}); pip install transformers") from error
    return transformers
