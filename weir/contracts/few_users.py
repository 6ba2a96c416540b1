"""Look-ups of a few users: in plain Python, since a numpy call costs more than all that it would do here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from weir.contracts.errors import CorruptArtefactError
from weir.contracts.keys import ItemKeys, UserKeys
from weir.contracts.user_file import UserFile
from weir.contracts.user_rows import Int64, Records, SeenItems, record_sum, seen_sum, unknown_users

__all__ = ["DAMAGED_HEAD", "DAMAGED_RECORD", "DAMAGED_SEEN", "FewUsers"]

DAMAGED_RECORD: Final = "a record does not match its checksum"
DAMAGED_HEAD: Final = "the place of a user's seen items is damaged"
DAMAGED_SEEN: Final = "a user's seen items do not match their checksum"

_MASK: Final = (1 << 64) - 1
_NOTHING: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class FewUsers:
    """Users (n,), and the files and places where each one is, oldest first; `bounds` (n,) are of its seen items."""

    users: UserKeys
    length: int
    _keys: Sequence[int]
    _hits: Sequence[list[tuple[UserFile, int]]]
    _bounds: Sequence[int]

    @classmethod
    def find(cls, files: Sequence[Sequence[UserFile]], length: int, users: UserKeys) -> "FewUsers":
        """Look for users in the files of each shard; raises `CorruptArtefactError`."""
        keys: list[int] = users.tolist()
        hits, bounds = [], []
        for key in keys:
            mine = files[(key & _MASK) % len(files)]
            hits.append([(file, place) for file in mine if (place := file.place(key)) >= 0])
            bounds.append(mine[-1].bound if mine else 0)
        return cls(users, length, keys, hits, bounds)

    def records(self) -> Records:
        """Return the records, (n,)."""
        found = unknown_users(len(self.users), self.length)
        for row, (key, hits) in enumerate(zip(self._keys, self._hits, strict=True)):
            if hits:
                file, place = hits[-1]
                values = file.row(place)
                if record_sum(key, values[1:]) != values[0]:
                    raise CorruptArtefactError(str(file.path), DAMAGED_RECORD)
                found.totals[row] = values[1]
                found.items[row], found.times[row] = values[2 : 2 + self.length], values[2 + self.length :]
        return found

    def seen(self, asked: Int64) -> SeenItems:
        """Return what the users at the rows `asked` have seen."""
        parts, offsets, bounded = [_NOTHING], [0], []
        for row in asked.tolist():
            mine, is_bounded = self._seen(row)
            excess = sum(map(len, mine)) - self._bounds[row]
            if excess > 0:
                mine = [np.concatenate(mine)[excess:]]
            parts += mine
            offsets.append(offsets[-1] + sum(map(len, mine)))
            bounded.append(is_bounded or excess > 0)
        return SeenItems(ItemKeys(np.concatenate(parts)), np.array(offsets), np.array(bounded, np.bool_))

    def _seen(self, row: int) -> tuple[list[Int64], bool]:
        """Return the seen items of a user by file, and whether older ones were left out."""
        parts, is_bounded = [], False
        for file, place in self._hits[row]:
            start, bounded, expected, end = file.head(place)
            if not 0 <= start <= end <= file.pairs:
                raise CorruptArtefactError(str(file.path), DAMAGED_HEAD)
            items = file.items(start, end)
            if seen_sum(self._keys[row], start, bounded, items) != expected:
                raise CorruptArtefactError(str(file.path), DAMAGED_SEEN)
            parts.append(items)
            is_bounded |= bounded != 0
        return parts, is_bounded
