"""The catalogue and the items taken down, from their files: read again when they change.

A file that cannot be read changes nothing: what was read before stays, the log says why, and a metric shows it. Items
taken down are followed by themselves, so that neither a large catalogue nor the loading of a bundle delays them.
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
from weir.serving.index.eligibility import TaggedRows, moved_rows
from weir.serving.metrics import CatalogueMetrics

__all__ = ["LOOK_SECONDS", "CatalogueFiles", "CatalogueFollower", "Takedown"]

Content = TypeVar("Content")

_GZIP: Final = b"\x1f\x8b"
_WRAPPED: Final = frozenset({'""', "''", "{}", "[]"})
"""First and last characters of a line of another format."""
_QUOTES: Final = "\"'"
_QUOTED: Final = frozenset({'",', "',"})
_SHOWN: Final = 60

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
    _once: LogOnce = field(default_factory=lambda: LogOnce(log))

    def __post_init__(self) -> None:
        self._file = WatchedFile(self.url)

    def look(self) -> bool:
        """Read the file if it has changed; say whether it was read. What cannot be read is logged once."""
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
        self._is_judged = False

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
            self._is_judged = False
            self._metrics.read(found, time.perf_counter() - started)
            left_out = f", {found.refused:,} rows left out, such as: {found.problem}" if found.refused else ""
            log.info("catalogue: %s items, %s tags%s", f"{len(found):,}", f"{len(found.tags):,}", left_out)
        self._metrics.unusable.labels("catalogue").set(self._file.unusable)
        for bundle in served:
            # Also where a bundle was swapped in while the catalogue was read.
            self.describe(bundle)
        if served and not self._is_judged and self._file.content is not None:
            self._is_judged = True
            if len(self._file.content) and not any(map(_is_described, served)):
                log.warning("no served item has one of the ids in %s: it changes nothing", self._file.url)

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


def _is_described(bundle: LoadedBundle) -> bool:
    """Say whether the catalogue names an item that the bundle answers with."""
    tagged = bundle.shelf.tagged
    if tagged is None:
        return False
    return tagged.cold is not None or bool((tagged.entries_of(bundle.rows, bundle.rows.live) >= 0).any())


class Takedown:
    """Keeps the ids of items that must not be returned: a line each in a text file of UTF-8.

    Before the file can be read there is none. After that, an id stays taken down until a list without it comes that is
    understood as a whole and names a served item, or the file is emptied: a list in a wrong format, or none, takes
    further items down at most.
    """

    def __init__(self, url: str | None, metrics: CatalogueMetrics) -> None:
        self._metrics = metrics
        self._file = _Followed(url, _lines_of) if url else None
        self._sound, self._ids = _NO_IDS, _NO_IDS
        self._unsure: _Lines | None = None
        self._keys: tuple[pa.Array | None, str, ItemKeys] = (None, "", ItemKeys(np.empty(0, np.int64)))

    @property
    def is_named(self) -> bool:
        """Say whether there is a file to follow."""
        return self._file is not None

    def look(self, *served: LoadedBundle) -> None:
        """Read the file if it has changed, and look whether the served bundles know its ids; raises nothing."""
        if self._file is None:
            return
        if self._file.look() and self._file.content is not None:
            self._take(self._file.content)
        if self._unsure is not None and served:
            self._judge(self._unsure, served)
        is_understood = self._file.content is None or not self._file.content.problem
        self._metrics.unusable.labels("takedown").set(self._file.unusable or not is_understood)

    def keys(self, secret: str) -> ItemKeys:
        """Return the keys of the items, in a store with this secret; the same array until the file changes."""
        ids = self._ids
        known_ids, known_secret, keys = self._keys
        if ids is not known_ids or secret != known_secret:
            keys = ItemKeys(hash_ids(ids, secret))
            self._keys = (ids, secret, keys)
        return keys

    def _take(self, found: "_Lines") -> None:
        """Take the ids of a new list down, beside those of the last sound one until the new one is judged."""
        if self._unsure is not None:
            self._sound = self._unsure.ids  # there was no bundle to judge it by
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
        """Let a list replace the one before if it names an item that is served; else warn."""
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
    """The distinct ids of a list, and what is wrong with the first line that names none; empty where all do."""

    ids: pa.Array
    problem: str


_NO_IDS: Final = pa.array([], pa.string())


def _together(one: pa.Array, other: pa.Array) -> pa.Array:
    return pc.unique(pa.concat_arrays([one, other]))


def _is_known(bundle: LoadedBundle, ids: pa.Array) -> bool:
    """Say whether a bundle, or what it answers from features, has one of the items."""
    tagged = bundle.shelf.tagged
    rows = bundle.rows if tagged is None or tagged.cold is None else tagged.cold.rows
    return bool((rows.item_rows.look_up(ItemKeys(hash_ids(ids, bundle.key_secret))) >= 0).any())


def _lines_of(data: bytes) -> _Lines:
    """Return the ids of a text file of UTF-8, a line each, as they stand; lines that name none are no ids."""
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
    """Return the id that a line is, empty where it has none; raises `ValueError` for a line of another format."""
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
