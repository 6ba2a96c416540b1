"""The catalogue and the items taken down, from their files: read again when they change.

A file that cannot be read changes nothing: what was read before stays, the log says why, and a metric shows it. Items
taken down are followed by themselves, so that neither a large catalogue nor the loading of a bundle delays them.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from weir.contracts import ItemKeys, hash_ids
from weir.contracts.catalogue import Catalogue
from weir.contracts.catalogue_files import decode_catalogue
from weir.contracts.features import FeatureNames
from weir.contracts.ids import MISSING_IDS
from weir.contracts.watched_file import WatchedFile
from weir.serving.bundle import LoadedBundle
from weir.serving.cold import ColdItems, absent_entries, still_absent
from weir.serving.metrics import CatalogueMetrics
from weir.serving.problems import Problems
from weir.serving.tagged import TaggedRows, moved_rows

__all__ = ["LOOK_SECONDS", "CatalogueFiles", "CatalogueFollower", "Takedown"]

Content = TypeVar("Content")

LOOK_SECONDS: Final = 0.25
"""Between two looks at the items taken down: they are to be gone within a second."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CatalogueFiles:
    """Paths or URLs of the catalogue and of the list of items taken down; None: there is none.

    `features` names the item features among the catalogue's columns, `missing_ids` the texts that stand for no item.
    """

    catalogue: str | None = None
    takedown: str | None = None
    features: FeatureNames = field(default_factory=FeatureNames)
    missing_ids: tuple[str, ...] = MISSING_IDS


@dataclass
class _Followed(Generic[Content]):
    """What a file holds, `content`; None: it could not be read yet. `unusable` says that its newest state is not it."""

    url: str
    decode: Callable[[bytes], Content]
    content: Content | None = None
    unusable: bool = False
    _stamp: str = ""
    _undecodable: bool = False
    _problems: Problems = field(default_factory=lambda: Problems(log))

    def __post_init__(self) -> None:
        self._file = WatchedFile(self.url)

    def look(self) -> bool:
        """Read the file if it has changed; say whether it was read. What cannot be read is logged once."""
        try:
            was_read = self._look()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the file, what was read before is good
            kept = "there is none" if self.content is None else "the one read before stays"
            self._problems.report(error, f"{self.url} cannot be used, {kept}")
            self.unusable = True
            return False
        self.unusable = self._undecodable
        if not self.unusable:
            self._problems.over()
        return was_read

    def _look(self) -> bool:
        # Of a file that changes while it is read, the next look sees another stamp.
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return False
        data = self._file.read()
        # What cannot be decoded is not read again either.
        self._stamp, self._undecodable = stamp, True
        self.content = self.decode(data)
        self._undecodable = False
        return True


class CatalogueFollower:
    """Keeps the catalogue, and what it says of the rows of the served bundle.

    `look` is called by one thread, `describe` also by the one that loads bundles.
    """

    def __init__(self, files: CatalogueFiles, metrics: CatalogueMetrics, most_cold: int = 0) -> None:
        url, features, missing = files.catalogue, files.features, files.missing_ids
        self._metrics, self._most_cold = metrics, most_cold
        self._file = _Followed(url, lambda data: decode_catalogue(url, data, features, missing)) if url else None

    @property
    def is_named(self) -> bool:
        """Say whether there is a file to follow."""
        return self._file is not None

    def look(self, *served: LoadedBundle) -> None:
        """Read the catalogue if it has changed, and describe the served bundles by it; raises nothing."""
        if self._file is None:
            return
        started = time.perf_counter()
        if self._file.look() and (found := self._file.content) is not None:
            self._metrics.read(found, time.perf_counter() - started)
            left_out = f", {found.refused:,} rows left out, such as: {found.problem}" if found.refused else ""
            log.info("catalogue: %s items, %s tags%s", f"{len(found):,}", f"{len(found.tags):,}", left_out)
        self._metrics.unusable.labels("catalogue").set(self._file.unusable)
        for bundle in served:
            # Also where a bundle was swapped in while the catalogue was read.
            self.describe(bundle)

    def describe(self, bundle: LoadedBundle, before: LoadedBundle | None = None) -> None:
        """Work out what the catalogue says of a bundle's rows, unless that is known.

        Of a version that shares its base with the one `before`, only the rows are looked up that hold other items.
        """
        catalogue = self._file.content if self._file else None
        if catalogue is None or ((known := bundle.shelf.tagged) is not None and known.catalogue is catalogue):
            return
        known = before.shelf.tagged if before is not None and _same_base(before, bundle) else None
        if known is not None and known.catalogue is not catalogue:
            known = None
        cold = self._cold(bundle, catalogue, before, known)
        rows = bundle.rows if cold is None else cold.rows
        if before is not None and known is not None:
            tagged = known.moved(before.rows if known.cold is None else known.cold.rows, rows)
        else:
            tagged = TaggedRows.of(catalogue, rows, bundle.key_secret)
        bundle.shelf.tagged = replace(tagged, cold=cold)
        self._metrics.cold.set(0 if cold is None else len(cold))
        self._metrics.cold_left_out.set(0 if cold is None else cold.left_out)

    def _cold(
        self, bundle: LoadedBundle, catalogue: Catalogue, before: LoadedBundle | None, known: TaggedRows | None
    ) -> ColdItems | None:
        if not self._most_cold or bundle.features is None or not catalogue.features.column_names:
            return None
        if before is not None and known is not None and known.cold is not None:
            moved = moved_rows(before.rows, bundle.rows)
            gone = ItemKeys(before.rows.keys[moved[moved < len(before.rows)]])
            absent = still_absent(catalogue, bundle, known.cold.absent, gone)
        else:
            absent = absent_entries(catalogue, bundle)
        return ColdItems.of(bundle, catalogue, absent, self._most_cold)


class Takedown:
    """Keeps the ids of items that must not be returned: a line each in a text file.

    Until it can be read there is none. Once it was read, only an emptied file lifts what it said.
    """

    def __init__(self, url: str | None, metrics: CatalogueMetrics) -> None:
        self._metrics = metrics
        self._file = _Followed(url, _ids_in) if url else None
        self._keys: tuple[pa.Array | None, str, ItemKeys] = (None, "", ItemKeys(np.empty(0, np.int64)))

    @property
    def is_named(self) -> bool:
        """Say whether there is a file to follow."""
        return self._file is not None

    def look(self) -> None:
        """Read the file if it has changed; raises nothing."""
        if self._file is None:
            return
        if self._file.look() and self._file.content is not None:
            self._metrics.takedowns.set(len(self._file.content))
            log.info("%s items are taken down", f"{len(self._file.content):,}")
        self._metrics.unusable.labels("takedown").set(self._file.unusable)

    def keys(self, secret: str) -> ItemKeys:
        """Return the keys of the items, in a store with this secret; the same array until the file changes."""
        ids = self._file.content if self._file else None
        known_ids, known_secret, keys = self._keys
        if ids is not known_ids or secret != known_secret:
            keys = ItemKeys(hash_ids(ids, secret) if ids is not None else np.empty(0, np.int64))
            self._keys = (ids, secret, keys)
        return keys


def _ids_in(data: bytes) -> pa.Array:
    """Return the distinct ids of a text file, a line each; bytes that are no UTF-8 name no item."""
    lines = (line.strip() for line in data.decode("utf-8-sig", "replace").splitlines())
    return pa.array(sorted({line for line in lines if line}), pa.string())


def _same_base(one: LoadedBundle, other: LoadedBundle) -> bool:
    return one.rows.keys.base is other.rows.keys.base and one.key_secret == other.key_secret
