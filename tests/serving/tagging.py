"""Catalogues for the tests, and the oracle of a filter: item by item, without bitmaps."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from weir.contracts.interactions.catalogue import CATALOGUE_SCHEMA, Catalogue
from weir.serving.bundles.bundle import BundleState, LoadedBundle
from weir.serving.index import probing as filtered
from weir.serving.index import probing as visits
from weir.serving.index.diversity import TagCap
from weir.serving.index.eligibility import CatalogueView, TagFilter
from weir.serving.index.probing import FilteredSearch


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

    def beside(self, bundle: LoadedBundle) -> LoadedBundle:
        """Return a bundle with it as its catalogue, and the cold items that the bundle has."""
        cold = bundle.state.view.cold if bundle.state.view else None
        rows = bundle.rows if cold is None else cold.rows
        return replace(bundle, state=BundleState(replace(CatalogueView.of(self.catalogue(), rows, ""), cold=cold)))

    def passes(self, item: str, tags: TagFilter, now_ms: int) -> bool:
        """Say whether an item is available and passes a filter."""
        has = set(self.tags.get(item, ()))
        start, end = self.limits.get(item, (None, None))
        there = (start is None or start <= now_ms) and (end is None or now_ms < end)
        wanted = has >= set(tags.all) and not has & set(tags.none)
        return there and wanted and (not tags.any or bool(has & set(tags.any)))

    def spread(self, ranked: Sequence[str], cap: TagCap, k: int) -> list[str]:
        """Return the first k of ranked items of which no tag comes more often than a cap allows."""
        counts, taken = Counter[str](), list[str]()
        for item in ranked:
            tags = [tag for tag in set(self.tags.get(item, ())) if tag.startswith(cap.prefix)]
            if len(taken) < k and all(counts[tag] < cap.most for tag in tags):
                taken.append(item)
                counts.update(tags)
        return taken

    def passing(self, items: Sequence[str], tags: TagFilter, now_ms: int) -> list[str]:
        """Return the items that do, in their order."""
        return [item for item in items if self.passes(item, tags, now_ms)]


def search_by(way: str, patch: pytest.MonkeyPatch) -> None:
    """Have lists visited, however few rows pass, and their rows scanned or gathered; "as it pays" changes nothing."""
    if way == "as it pays":
        return
    patch.setattr(filtered, "_FEW", 0)
    patch.setattr(FilteredSearch, "_exact_cost", lambda *_: float("inf"))
    patch.setattr(visits, {"scanning": "_SCATTERED", "gathering": "_CHECKED"}[way], 1e9)


WAYS = ["as it pays", "scanning", "gathering"]
