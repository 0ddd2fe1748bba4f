"""Write how a search goes as TensorBoard scalars: attempts by outcome, best kernels, predicted gain, over attempts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ..optimizer.campaign import Standing

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)


class SearchScalars:
    """Writes to the log directory `folder` when an attempt has ended; nothing where tensorboard is not installed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._last = -1

    def __enter__(self) -> Self:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            logger.info("no scalars of the search: tensorboard is not installed; pip install 'hotswap[tensorboard]'")
        else:
            self._writer = SummaryWriter(str(self._folder), filename_suffix=".search")
        return self

    def __exit__(self, *ended: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, standing: Standing) -> None:
        """Write one point for each figure, where an attempt has ended since the last."""
        tried = sum(row.tried for row in standing.rows)
        if self._writer is None or tried <= self._last:
            return
        self._last = tried
        accepted, kept = sum(row.accepted for row in standing.rows), sum(row.kept for row in standing.rows)
        figures = {
            "search/predicted_speedup": standing.predicted,
            "search/rejected": float(tried - accepted),
            "search/reverted": float(accepted - kept),
            "search/kept": float(kept),
            "search/seconds": standing.seconds,
        }
        figures |= {f"search/best/{row.task}": row.best for row in standing.rows if row.best is not None}
        for name, value in figures.items():
            self._writer.add_scalar(name, value, tried)
