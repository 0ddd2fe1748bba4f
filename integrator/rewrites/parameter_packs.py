"""Keep several parameters in one tensor: the packed tensor is their storage, the parameters are views of it.

Writing into a parameter in place (an optimizer, load_state_dict, LoRA merged) therefore writes into the packed tensor.
A parameter whose memory was exchanged (`.data = `, a `.to` and back) is no view any more: `ensure` copies it in and
makes it one again. Parameter objects stay what they are, and with them ties and state dicts.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Pack:
    """tensor: the storage, (rows, ...). members: its parameters with their first row; pointers: where they begin."""

    tensor: torch.Tensor
    members: tuple[tuple[weakref.ref[torch.Tensor], int], ...]
    pointers: tuple[int, ...]

    def is_of(self, parameters: Sequence[torch.Tensor]) -> bool:
        return len(parameters) == len(self.members) and all(
            ref() is p for (ref, _), p in zip(self.members, parameters, strict=True)
        )


class ParameterPacks:
    """The packed parameters of one model. repacked: how often parameters were found elsewhere and brought back."""

    def __init__(self) -> None:
        self._packs: list[Pack] = []
        self.repacked = 0

    def pack(self, parameters: Sequence[torch.Tensor], rows: int | None = None) -> Pack | str:
        """Return the tensor (rows, ...) that holds `parameters` one after another along dim 0, or why there is none.

        rows: rows it is to have; what is more than the parameters' is zero. The same parameters give the same pack.
        """
        reason = _why_not_together(parameters)
        if reason is not None:
            return reason
        needed = rows or sum(p.shape[0] for p in parameters)
        for made in self._packs:
            if made.is_of(parameters) and made.tensor.shape[0] == needed and self.ensure(made, parameters):
                return made
        self._forget_others_of(parameters)
        if any(ref() is p for made in self._packs for ref, _ in made.members for p in parameters):
            return "a weight that is packed with others"
        if not all(_has_own_memory(p) for p in parameters):
            return "a weight whose memory something else holds, too"
        first = parameters[0]
        with torch.inference_mode(False), torch.no_grad():
            tensor = torch.zeros((needed, *first.shape[1:]), dtype=first.dtype, device=first.device)
        starts = [sum(p.shape[0] for p in parameters[:i]) for i in range(len(parameters))]
        pointers = tuple(tensor[start:].data_ptr() for start in starts)
        made = Pack(tensor, tuple((weakref.ref(p), s) for p, s in zip(parameters, starts, strict=True)), pointers)
        _move_in(made)
        self._packs.append(made)
        return made

    def ensure(self, made: Pack, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether `parameters` are views of the pack, having brought back those that lie elsewhere; False if they
        cannot be: other objects, another dtype or device, or restored.
        """
        if tuple(p.data_ptr() for p in parameters) == made.pointers:
            return True
        tensor = made.tensor
        if made not in self._packs or not made.is_of(parameters):
            return False
        if any((p.dtype, p.device) != (tensor.dtype, tensor.device) for p in parameters):
            return False
        self.repacked += 1
        _move_in(made)
        return True

    def restore(self) -> None:
        """Give each parameter memory of its own again. The packs stay known: `ensure` fills them anew."""
        for made in self._packs:
            _move_out(made)

    def __len__(self) -> int:
        return len(self._packs)

    def _forget_others_of(self, parameters: Sequence[torch.Tensor]) -> None:
        """Undo packs of the same parameters that do not fit any more: cast or moved since, or of other rows."""
        for made in [m for m in self._packs if m.is_of(parameters)]:
            _move_out(made)
            self._packs = [m for m in self._packs if m is not made]


# One for each model: its patches take turns, and two packs of one parameter would fight over it.
_of_models: weakref.WeakKeyDictionary[torch.nn.Module, ParameterPacks] = weakref.WeakKeyDictionary()


def packs_of(model: torch.nn.Module) -> ParameterPacks:
    """Return the packs that all patches of `model` share."""
    return _of_models.setdefault(model, ParameterPacks())


def _why_not_together(parameters: Sequence[torch.Tensor]) -> str | None:
    first = parameters[0]
    for one in parameters:
        if type(one) is not torch.nn.Parameter:
            return "a weight that is no plain parameter"
        if (one.dtype, one.device, one.shape[1:]) != (first.dtype, first.device, first.shape[1:]):
            return "weights of different dtype, device or width"
    return "the same weight twice" if len({id(p) for p in parameters}) != len(parameters) else None


def _has_own_memory(parameter: torch.Tensor) -> bool:
    """Whether the parameter is its storage's only holder and fills it: a tie by storage must not be torn."""
    storage = parameter.untyped_storage()
    whole = parameter.is_contiguous() and storage.nbytes() == parameter.numel() * parameter.element_size()
    return whole and _holders(parameter) == _holders(torch.empty(1))


def _holders(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata)


def _move_in(made: Pack) -> None:
    """Copy each parameter into its rows, and make it a view of them."""
    with torch.inference_mode(False), torch.no_grad():
        for ref, start in made.members:
            parameter = ref()
            if parameter is not None:
                rows = made.tensor[start : start + parameter.shape[0]]
                if parameter.data_ptr() != rows.data_ptr():
                    rows.copy_(parameter.data)
                    parameter.data = rows


def _move_out(made: Pack) -> None:
    for (ref, _), pointer in zip(made.members, made.pointers, strict=True):
        parameter = ref()
        if parameter is not None and parameter.data_ptr() == pointer:
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
