"""A window's positives, read in parts by all ranks, with access to chosen examples or columns."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from weir.contracts import WindowLog, WindowManifest
from weir.trainer.config import TrainerConfig
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.positives import Positives, read_positives
from weir.trainer.step.seeds import Purpose, generator
from weir.trainer.step.spool import blocks
from weir.trainer.users.lines import NO_FEATURES, Layout

__all__ = ["SharedWindow"]


@dataclass(frozen=True, eq=False)
class SharedWindow:
    """The positives of a window: `own` is this rank's contiguous part; parts follow in the order of ranks.

    `layout` describes the encoded user features. Construction and methods are collective.
    """

    own: Positives
    workers: Workers
    layout: Layout = NO_FEATURES

    @classmethod
    def read(cls, log: WindowLog, manifest: WindowManifest, config: TrainerConfig, workers: Workers) -> Self:
        """Read this rank's part of a window with the columns that the settings need; raises as `read_positives`."""
        length, exposed = config.tower.history_length, config.negatives.exposed
        buckets = config.features.buckets
        own = read_positives(log, manifest, length, exposed, buckets=buckets, workers=workers)
        return cls(own, workers, Layout.of(manifest.user_features, buckets))

    def __len__(self) -> int:
        return int(self.cuts[-1])

    @cached_property
    def cuts(self) -> npt.NDArray[np.int64]:
        """Start of each rank's part, and the end of the last one, (ranks + 1,)."""
        sizes = self.workers.gather(torch.tensor(len(self.own.items))).numpy()
        return np.concatenate([[0], np.cumsum(sizes)])

    @property
    def here(self) -> slice:
        """Slice of this rank's part among all positives."""
        return slice(*self.cuts[self.workers.rank : self.workers.rank + 2].tolist())

    def own_blocks(self) -> list[slice]:
        """Cut the own positives into blocks, equally many on each rank: some may be empty."""
        own, most = list(blocks(len(self.own.items))), int(np.diff(self.cuts).max())
        return own + [slice(0, 0)] * (len(list(blocks(most))) - len(own))

    def whole(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a column (n,) over all positives from the ranks' own parts."""
        if self.workers.world_size == 1:
            return column
        found, at = np.empty(len(self), column.dtype), self.cuts[:-1].copy()
        for block in self.own_blocks():
            for rank, lines in enumerate(self.workers.collected(torch.from_numpy(np.ascontiguousarray(column[block])))):
                found[at[rank] : at[rank] + len(lines)] = lines.numpy()
                at[rank] += len(lines)
        return found

    def chosen(self, numbers: npt.NDArray[np.int64]) -> Positives:
        """Return the positives with these numbers (m,), in this order, on all ranks."""
        owners = np.searchsorted(self.cuts, numbers, side="right") - 1
        mine = numbers[owners == self.workers.rank] - self.here.start
        place = np.argsort(np.argsort(owners, kind="stable"))
        return self.own.each(lambda column: self._collected(column[mine])[place])

    def sampled(self, seed: int, sequence: int, count: int) -> Positives:
        """Return up to `count` positives sampled by seed and window; smaller samples are prefixes of larger ones."""
        draw = generator(seed, Purpose.EVALUATION, sequence)
        return self.chosen(torch.randperm(len(self), generator=draw)[:count].numpy())

    def _collected(self, lines: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self.workers.collect(torch.from_numpy(np.ascontiguousarray(lines))).numpy()
