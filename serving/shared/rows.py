"""A user as one value: the row of a file of users, and the seen items with their own checksum.

Words of 8 bytes, little-endian: checksum, positives ever seen, L items, L times; then checksum of the seen items,
whether older ones were left out, and the items. The checksums are those of files of users (`weir.contracts.user_rows`),
as if the seen items started at 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weir.contracts import PADDING_KEY, FoundUsers, ItemKeys, SeenItems, UserKeys
from weir.contracts.user_rows import record_sums, seen_sums

__all__ = ["Decoded", "decode", "encode"]

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Decoded(NamedTuple):
    """Of n users: their last `items` (n, L), what they have `seen`, and whose value was `damaged` (n,): nobody's."""

    items: ItemKeys
    seen: SeenItems
    damaged: Bool


def encode(found: FoundUsers) -> list[bytes]:
    """Return the value of each user; raises `CorruptArtefactError` where what is stored is damaged."""
    users = found.users
    records, seen = found.records(), found.seen(np.arange(len(users)))
    values = np.concatenate([records.totals[:, None], records.items, records.times], axis=1)
    rows = np.concatenate([record_sums(users, values)[:, None], values], axis=1)
    bounded = seen.bounded.astype(np.int64)
    sums = seen_sums(users, np.zeros(len(users), np.int64), bounded, seen.items, seen.offsets)
    heads, items, at = np.stack([sums, bounded], axis=1), seen.items, seen.offsets.tolist()
    return [rows[n].tobytes() + heads[n].tobytes() + items[at[n] : at[n + 1]].tobytes() for n in range(len(users))]


def decode(users: UserKeys, values: Sequence[bytes | None], length: int) -> Decoded:
    """Return what the values of users (n,) say, with records of `length` items; None is nothing known."""
    width = 2 + 2 * length
    least = 8 * (width + 2)
    there = np.array([n for n, value in enumerate(values) if value and len(value) >= least and not len(value) % 8])
    damaged = np.array([value is not None for value in values], np.bool_)
    items = np.full((len(users), length), PADDING_KEY, np.int64)
    if not len(there):
        return Decoded(ItemKeys(items), _seen([b""] * len(users), damaged), damaged)
    found = [value for n in there.tolist() if (value := values[n])]
    rows = np.frombuffer(b"".join([value[:least] for value in found]), np.int64).reshape(-1, width + 2)
    mine, seen = users[there], [value[least:] for value in found]
    offsets = np.concatenate([[0], np.cumsum([len(one) // 8 for one in seen])])
    flat, starts = np.frombuffer(b"".join(seen), np.int64), np.zeros(len(there), np.int64)
    is_sound = record_sums(mine, rows[:, 1:width]) == rows[:, 0]
    is_sound &= seen_sums(mine, starts, rows[:, width + 1], flat, offsets) == rows[:, width]
    damaged[there[is_sound]] = False
    items[there[is_sound]] = rows[is_sound, 2 : 2 + length]
    parts, bounded = [b""] * len(users), damaged.copy()
    for number, n in enumerate(there.tolist()):
        if is_sound[number]:
            parts[n], bounded[n] = seen[number], rows[number, width + 1] != 0
    return Decoded(ItemKeys(items), _seen(parts, bounded), damaged)


def _seen(parts: list[bytes], bounded: Bool) -> SeenItems:
    offsets = np.concatenate([[0], np.cumsum([len(part) // 8 for part in parts], dtype=np.int64)])
    return SeenItems(ItemKeys(np.frombuffer(b"".join(parts), np.int64)), offsets, bounded)
