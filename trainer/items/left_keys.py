"""Which items have lost their row since the newest bundle, in bounded memory."""

from typing import Final

import numpy as np

from weir.contracts import PADDING_KEY, ItemKeys
from weir.contracts.ascending import ascending

__all__ = ["TOO_MANY", "LeftKeys"]

TOO_MANY: Final = PADDING_KEY
"""Stands for more keys than there are rows: an export compares all items then, which costs no more."""


class LeftKeys:
    """Keys of items that have lost a row of this rank, until `clear`; `TOO_MANY` alone, where they exceed a limit.

    From a `snapshot` on, those that come later are noted by themselves, too.
    """

    def __init__(self) -> None:
        self._parts, self._size = list[ItemKeys](), 0
        self._later: LeftKeys | None = None

    def snapshot(self) -> None:
        """Note by themselves those that come from here on."""
        self._later = LeftKeys()

    def keep_later(self) -> None:
        """Forget those that came before the snapshot."""
        later = self._later or LeftKeys()
        self._parts, self._size, self._later = later._parts, later._size, None

    def add(self, keys: ItemKeys, most: int) -> None:
        """Take further keys (n,), with those before `most` distinct ones."""
        if self._later is not None:
            self._later.add(keys, most)
        self._parts.append(keys)
        self._size += len(keys)
        # Twice as many: sorting them costs little for each that has come since the last time.
        if self._size > 2 * most:
            every = self.keys
            fits = len(every) <= most and TOO_MANY not in every
            self._parts = [every if fits else ItemKeys(np.full(1, TOO_MANY, np.int64))]
            self._size = len(self._parts[0])

    @property
    def keys(self) -> ItemKeys:
        """The keys (n,), ascending, each once."""
        return ItemKeys(ascending(np.concatenate([np.empty(0, np.int64), *self._parts])))

    def clear(self) -> None:
        """Forget them."""
        self._parts, self._size = [], 0
