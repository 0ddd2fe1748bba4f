"""Stand-ins for won kernels: a task's own reference as a candidate: no search, and no bit may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hotswap.extractor.task import Extraction, Task, task_folder
from hotswap.optimizer.domain import verified_domain
from hotswap.optimizer.winner import Winner

# Ops may not return memory of their inputs or of each other, which a reference that is the identity would.
_KERNEL = """

def kernel({names}):
    owned = {{t.untyped_storage().data_ptr() for t in ({names},)}}
    made = []
    for output in reference({names}):
        shared = output.untyped_storage().data_ptr() in owned
        made.append(output.clone() if shared else output)
        owned.add(made[-1].untyped_storage().data_ptr())
    return tuple(made)
"""

# A reference is right at every size, so its domain is bounded by nothing.
_MOST = 1 << 40


def write_stand_ins(extraction: Extraction, tasks: Path, run: Path) -> list[Winner]:
    """Write a winner for every task into `run`/winners and return them."""
    winners = []
    for rank, task in enumerate(extraction.tasks):
        winner = stand_in(task, task_folder(tasks, rank, task))
        winner.save(run / "winners" / f"{rank:03d}.json")
        winners.append(winner)
    return winners


def stand_in(task: Task, folder: Path) -> Winner:
    """Return the winner that answers `task` by its own reference."""
    reference = (folder / "reference.py").read_text(encoding="utf-8").partition("\n# Recorded shapes")[0]
    domain = verified_domain(task, (), threads=1)
    return Winner(
        task=task.name,
        fingerprint=task.fingerprint,
        choice="kernel",
        proposer="stand-in",
        source=reference + _KERNEL.format(names=", ".join(task.inputs)),
        domain=replace(domain, sizes=tuple((0, _MOST) for _ in domain.sizes)),
        verdict=None,
        static_weights=False,
        attempts=1,
        reason="its own reference, put in untimed",
    )
