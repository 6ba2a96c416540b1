"""Catalogues for the tests, and the oracle of a filter: item by item, without bitmaps."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from contracts.catalogue import CATALOGUE_SCHEMA, Catalogue
from serving.sieve import TagFilter


@dataclass
class Described:
    """What a catalogue says: tags by item, and limits, from when until when (milliseconds) an item is available."""

    tags: Mapping[str, Collection[str]]
    limits: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def catalogue(self) -> Catalogue:
        """Return it as the server reads it."""
        rows: list[dict[str, Any]] = [
            {
                "item_id": item,
                "tags": sorted(self.tags.get(item, ())),
                "available_from": self.limits.get(item, (None, None))[0],
                "available_until": self.limits.get(item, (None, None))[1],
            }
            for item in sorted({*self.tags, *self.limits})
        ]
        return Catalogue.of(pa.Table.from_pylist(rows, schema=CATALOGUE_SCHEMA))

    def passes(self, item: str, tags: TagFilter, now_ms: int) -> bool:
        """Say whether an item is available and passes a filter."""
        has = set(self.tags.get(item, ()))
        start, end = self.limits.get(item, (None, None))
        there = (start is None or start <= now_ms) and (end is None or now_ms < end)
        wanted = has >= set(tags.all) and not has & set(tags.none)
        return there and wanted and (not tags.any or bool(has & set(tags.any)))

    def passing(self, items: Sequence[str], tags: TagFilter, now_ms: int) -> list[str]:
        """Return the items that do, in their order."""
        return [item for item in items if self.passes(item, tags, now_ms)]
