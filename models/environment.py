"""Describe the circumstances of a measurement: versions, CPU, device, compiler, threads."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import shutil
import subprocess

from .machine import cpu_flags, cpu_name, flags_that_matter
from .settings import variable


def environment() -> dict[str, str]:
    """Return what a reader must know to compare a figure with another machine's; "absent" where a part is not there."""
    import torch

    found = {
        "hotswap": _version("hotswap"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        # Read from metadata: importing triton costs time and may touch a driver.
        "triton": _version("triton"),
        "transformers": _version("transformers"),
        "os": platform.platform(terse=True),
        "cpu": cpu_name(),
        "cpu_flags": " ".join(flags_that_matter(cpu_flags())),
        "threads": str(torch.get_num_threads()),
        "compiler": compiler_version(),
    }
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        found["device"] = f"{torch.cuda.get_device_name()} (sm_{major}{minor})"
        found["cuda"] = str(torch.version.cuda or torch.version.hip)
    else:
        found["device"] = "cpu"
    return found


@functools.cache
def compiler_version() -> str:
    """Return the first line of `$CXX --version` (g++ unless set), "absent" where it cannot be run."""
    command = variable("CXX") or "g++"
    path = shutil.which(command)
    if path is None:
        return "absent"
    try:
        ran = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "absent"
    return ran.stdout.partition("\n")[0].strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
