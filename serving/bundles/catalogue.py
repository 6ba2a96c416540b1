"""The catalogue and the takedown list, reloaded when their files change.

If a file cannot be read, the content read before stays, the log says why, and a metric shows it. The takedown list is
checked on its own, so that neither a large catalogue nor the loading of a bundle delays it.
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

Content = TypeVar("Content")

_GZIP: Final = b"\x1f\x8b"
_WRAPPED: Final = frozenset({'""', "''", "{}", "[]"})
"""First and last character of a JSON or quoted line."""
_QUOTES: Final = "\"'"
_QUOTED: Final = frozenset({'",', "',"})
_SHOWN: Final = 60

LOOK_SECONDS: Final = 0.25
"""Seconds between two checks of the takedown list: an item must disappear within a second."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CatalogueFiles:
    """Paths or URLs of the catalogue and of the takedown list; None: no file.

    `features` names the item features among the catalogue's columns, `missing_ids` the texts that mean "no item".
    """

    catalogue: str | None = None
    takedown: str | None = None
    features: FeatureNames = field(default_factory=FeatureNames)
    missing_ids: tuple[str, ...] = MISSING_IDS


@dataclass
class _Followed(Generic[Content]):
    """A watched file: its last decoded `content`, None before the first; `unusable` if the newest state is unread."""

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
        """Read the file if it has changed; return whether it was read. A failure is logged once."""
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
    """Keeps the catalogue, and its view of the served bundles' rows.

    One thread calls `look`; the thread that loads bundles also calls `describe`.
    """

    def __init__(self, files: CatalogueFiles, metrics: CatalogueMetrics, most_cold: int = 0) -> None:
        url, features, missing = files.catalogue, files.features, files.missing_ids
        self._metrics, self._most_cold = metrics, most_cold
        self._file = _Followed(url, lambda data: decode_catalogue(url, data, features, missing)) if url else None
        self._is_judged = False

    @property
    def is_named(self) -> bool:
        """Whether there is a file to follow."""
        return self._file is not None

    def look(self, *served: LoadedBundle) -> None:
        """Read the catalogue if it has changed, and apply it to the served bundles; never raises."""
        if self._file is None:
            return
        started = time.perf_counter()
        if self._file.look() and (found := self._file.content) is not None:
            self._is_judged = False
            self._metrics.read(found, time.perf_counter() - started)
            left_out = f", {found.refused:,} rows left out, such as: {found.problem}" if found.refused else ""
            log.info("catalogue: %s items, %s tags%s", f"{len(found):,}", f"{len(found.tags):,}", left_out)
        self._metrics.unusable.labels("catalogue").set(self._file.unusable)
        for bundle in served:
            # Also bundles that were swapped in while the catalogue was read.
            self.describe(bundle)
        if served and not self._is_judged and self._file.content is not None:
            self._is_judged = True
            if len(self._file.content) and not any(map(_is_described, served)):
                log.warning("no served item has one of the ids in %s: it changes nothing", self._file.url)

    def describe(self, bundle: LoadedBundle, before: LoadedBundle | None = None) -> None:
        """Set the catalogue's view of a bundle's rows, unless it is up to date.

        If the bundle shares its base with `before`, only rows that hold other items are looked up.
        """
        catalogue = self._file.content if self._file else None
        if catalogue is None or ((known := bundle.state.view) is not None and known.catalogue is catalogue):
            return
        known = before.state.view if before is not None and _same_base(before, bundle) else None
        if known is not None and known.catalogue is not catalogue:
            known = None
        cold = self._cold(bundle, catalogue, before, known)
        rows = bundle.rows if cold is None else cold.rows
        if before is not None and known is not None:
            tagged = known.moved(before.rows if known.cold is None else known.cold.rows, rows)
        else:
            tagged = CatalogueView.of(catalogue, rows, bundle.key_secret)
        bundle.state.view = replace(tagged, cold=cold)
        self._metrics.cold.set(0 if cold is None else len(cold))
        self._metrics.cold_left_out.set(0 if cold is None else cold.left_out)

    def _cold(
        self, bundle: LoadedBundle, catalogue: Catalogue, before: LoadedBundle | None, known: CatalogueView | None
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


def _is_described(bundle: LoadedBundle) -> bool:
    """Return whether the catalogue names an item that the bundle can return."""
    tagged = bundle.state.view
    if tagged is None:
        return False
    return tagged.cold is not None or bool((tagged.entries_of(bundle.rows, bundle.rows.live) >= 0).any())


class Takedown:
    """Keeps the ids of items that must not be returned, from a UTF-8 text file with one id a line.

    Nothing is taken down before the first read. An id stays taken down until a well-formed list without it names a
    served item, or the file is emptied; a malformed, unjudged or missing list can only take further items down.
    """

    def __init__(self, url: str | None, metrics: CatalogueMetrics) -> None:
        self._metrics = metrics
        self._file = _Followed(url, _lines_of) if url else None
        self._sound, self._ids = _NO_IDS, _NO_IDS
        self._unsure: _Lines | None = None
        self._keys: tuple[pa.Array | None, str, ItemKeys] = (None, "", ItemKeys(np.empty(0, np.int64)))

    @property
    def is_named(self) -> bool:
        """Whether there is a file to follow."""
        return self._file is not None

    def look(self, *served: LoadedBundle) -> None:
        """Read the list if it has changed, and check that served bundles know its ids; never raises."""
        if self._file is None:
            return
        if self._file.look() and self._file.content is not None:
            self._take(self._file.content)
        if self._unsure is not None and served:
            self._judge(self._unsure, served)
        is_understood = self._file.content is None or not self._file.content.problem
        self._metrics.unusable.labels("takedown").set(self._file.unusable or not is_understood)

    def keys(self, secret: str) -> ItemKeys:
        """Return the keys of the items under the store's secret; the same array until the list changes."""
        ids = self._ids
        known_ids, known_secret, keys = self._keys
        if ids is not known_ids or secret != known_secret:
            keys = ItemKeys(hash_ids(ids, secret))
            self._keys = (ids, secret, keys)
        return keys

    def _take(self, found: "_Lines") -> None:
        """Take the ids of a new list down, in addition to the last accepted list until the new one is judged."""
        if self._unsure is not None:
            self._sound = self._unsure.ids  # no bundle was there to judge it by
        self._unsure = found if len(found.ids) and not found.problem else None
        if not (len(found.ids) or found.problem):
            self._sound = self._ids = _NO_IDS
        else:
            self._ids = _together(self._sound, found.ids)
        if found.problem:
            before = f"the {len(self._sound):,} items of the list before stay taken down, beside what it names"
            log.error(
                "%s cannot be understood as a list of ids, %s: %s", self._file and self._file.url, before, found.problem
            )
        self._tell()

    def _judge(self, found: "_Lines", served: Sequence[LoadedBundle]) -> None:
        """Accept a list, which then replaces the one before, if it names a served item; else warn."""
        self._unsure = None
        if any(_is_known(bundle, found.ids) for bundle in served):
            self._sound, before = found.ids, self._ids
            if len(before) != len(found.ids):
                self._ids = found.ids
                self._tell()
            return
        stay = (
            f": the {len(self._sound):,} of the list before stay, empty the file to lift them"
            if len(self._sound)
            else ""
        )
        log.warning(
            "no served item has one of the %s ids in %s%s", f"{len(found.ids):,}", self._file and self._file.url, stay
        )

    def _tell(self) -> None:
        self._metrics.takedowns.set(len(self._ids))
        log.info("%s items are taken down", f"{len(self._ids):,}")


class _Lines(NamedTuple):
    """The distinct ids of a list, and the first problem with a line; empty if every line is well-formed."""

    ids: pa.Array
    problem: str


_NO_IDS: Final = pa.array([], pa.string())


def _together(one: pa.Array, other: pa.Array) -> pa.Array:
    return pc.unique(pa.concat_arrays([one, other]))


def _is_known(bundle: LoadedBundle, ids: pa.Array) -> bool:
    """Return whether a bundle, cold items included, has one of the items."""
    tagged = bundle.state.view
    rows = bundle.rows if tagged is None or tagged.cold is None else tagged.cold.rows
    return bool((rows.item_rows.look_up(ItemKeys(hash_ids(ids, bundle.key_secret))) >= 0).any())


def _lines_of(data: bytes) -> _Lines:
    """Return the ids of a UTF-8 text file, one a line, verbatim; malformed lines are left out."""
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
    return _Lines(pa.array(sorted(ids), pa.string()), problem)


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


def _same_base(one: LoadedBundle, other: LoadedBundle) -> bool:
    return one.rows.keys.base is other.rows.keys.base and one.key_secret == other.key_secret
