"""Evicted keys since the newest bundle, in bounded memory."""

from typing import Final

import numpy as np

from weir.contracts import PADDING_KEY, ItemKeys
from weir.contracts.ascending import ascending

__all__ = ["TOO_MANY", "LeftKeys"]

TOO_MANY: Final = PADDING_KEY
"""Stands for more keys than there are rows: the export then compares all items, at no more cost."""


class LeftKeys:
    """Keys of items evicted from rows of this rank since the last `clear`; only `TOO_MANY` beyond a limit.

    After `snapshot`, later keys are also collected separately.
    """

    def __init__(self) -> None:
        self._parts, self._size = list[ItemKeys](), 0
        self._later: LeftKeys | None = None

    def snapshot(self) -> None:
        """Start to collect later keys separately, too."""
        self._later = LeftKeys()

    def keep_later(self) -> None:
        """Drop the keys from before the snapshot."""
        later = self._later or LeftKeys()
        self._parts, self._size, self._later = later._parts, later._size, None

    def add(self, keys: ItemKeys, most: int) -> None:
        """Add keys (n,); keep at most `most` distinct keys in total."""
        if self._later is not None:
            self._later.add(keys, most)
        self._parts.append(keys)
        self._size += len(keys)
        # Deduplicate at twice the limit only, so that sorting is cheap per added key.
        if self._size > 2 * most:
            every = self.keys
            fits = len(every) <= most and TOO_MANY not in every
            self._parts = [every if fits else ItemKeys(np.full(1, TOO_MANY, np.int64))]
            self._size = len(self._parts[0])

    @property
    def keys(self) -> ItemKeys:
        """The distinct keys (n,), ascending."""
        return ItemKeys(ascending(np.concatenate([np.empty(0, np.int64), *self._parts])))

    def clear(self) -> None:
        """Drop all keys."""
        self._parts, self._size = [], 0
