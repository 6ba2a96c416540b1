"""The catalogue and the takedown list, reloaded when their files change.

If a file cannot be read, its earlier content stays, the log says why, and a metric shows it. The takedown list is
checked separately, so that neither a large catalogue nor the loading of a bundle delays a takedown.
"""

import codecs
import logging
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import MAX_ID_BYTES, ItemKeys, hash_ids
from weir.contracts.interactions.catalogue import Catalogue
from weir.contracts.interactions.catalogue_files import decode_catalogue
from weir.contracts.interactions.features import FeatureNames
from weir.contracts.interactions.interaction import MISSING_IDS
from weir.contracts.storage.remote_files import WatchedFile
from weir.runtime.log_once import LogOnce
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.index.cold import ColdItems, absent_entries, still_absent
from weir.serving.index.eligibility import CatalogueView, moved_rows
from weir.serving.metrics import CatalogueMetrics

__all__ = ["LOOK_SECONDS", "CatalogueFiles", "CatalogueFollower", "Takedown"]

log = logging.getLogger(__name__)

Content = TypeVar("Content")

_GZIP: Final = b"\x1f\x8b"
"""First bytes of a gzipped file."""
_WRAPPED: Final = frozenset({'""', "''", "{}", "[]"})
"""First and last character of a JSON or quoted line."""
_QUOTES: Final = "\"'"
_QUOTED: Final = frozenset({'",', "',"})
"""Last two characters of a quoted line that ends with a comma."""
_SHOWN: Final = 60
"""Bytes of a malformed line that the log repeats."""

LOOK_SECONDS: Final = 0.25
"""Seconds between two checks of the takedown list: an item must disappear within a second."""

_NO_IDS: Final = pa.array([], pa.string())


@dataclass(frozen=True)
class CatalogueFiles:
    """Paths or URLs of the catalogue and of the takedown list; None: no file.

    `features` names the catalogue's columns that are item features, `missing_ids` the ids that mean "no item".
    """

    catalogue: str | None = None
    takedown: str | None = None
    features: FeatureNames = field(default_factory=FeatureNames)
    missing_ids: tuple[str, ...] = MISSING_IDS


@dataclass
class _Followed(Generic[Content]):
    """A file that is read and decoded again whenever it changes.

    `content` is the last content that could be decoded, None before. `unusable`: the file in its present state cannot
    be read or decoded.
    """

    url: str
    decode: Callable[[bytes], Content]
    content: Content | None = None
    unusable: bool = False
    _stamp: str = ""
    _undecodable: bool = False
    _once: LogOnce = field(default_factory=lambda: LogOnce(log))

    def __post_init__(self) -> None:
        self._file = WatchedFile(self.url)

    def look(self) -> bool:
        """Read and decode the file if it has changed; return whether `content` is new. A failure is logged once."""
        try:
            was_read = self._look()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the file, what was read before is good
            kept = "there is none" if self.content is None else "the one read before stays"
            self._once.failed(error, f"{self.url} cannot be used, {kept}")
            self.unusable = True
            return False
        self.unusable = self._undecodable
        if not self.unusable:
            self._once.succeeded()
        return was_read

    def _look(self) -> bool:
        # A file that changes while it is read has another stamp at the next look.
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return False
        data = self._file.read()
        # Undecodable content is not read again until it changes.
        self._stamp, self._undecodable = stamp, True
        self.content = self.decode(data)
        self._undecodable = False
        return True


