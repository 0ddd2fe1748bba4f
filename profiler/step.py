"""One step of a workload, run the same way under every instrument: fresh inputs, gradients off or on, then a sync."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from ..models.errors import HotswapError, InputError, ModelRaised, ResourceExhausted
from ..models.workload import Call, Mode, own_copy

LEAST_SAMPLES = 5
MOST_SAMPLES = 20
OPTIMIZER_RANGE = "hotswap: optimizer step"
_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")


class Step:
    """A repeatable step: `prepare()` gives a function that runs it once, to the end of the device's work.

    Inference: `model(*args, **kwargs)` without gradients. Training: forward, a loss (the output's `loss`, else the mean
    of its floating tensors), backward, and AdamW at rate zero, so that the time is real and the weights stay.
    """

    def __init__(self, model: nn.Module, call: Call, mode: Mode = "inference", *, eager: bool = False) -> None:
        self.model, self.call, self.mode = model, call, mode
        self.device = device_of(model, call)
        self._eager = eager
        self._optimizer: torch.optim.Optimizer | None = None

    def prepare(self) -> Callable[[], None]:
        """Return the step with inputs of its own: what a run writes into them or into a cache ends with it.

        It raises ModelRaised, InputError or ResourceExhausted where the model does not get through.
        """
        args, kwargs = own_copy((self.call.args, dict(self.call.kwargs)))

        def run() -> None:
            try:
                with self._compiled_code_off():
                    self._forward(args, kwargs)
                    self.synchronize()
            except HotswapError:
                raise
            except Exception as error:  # the user's model may raise anything
                raise self._explain(error) from error

        return run

    def run(self) -> None:
        """Run once, with inputs of its own."""
        self.prepare()()

    def sample(self, seconds: float = 1.0) -> tuple[float, ...]:
        """Return wall times in us of unprofiled steps after a warm-up: at least 5, more while `seconds` last."""
        self.run()
        samples: list[float] = []
        until = time.perf_counter() + seconds
        while len(samples) < LEAST_SAMPLES or (len(samples) < MOST_SAMPLES and time.perf_counter() < until):
            run = self.prepare()
            self.synchronize()
            start = time.perf_counter()
            run()
            samples.append((time.perf_counter() - start) * 1e6)
        return tuple(samples)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @contextmanager
    def _compiled_code_off(self) -> Iterator[None]:
        if not self._eager:
            yield
            return
        import torch.compiler

        with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
            # A wrapper warns that global hooks fire for it too; ours know modules by instance and not the wrapper.
            warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")
            yield

    def _forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self.mode == "training":
            self._train(args, kwargs)
        else:
            with torch.no_grad():
                self.model(*args, **kwargs)

    def _train(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._optimizer is None:
            weights = [p for p in self.model.parameters() if p.requires_grad]
            if not weights:
                raise InputError("training profile: no parameter requires a gradient; profile in inference mode")
            self._optimizer = torch.optim.AdamW(weights, lr=0.0)
        _loss(self.model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]
        with torch.profiler.record_function(OPTIMIZER_RANGE):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _explain(self, error: Exception) -> HotswapError:
        name, line = type(self.model).__name__, " ".join(str(error).split())[:300]
        if is_out_of_memory(error):
            return ResourceExhausted(f"{name}: memory ran out in call {self.call.name!r} ({line}); use a smaller batch")
        return ModelRaised(
            f"{name}: call {self.call.name!r} raised {type(error).__name__}: {line}; check the example inputs"
        )


@contextmanager
def undisturbed(model: nn.Module, mode: Mode) -> Iterator[None]:
    """Give the model and the random generators back as they were: buffers always, weights and gradients in training."""
    tensors = list(model.buffers()) + (list(model.parameters()) if mode == "training" else [])
    kept = [(t, t.detach().clone()) for t in tensors if not t.is_meta]
    gradients = [(p, p.grad) for p in model.parameters()] if mode == "training" else []
    for parameter, _ in gradients:
        parameter.grad = None
    cuda = sorted({t.device.index for t in tensors if t.device.type == "cuda"})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, before in kept:
                    if not torch.equal(_dense(tensor), _dense(before)):
                        tensor.copy_(before)
            for parameter, gradient in gradients:
                parameter.grad = gradient


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def device_of(model: nn.Module, call: Call) -> torch.device:
    """Return where the step runs: the model's first parameter or buffer, else the call's first tensor, else the CPU."""
    for tensor in (*model.parameters(), *model.buffers(), *tensors_in((call.args, dict(call.kwargs)))):
        return tensor.device
    return torch.device("cpu")


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested tuples, lists, mappings and dataclass-like outputs, in order."""
    leaves = _pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def is_compiled(model: nn.Module) -> bool:
    """Say whether torch.compile wraps the model or a module in it (as a wrapper, or in place by `Module.compile`)."""
    return any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in model.modules())


def may_hold_compiled_code() -> bool:
    """Say whether anything in this process can have been compiled: without Dynamo imported nothing has."""
    return "torch._dynamo" in sys.modules


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether memory ran out: a CPU allocator has no error class of its own, only its words."""
    if isinstance(error, HotswapError):
        return error.__cause__ is not None and is_out_of_memory(error.__cause__)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)
    )


def _loss(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss.mean()
    floating = [t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
    if not floating:
        raise InputError(
            "training profile: the output holds no tensor that a gradient can flow to; profile in inference mode"
        )
    return torch.stack([t.float().mean() for t in floating]).sum()
