"""`hotswap verify RUN`: is the patched model still the model?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..models.errors import VerificationFailed
from .console import print_json, progress, results
from .options import examples, json_option, settings_options
from .places import find_run
from .request import Request

if TYPE_CHECKING:
    from ..integrator.results import Check, Tail

EXAMPLES = examples("hotswap verify last", "hotswap verify runs/minilm --batch 3 --seq-len 77 --seed 1 --json")


@click.command(epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@settings_options("batch", "seq_len", "seed", config=False)
@click.option("--equal-bits", is_flag=True, help="Fail where any output differs from eager's by a single bit.")
@json_option
def command(run: str, equal_bits: bool, as_json: bool, **flags: Any) -> None:
    """Check again that the model patched by RUN is still the model: all outputs, several inputs, beside eager and fp32.

    Other inputs may be asked for. Exits with 1 where it is not.
    """
    from ..integrator.patch import patched
    from ..integrator.run_directory import load_run
    from ..integrator.verify import verify

    folder = find_run(run)
    request = Request.of_run(load_run(folder), flags)
    workload = request.workload()
    with progress() as bars:
        bars("verify", 0, 1, "the model as it is, then patched")
        checks = verify(
            workload.model,
            lambda: patched(workload.model, folder, tail=tail_of(folder)),
            workload.calls,
            seed=request.settings.seed,
        )
        bars("verify", 1, 1)
    if as_json:
        print_json({"run": str(folder), "checks": [c.to_dict() for c in checks]})
    else:
        print_checks(checks)
    require(checks, str(folder), equal_bits=equal_bits)


def require(checks: Sequence[Check], run: str, *, equal_bits: bool) -> None:
    """Raise VerificationFailed unless every check passed; equal_bits: and every leaf compared is eager's to the bit."""
    failed = [c.name for c in checks if not c.passed]
    if failed:
        raise VerificationFailed(f"{run}: the patched model is not the model on {', '.join(failed)}")
    rounded = [c.name for c in checks if c.bitwise is False]
    if equal_bits and rounded:
        raise VerificationFailed(f"{run}: within eager's own error, but not its bits, on {', '.join(rounded)}")


def tail_of(folder: Path) -> Tail | None:
    """Return what the run chose to run around its kernels, None where it has no report yet."""
    from ..integrator.results import Report

    return Report.load(folder / "report.json").tail if (folder / "report.json").exists() else None


def print_checks(checks: Sequence[Check]) -> None:
    """Print one line a check: the worst error of its outputs beside eager's own, and what there is to say of it."""
    from rich.table import Table

    table = Table("input", "is the model", "worst error", "eager's own", "top-1", "detail", box=None, pad_edge=False)
    for check in checks:
        worst = max(check.leaves, key=lambda leaf: leaf.error, default=None)
        table.add_row(
            check.name,
            "yes" if check.passed else "[bold red]no[/]",
            f"{worst.error:.2e}" if worst else "-",
            f"{worst.eager_error:.2e}" if worst else "-",
            f"{100 * check.top1:.1f}%" if check.top1 is not None else "-",
            check.detail,
        )
    results().print(table)
