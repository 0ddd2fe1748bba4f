"""Write a winner as KernelBench wants it: the problem's `Model`, the kernel, and a `ModelNew` that calls it."""

from __future__ import annotations

from collections.abc import Sequence

_MODEL_NEW = '''

class ModelNew(Model):
    """The problem's Model, made the same way, with its forward computed by the kernel above."""

    def forward(self, *inputs):
        state = {{**dict(self.named_parameters()), **dict(self.named_buffers())}}
        weights = [state[path].detach() for path in {paths!r}]
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)] + weights
        if {contiguous!r}:
            tensors = [t.contiguous() for t in tensors]
        with torch.no_grad():
            return {call}
{packing}'''

_PACKING = '''
    def _packed(self, tensors, weights):
        """Pack the weights once, and again when one was changed or replaced."""
        state = tuple((w.data_ptr(), w._version) for w in weights)
        if getattr(self, "_packed_for", None) != state:
            self._packed_as, self._packed_for = prepare(*tensors), state
        return self._packed_as
'''


def model_new(problem: str, kernel: str, paths: Sequence[str]) -> str:
    """Return the file. paths: the model's parameters and buffers that follow the arguments as the kernel's inputs."""
    packs = "STATIC_WEIGHTS" in kernel
    call = "kernel(*tensors, packed=self._packed(tensors, weights))" if packs else "kernel(*tensors)"
    body = _MODEL_NEW.format(
        paths=list(paths), contiguous="CONSTRAINTS" in kernel, call=call, packing=_PACKING if packs else ""
    )
    return f"{_without_future(problem)}\n\nimport torch\n\n{_without_future(kernel)}{body}"


def _without_future(source: str) -> str:
    """Return a file without `from __future__` imports, which may stand at the top of a file only."""
    return "\n".join(line for line in source.splitlines() if not line.startswith("from __future__")).strip() + "\n"
