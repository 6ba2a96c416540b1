"""Evaluation cases for comparing bundles: the newest events, as keys, so that any bundle can be tested."""

import logging
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from weir.contracts import CorruptArtefactError, ItemKeys, RetiredError, Store, WindowLog, WindowManifest
from weir.contracts.commits import LogMismatchError
from weir.contracts.places import GATE_CASES, GATE_WINDOWS
from weir.trainer.config import TrainerConfig
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.positives import Positives
from weir.trainer.step.shared_window import SharedWindow
from weir.trainer.users.lines import Layout, UserLines

__all__ = ["ENOUGH", "MOST", "Cases", "RecentCases"]

logger = logging.getLogger(__name__)

MOST: Final = 1000
"""Most cases per window: more would take time and hardly change the result."""

ENOUGH: Final = GATE_CASES
"""Least number of cases for a decision; smaller windows are pooled up to it."""


class Cases(NamedTuple):
    """Positive events: the `items` (n,), and the users' `histories` (n, L) before them, oldest first.

    `features` (n,) are the users' features.
    """

    items: ItemKeys
    histories: ItemKeys
    features: UserLines

    def __len__(self) -> int:
        return len(self.items)

    def take(self, chosen: slice | npt.NDArray[np.int64]) -> "Cases":
        """Return a selection of the cases."""
        return Cases(ItemKeys(self.items[chosen]), ItemKeys(self.histories[chosen]), self.features.take(chosen))


@dataclass
class RecentCases:
    """Up to `MOST` cases of each of the newest windows, read from the store again after a restart.

    The sample of a window depends only on the seed and the window, so a restart chooses the same cases.
    """

    store: Store
    config: TrainerConfig
    _known: dict[int, Cases] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._log = WindowLog(self.store)

    def note(self, manifest: WindowManifest, drawn: Positives) -> Cases:
        """Add the cases of the next window, and keep those that `up_to` may need.

        `drawn` are `MOST` of its positives, or all, as sampled by `SharedWindow.sampled`.
        """
        self._known[manifest.sequence] = cases = self._of(manifest, drawn)
        sequence, kept = manifest.sequence, 0
        while sequence in self._known and kept < ENOUGH:
            kept += len(self._known[sequence])
            sequence -= 1
        self._known = {known: part for known, part in self._known.items() if known > sequence}
        return cases

    def up_to(self, sequence: int) -> Cases:
        """Return the cases of a window and earlier ones, until there are `ENOUGH` or no more."""
        parts: list[Cases] = []
        last = max(sequence - GATE_WINDOWS, -1)
        while sequence > last and sum(map(len, parts)) < ENOUGH:
            if sequence not in self._known and not self._read(sequence):
                break
            parts.append(self._known[sequence])
            sequence -= 1
        if not parts:
            no_histories = np.empty((0, self.config.tower.history_length), np.int64)
            return Cases(ItemKeys(np.empty(0, np.int64)), ItemKeys(no_histories), UserLines.nothing(0))
        if len(parts) == 1:
            return parts[0]
        items = np.concatenate([part.items for part in parts])
        features = UserLines.joined([part.features for part in parts])
        return Cases(ItemKeys(items), _joined([part.histories for part in parts]), features)

    def _read(self, sequence: int) -> bool:
        """Read a window's cases from the store; return False if it does not have the window."""
        try:
            manifest = next(iter(self._log.next(sequence - 1)), None)
            if manifest is None or manifest.sequence != sequence:
                return False
            # The other ranks wait or train meanwhile, so this rank reads the whole window.
            found = SharedWindow.read(self._log, manifest, self.config, Workers())
        except (CorruptArtefactError, FileNotFoundError, LogMismatchError, RetiredError) as error:
            logger.warning("bundles are compared without the cases of window %d and before: %s", sequence, error)
            return False
        drawn = found.sampled(self.config.seed, sequence, MOST)
        self._known[sequence] = self._of(manifest, drawn)
        return True

    def _of(self, manifest: WindowManifest, drawn: Positives) -> Cases:
        layout = Layout.of(manifest.user_features, self.config.features.buckets)
        return Cases(drawn.items, drawn.histories, UserLines(layout, drawn.features))


def _joined(histories: list[ItemKeys]) -> ItemKeys:
    """Concatenate histories (n, L), padded on the left to the longest."""
    length = max(part.shape[1] for part in histories)
    padded = [np.pad(part, ((0, 0), (length - part.shape[1], 0))) for part in histories]
    return ItemKeys(np.concatenate(padded))
