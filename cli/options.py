"""The flags that commands share, each with one name, one help text and one parser: `models.settings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..models.settings import Settings
    from ..models.spec import LoadOptions

Function = TypeVar("Function", bound=Callable[..., Any])

# Setting to (metavar, help). Values stay text here: `models.settings` parses them, from a flag or from anywhere else.
SETTINGS: dict[str, tuple[str, str]] = {
    "batch": ("N", "Batch size of the example inputs made for the model."),
    "seq_len": ("N", "Length of the example inputs; repeat it for several example calls."),
    "dtype": ("NAME", "auto, bf16, fp16, fp32 or fp64; auto is bf16 where the device computes in it."),
    "device": ("NAME", "auto, cpu, cuda or cuda:1."),
    "seed": ("N", "Seed of weights, inputs and search."),
    "threads": ("N", "Threads of torch and of CPU kernels."),
    "budget": ("TIME", "Time the search may take: 90s, 10m, 1h."),
    "top": ("N", "How many tasks to work on, those with the most to gain first."),
    "mode": ("NAME", "What runs around the kernels: auto, eager, planned, cudagraph, inductor or inductor-cudagraph."),
    "baselines": ("NAME", "What to compare with: default (eager, torch.compile) or all of its modes."),
    "gpus": ("N", "GPUs that judge at once, a process each."),
    "ray": ("ADDRESS", "Judge on a Ray cluster: its address, auto, or local; --gpus N actors."),
    "llm": ("MODEL", "Language model that proposes kernels too, as LiteLLM names it; its key is in the environment."),
    "api_base": ("URL", "OpenAI-compatible server to ask, in place of the provider's own."),
    "llm_budget": ("LIMITS", "Hard limits of it: '2.50usd, 500k tokens, 100 requests, 10m'."),
    "llm_price": ("IN,OUT", "US dollars a million tokens, where LiteLLM does not know them."),
    "llm_parallel": ("N", "Requests in flight."),
    "llm_timeout": ("TIME", "How long one request may take."),
    "out": ("DIR", "Run directory to write; runs/<time>-<model> unless given."),
}
MODEL_SETTINGS = ("batch", "seq_len", "dtype", "device", "seed", "threads")
LLM_SETTINGS = ("llm", "api_base", "llm_budget", "llm_price", "llm_parallel", "llm_timeout")
SEARCH_SETTINGS = ("budget", "top", "gpus", "ray", *LLM_SETTINGS)
WHOLE_SETTINGS = ("mode", "baselines")


def settings_options(*names: str, config: bool = True) -> Callable[[Function], Function]:
    """Add a flag for each setting named, and `--config`; the command gets them as keywords for `resolved`.

    config: False for a command on a run, whose settings were fixed when it began.
    """

    def decorate(function: Function) -> Function:
        if config:
            function = click.option("--config", type=click.Path(path_type=Path), help="TOML file of settings.")(
                function
            )
        for name in reversed(names):
            metavar, text = SETTINGS[name]
            flag = f"--{name.replace('_', '-')}"
            function = click.option(flag, name, metavar=metavar, help=text, multiple=name == "seq_len")(function)
        return function

    return decorate


def resolved(flags: Mapping[str, Any]) -> Settings:
    """Return the settings in force, given the keywords that `settings_options` made, with its `--config` or without."""
    from ..models.settings import resolve

    names = [name for name in flags if name in SETTINGS]
    return resolve({name: flags[name] for name in names}, config=flags.get("config"))


def model_options(function: Function) -> Function:
    """Add what says how MODEL is loaded, beyond settings; `load_options` takes it."""
    for option in (
        click.option("--inputs", metavar="FILE:FUNCTION", help="Function that returns the example inputs."),
        click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a Hugging Face model."),
        click.option("--random-weights", is_flag=True, help="Build from the config alone; read no checkpoint."),
    ):
        function = option(function)
    return function


def load_options(
    settings: Settings, *, random_weights: bool = False, trust_remote_code: bool = False, inputs: str | None = None
) -> LoadOptions:
    """Return how to load MODEL, from the settings and the flags of `model_options`."""
    from ..models.spec import LoadOptions

    return LoadOptions(
        random_weights=random_weights,
        trust_remote_code=trust_remote_code,
        dtype=settings.dtype,
        device=settings.device,
        batch=settings.batch,
        seq_len=settings.seq_len,
        inputs=inputs,
        seed=settings.seed,
    )


def json_option(function: Function) -> Function:
    """Add `--json`: the command's `as_json` says to print one JSON document on stdout instead of tables."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, nothing else.")(function)


def examples(*lines: str) -> str:
    """Return the epilogue of a command's help: one example a line."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