class CatalogueFollower:
    """Follows the file of the catalogue, and keeps the served bundles' catalogue views up to date.

    `most_cold` is the largest number of cold items. One thread calls `look`; the thread that loads bundles calls
    `describe`.
    """

    def __init__(self, files: CatalogueFiles, metrics: CatalogueMetrics, most_cold: int = 0) -> None:
        url, features, missing = files.catalogue, files.features, files.missing_ids
        self._metrics, self._most_cold = metrics, most_cold
        self._file = _Followed(url, lambda data: decode_catalogue(url, data, features, missing)) if url else None
        self._is_matched = False

    @property
    def is_named(self) -> bool:
        """Whether the settings name a catalogue."""
        return self._file is not None

    def look(self, *served: LoadedBundle) -> None:
        """Read the catalogue if it has changed, and update the views of the `served` bundles; never raises.

        Logs a warning if no served bundle has an item of a new catalogue.
        """
        if self._file is None:
            return
        started = time.perf_counter()
        if self._file.look() and (catalogue := self._file.content) is not None:
            self._is_matched = False
            self._metrics.read(catalogue, time.perf_counter() - started)
            refused = catalogue.refused
            left_out = f", {refused:,} rows left out, such as: {catalogue.problem}" if refused else ""
            log.info("catalogue: %s items, %s tags%s", f"{len(catalogue):,}", f"{len(catalogue.tags):,}", left_out)
        self._metrics.unusable.labels("catalogue").set(self._file.unusable)
        for bundle in served:
            # Also bundles that were swapped in while the catalogue was read.
            self.describe(bundle)
        if served and not self._is_matched and self._file.content is not None:
            self._is_matched = True
            if len(self._file.content) and not any(map(_is_described, served)):
                log.warning("no served item has one of the ids in %s: it changes nothing", self._file.url)

    def describe(self, bundle: LoadedBundle, before: LoadedBundle | None = None) -> None:
        """Set the bundle's catalogue view (`state.view`), unless it is up to date.

        If the bundle shares its base with `before`, only the rows that hold other items than before are looked up.
        """
        catalogue = self._file.content if self._file else None
        if catalogue is None or ((view := bundle.state.view) is not None and view.catalogue is catalogue):
            return
        earlier = before.state.view if before is not None and _same_base(before, bundle) else None
        if earlier is not None and earlier.catalogue is not catalogue:
            earlier = None
        cold = self._cold(bundle, catalogue, before, earlier)
        rows = bundle.rows if cold is None else cold.rows
        if before is not None and earlier is not None:
            view = earlier.moved(before.rows if earlier.cold is None else earlier.cold.rows, rows)
        else:
            view = CatalogueView.of(catalogue, rows, bundle.key_secret)
        bundle.state.view = replace(view, cold=cold)
        self._metrics.cold.set(0 if cold is None else len(cold))
        self._metrics.cold_left_out.set(0 if cold is None else cold.left_out)

    def _cold(
        self, bundle: LoadedBundle, catalogue: Catalogue, before: LoadedBundle | None, earlier: CatalogueView | None
    ) -> ColdItems | None:
        """Return the cold items of a bundle, None without item features.

        `earlier` is the view of the version `before` on the same base, if there is one.
        """
        if not self._most_cold or bundle.features is None or not catalogue.features.column_names:
            return None
        if before is not None and earlier is not None and earlier.cold is not None:
            moved = moved_rows(before.rows, bundle.rows)
            gone = ItemKeys(before.rows.keys[moved[moved < len(before.rows)]])
            absent = still_absent(catalogue, bundle, earlier.cold.absent, gone)
        else:
            absent = absent_entries(catalogue, bundle)
        return ColdItems.of(bundle, catalogue, absent, self._most_cold)


def _is_described(bundle: LoadedBundle) -> bool:
    """Return whether the bundle's catalogue view has an item that the bundle can return."""
    view = bundle.state.view
    if view is None:
        return False
    return view.cold is not None or bool((view.entries_of(bundle.rows, bundle.rows.live) >= 0).any())


