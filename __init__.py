"""Point at a PyTorch model; get back the same model, faster, with proof.

Names are handed out on first use (PEP 562), so importing `hotswap` imports neither torch nor a stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .integrator.optimize import optimize as optimize
    from .integrator.patch import patch as patch
    from .integrator.patch import patched as patched
    from .integrator.patch import unpatch as unpatch
    from .models.workload import Call as Call
    from .optimizer.judge import judge as judge

__version__ = "0.1.0"
__all__ = ["Call", "judge", "optimize", "patch", "patched", "unpatch"]

_HOMES = {
    "Call": "models.workload",
    "judge": "optimizer.judge",
    "optimize": "integrator.optimize",
    "patch": "integrator.patch",
    "patched": "integrator.patch",
    "unpatch": "integrator.patch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hotswap' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
