"""Print a verdict: the decision, what each stage saw, and the race."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .console import results

if TYPE_CHECKING:
    from ..optimizer.verdict import Verdict


def print_verdict(verdict: Verdict) -> None:
    """Print the decision, what each stage saw, and the race where there was one."""
    from rich.table import Table

    out = results()
    if verdict.accepted:
        out.print("[bold green]accepted[/]")
    else:
        out.print(f"[bold red]rejected[/] at {verdict.stage}:", end=" ")
        out.print(verdict.reason or "", markup=False, soft_wrap=True)
    stages = Table("stage", "passed", "seconds", box=None, pad_edge=False)
    for stage in verdict.stages:
        stages.add_row(stage.stage, "yes" if stage.passed else "no", f"{stage.seconds:.2f}")
    out.print(stages)
    for stage in verdict.stages:
        if "library calls" in stage.evidence:
            out.print(f"library calls: {stage.evidence['library calls']}", markup=False, soft_wrap=True)
    for race in verdict.races:
        times = ", ".join(f"{arm.name} {arm.median_us:.1f} us" for arm in race.arms)
        gains = ", ".join(f"{i.median:.2f}x {name} ({i.low:.2f} to {i.high:.2f})" for name, i in race.speedup.items())
        out.print(f"{race.case}: {times}; {gains}", markup=False, soft_wrap=True)
    if verdict.speedup is not None:
        now = verdict.speedup
        out.print(f"against the best rival: {now.median:.2f}x ({now.low:.2f} to {now.high:.2f}, 99%)", soft_wrap=True)
    out.print(f"isolation: {verdict.isolation}", markup=False, soft_wrap=True)
