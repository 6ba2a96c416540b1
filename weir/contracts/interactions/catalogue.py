"""The catalogue: item data beside the log. Tags select items, and times limit when they are shown."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.base import columns
from weir.contracts.base.arrays import ascending
from weir.contracts.base.keys import ItemKeys, hash_ids
from weir.contracts.bundles.rows import ItemRows
from weir.contracts.interactions.features import values_of
from weir.contracts.interactions.interaction import MAX_ID_BYTES

__all__ = ["ALWAYS", "CATALOGUE_SCHEMA", "Catalogue"]

Int64 = npt.NDArray[np.int64]

ALWAYS: Final = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
"""Start and end of the availability of an item for which the catalogue has no times."""

CATALOGUE_SCHEMA: Final = pa.schema(
    {
        columns.ITEM_ID: pa.string(),
        columns.TAGS: pa.list_(pa.string()),
        columns.AVAILABLE_FROM: pa.int64(),
        columns.AVAILABLE_UNTIL: pa.int64(),
    }
)
"""Rows of a catalogue of any file format; times are milliseconds since 1970."""


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The n distinct items (entries) of a catalogue.

    `ids` (n,) are strings. Entry i has the distinct tags ``tags[numbers[offsets[i]:offsets[i + 1]]]``, and is available
    from `starts[i]` until before `ends[i]`, milliseconds since 1970. `tags` ascend. `features` has a row for each
    entry, with the columns `weir.contracts.interactions.features.FeatureNames.fields`. `refused` counts the rows that
    were left out, and `problem` describes the first of them.
    """

    ids: pa.Array
    tags: tuple[str, ...]
    offsets: Int64
    numbers: Int64
    starts: Int64
    ends: Int64
    features: pa.Table
    refused: int = 0
    problem: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, rows: pa.Table, refused: int = 0, problem: str = "") -> "Catalogue":
        """Return the catalogue of rows with `CATALOGUE_SCHEMA` and feature columns; the last row of an id wins.

        Tags that are empty or longer than `MAX_ID_BYTES` are left out.
        """
        ids = rows[columns.ITEM_ID].combine_chunks()
        kept = _last_of_each(ids)
        tags, offsets, numbers = _tags_of(rows[columns.TAGS].combine_chunks().take(pa.array(kept)))
        starts, ends = (
            rows[name].fill_null(missing).to_numpy()[kept]
            for name, missing in zip((columns.AVAILABLE_FROM, columns.AVAILABLE_UNTIL), ALWAYS, strict=True)
        )
        features = rows.drop_columns(CATALOGUE_SCHEMA.names).take(pa.array(kept))
        return cls(ids.take(pa.array(kept)), tags, offsets, numbers, starts, ends, features, refused, problem)

    def keys(self, secret: str) -> ItemKeys:
        """Return the key of each entry, (n,), by the store's key `secret`."""
        return _keys(self, secret)

    def entries(self, secret: str) -> ItemRows:
        """Return the map from item keys, by the store's key `secret`, to entries."""
        return _entries(self, secret)

    def tags_of(self, entries: Int64) -> tuple[Int64, Int64]:
        """Return the tags of entries (m,) as pairs (p,): place in `entries`, ascending, and number of the tag."""
        starts, counts = self.offsets[entries], self.offsets[entries + 1] - self.offsets[entries]
        places = np.repeat(np.arange(len(entries)), counts)
        within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return places, self.numbers[starts[places] + within]

    def numbers_of(self, prefix: str) -> tuple[int, int]:
        """Return the range [first, end) of the numbers of the tags with a prefix."""

        def begin(tag: str) -> str:
            return tag[: len(prefix)]

        return bisect_left(self.tags, prefix, key=begin), bisect_right(self.tags, prefix, key=begin)


@lru_cache(maxsize=1)
def _keys(catalogue: Catalogue, secret: str) -> ItemKeys:
    return ItemKeys(hash_ids(catalogue.ids, secret))


@lru_cache(maxsize=1)
def _entries(catalogue: Catalogue, secret: str) -> ItemRows:
    return ItemRows.of(_keys(catalogue, secret))


def _last_of_each(ids: pa.Array) -> Int64:
    """Return the index of the last row of each distinct id, ascending."""
    encoded = ids.dictionary_encode()
    last = np.zeros(len(encoded.dictionary), np.int64)
    last[encoded.indices.to_numpy()] = np.arange(len(ids))
    return np.sort(last)


def _tags_of(lists: pa.Array) -> tuple[tuple[str, ...], Int64, Int64]:
    """Return the distinct tags, ascending, and the offsets and tag numbers of each list."""
    places, values = values_of(lists)
    size = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    good = (size > 0) & (size <= MAX_ID_BYTES)
    encoded = values.filter(pa.array(good)).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    count = max(1, len(order))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order))
    pairs = ascending(places[good] * count + numbers[encoded.indices])
    offsets = np.searchsorted(pairs, np.arange(len(lists) + 1) * count)
    return tuple(encoded.dictionary.take(order).to_pylist()), offsets, pairs % count