class Takedown:
    """Follows the takedown list: a UTF-8 text file with the ids of items that must not be returned, one a line.

    Nothing is taken down before the first read. A new list replaces the one before once it is accepted: it must be
    well-formed, and name an item of a served bundle. Until then its ids are taken down in addition to the ids of the
    list before. An emptied file lifts all takedowns; a missing file changes nothing.
    """

    def __init__(self, url: str | None, metrics: CatalogueMetrics) -> None:
        self._metrics = metrics
        self._file = _Followed(url, _decoded_ids) if url else None
        self._accepted, self._ids = _NO_IDS, _NO_IDS
        self._pending: _IdList | None = None
        self._keys: tuple[pa.Array | None, str, ItemKeys] = (None, "", ItemKeys(np.empty(0, np.int64)))

    @property
    def is_named(self) -> bool:
        """Whether the settings name a takedown list."""
        return self._file is not None

    def look(self, *served: LoadedBundle) -> None:
        """Read the list if it has changed, and accept it if a `served` bundle has one of its items; never raises."""
        if self._file is None:
            return
        if self._file.look() and self._file.content is not None:
            self._add(self._file.content)
        if self._pending is not None and served:
            self._accept(self._pending, served)
        is_understood = self._file.content is None or not self._file.content.problem
        self._metrics.unusable.labels("takedown").set(self._file.unusable or not is_understood)

    def keys(self, secret: str) -> ItemKeys:
        """Return the keys of the items taken down, by the store's key secret; the same array until the list changes."""
        ids = self._ids
        known_ids, known_secret, keys = self._keys
        if ids is not known_ids or secret != known_secret:
            keys = ItemKeys(hash_ids(ids, secret))
            self._keys = (ids, secret, keys)
        return keys

    def _add(self, new: "_IdList") -> None:
        """Take down the ids of a new list in addition to the accepted ids; an empty list lifts all takedowns."""
        if self._pending is not None:
            self._accepted = self._pending.ids  # no bundle was served by which it could be checked
        self._pending = new if len(new.ids) and not new.problem else None
        if not (len(new.ids) or new.problem):
            self._accepted = self._ids = _NO_IDS
        else:
            self._ids = pc.unique(pa.concat_arrays([self._accepted, new.ids]))
        if new.problem:
            before = f"the {len(self._accepted):,} items of the list before stay taken down, beside what it names"
            log.error(
                "%s cannot be understood as a list of ids, %s: %s", self._file and self._file.url, before, new.problem
            )
        self._show()

    def _accept(self, new: "_IdList", served: Sequence[LoadedBundle]) -> None:
        """Replace the accepted list by a new list if a served bundle has an item of it; else log a warning."""
        self._pending = None
        if any(_has_item(bundle, new.ids) for bundle in served):
            self._accepted, before = new.ids, self._ids
            if len(before) != len(new.ids):
                self._ids = new.ids
                self._show()
            return
        count = len(self._accepted)
        stay = f": the {count:,} of the list before stay, empty the file to lift them" if count else ""
        log.warning(
            "no served item has one of the %s ids in %s%s", f"{len(new.ids):,}", self._file and self._file.url, stay
        )

    def _show(self) -> None:
        """Show and log the number of items taken down."""
        self._metrics.takedowns.set(len(self._ids))
        log.info("%s items are taken down", f"{len(self._ids):,}")


class _IdList(NamedTuple):
    """The distinct ids of a takedown list; `problem` is the first malformed line, "" if there is none."""

    ids: pa.Array
    problem: str


def _has_item(bundle: LoadedBundle, ids: pa.Array) -> bool:
    """Return whether a bundle, cold items included, has an item with one of these ids."""
    view = bundle.state.view
    rows = bundle.rows if view is None or view.cold is None else view.cold.rows
    return bool((rows.item_rows.look_up(ItemKeys(hash_ids(ids, bundle.key_secret))) >= 0).any())


def _decoded_ids(data: bytes) -> _IdList:
    """Decode a takedown list: UTF-8 text with an id a line, verbatim; malformed lines are left out."""
    ids: set[str] = set()
    problem = ""
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
        try:
            ids.add(_id_in(line))
        except ValueError as error:
            problem = problem or f"line {number} {error}: {line[:_SHOWN]!r}"
    ids.discard("")
    if problem and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        problem = "it is UTF-16, save it as UTF-8"
    elif problem and data.startswith(_GZIP):
        problem = "it is gzipped, unpack it"
    return _IdList(pa.array(sorted(ids), pa.string()), problem)


def _id_in(line: bytes) -> str:
    """Return the id on a line, empty for a blank line; raises `ValueError` if the line has another format."""
    try:
        text = line.decode().strip()
    except UnicodeDecodeError:
        raise ValueError("is no UTF-8") from None
    if any(unicodedata.category(sign) == "Cc" for sign in text):
        raise ValueError("holds control characters")
    if len(text.encode()) > MAX_ID_BYTES:
        raise ValueError(f"is longer than the {MAX_ID_BYTES} bytes of an id")
    if text[:1] + text[-1:] in _WRAPPED or (text[:1] in _QUOTES and text[-2:] in _QUOTED):
        raise ValueError("is JSON or quoted, where an id stands as it is")
    return text


def _same_base(bundle: LoadedBundle, other: LoadedBundle) -> bool:
    return bundle.rows.keys.base is other.rows.keys.base and bundle.key_secret == other.key_secret
