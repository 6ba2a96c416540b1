"""Contract 4, the bundle: one servable version of the model, its index and its ids.

A bundle lives in ``bundles/<version>/`` and is never rewritten. ``bundles/CURRENT`` names the promoted one and
is replaced atomically; with ``bundles/PIN`` an operator keeps one version promoted. Rows of the index,
of the embeddings and of the items are the same numbers.
"""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, NewType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from contracts import columns
from contracts.artefacts import MANIFEST
from contracts.documents import Document, read_document, write_document
from contracts.errors import CorruptArtefactError
from contracts.models import StoredModel
from contracts.storage import FileEntry, Store

__all__ = [
    "BUNDLE_ITEMS_SCHEMA",
    "BundleFile",
    "BundleLog",
    "BundleManifest",
    "IndexFit",
    "IndexInfo",
    "IndexRows",
    "Pin",
    "Withdrawal",
]

logger = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
_CURRENT: Final = "bundles/CURRENT"
_PIN: Final = "bundles/PIN"
_WITHDRAWAL: Final = "VERDICT.json"
_GRACE_SECONDS: Final = 3600.0
"""An export writes its manifest well within this time; a folder without one is left over from a killed export."""

Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z._-]+$", max_length=200)]
"""Names a bundle. The trainer's sort in the order of the stream and end in a digest of what the bundle holds."""

BUNDLE_ITEMS_SCHEMA: Final = pa.schema(
    [
        pa.field(columns.ROW, pa.int32(), nullable=False),
        pa.field(columns.ITEM_ID, pa.string(), nullable=False),
        pa.field(columns.ITEM_KEY, pa.int64(), nullable=False),
        pa.field(columns.POPULARITY, pa.float64(), nullable=False),
    ]
)
"""Row i describes index row i; `popularity` is the decayed count of the frequency view at export."""

IndexRows = NewType("IndexRows", npt.NDArray[np.int64])
"""Rows of a bundle's index, of any shape; -1 where there is none."""


class BundleFile:
    """The files of a bundle.

    ``embeddings.npy`` is float32, shape (2 + items, dimension): row 0 is padding (zeros), row 1 stands for
    every item without a row of its own, row 2 + i is the *input* embedding of index row i. The user tower
    (``tower.onnx``) takes ``history`` float32 (batch, length, dimension), gathered from it oldest first and
    padded on the left, and ``mask`` bool (batch, length), True for real items; it returns ``user`` float32
    (batch, dimension). ``vectors.npy`` holds what the index holds, uncompressed: float32 (items, dimension).
    """

    INDEX: Final = "index.faiss"
    ITEMS: Final = "items.parquet"
    EMBEDDINGS: Final = "embeddings.npy"
    VECTORS: Final = "vectors.npy"
    TOWER: Final = "tower.onnx"


class IndexFit(StoredModel):
    """How well the lists of an IVF index fit the items: they are kept between exports (docs/bundles.md)."""

    trained_at: float = Field(description="when its centroids were trained, wall clock, seconds since 1970")
    trained_items: int = Field(ge=1, description="items that they were trained on")
    trained_lists: int = Field(ge=1, description="lists then; repairs append more")
    cosine: float = Field(description="5 % quantile, at the training, of the cosine of an item and its centroid")
    repairs: int = Field(default=0, ge=0, description="local repairs since")
    changed: int = Field(default=0, ge=0, description="new and moved items of this export")
    unfit: float = Field(default=0.0, description="share of these whose cosine is below `cosine`")
    recall: float | None = Field(default=None, description="of the exact best, on the newest window's queries")
    recall_trained: float | None = Field(default=None, description="the same when the lists were new")


class IndexInfo(StoredModel):
    """The index's type (a FAISS factory string), its search parameters, and how well its lists fit."""

    type: str
    parameters: dict[str, int | float] = Field(default_factory=dict)
    fit: IndexFit | None = None


class BundleManifest(Document):
    """``MANIFEST.json`` of a bundle.

    Training follows the commit order, so the model has been trained on all windows up to `trained_sequence`.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    version: Version
    created_at: float = Field(description="wall clock, seconds since 1970")
    trained_sequence: int = Field(ge=0)
    trained_window: str = Field(description="name of the last window trained on; its sketch gave log Q last")
    max_event_ms: int = Field(description="newest event trained on, event time in milliseconds")
    items: int = Field(ge=0)
    dimension: int = Field(ge=1)
    metric: Literal["inner_product", "cosine"]
    history_length: int = Field(ge=1)
    index: IndexInfo
    evaluation: dict[str, float] = Field(default_factory=dict, description="prequential metrics, name -> value")
    promoted: bool = Field(description="whether the gate let it through")
    verdict: str = Field(description="what the gate said, in a sentence")
    software_version: str
    files: tuple[FileEntry, ...]

    @property
    def folder(self) -> str:
        """The directory, relative to the store."""
        return f"bundles/{self.version}"

    def file(self, name: str) -> FileEntry:
        """Return one file's entry; raises `CorruptArtefactError` where the manifest does not list it."""
        for entry in self.files:
            if entry.name == name:
                return entry
        raise CorruptArtefactError(f"{self.folder}/{MANIFEST}", f"does not list {name}")


class _Current(Document):
    version: Version


class Pin(Document):
    """``bundles/PIN``: no bundle but `version` is promoted until an operator lifts it."""

    version: Version
    by: str = Field(description="who set it")
    at: float = Field(description="wall clock, seconds since 1970")
    why: str = ""

    @property
    def sentence(self) -> str:
        """The pin in a sentence, for verdicts and listings."""
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M")
        return f"pinned to {self.version} by {self.by} at {when} UTC" + (f": {self.why}" if self.why else "")


class Withdrawal(Document):
    """``VERDICT.json`` of a bundle that was promoted and failed on events that it had not been trained on."""

    version: Version
    fallback: Version = Field(description="the bundle that is served instead")
    window: str = Field(description="the window that decided it")
    sequence: int = Field(ge=0)
    cases: int = Field(ge=0, description="events that both were measured on")
    at: float = Field(description="wall clock, seconds since 1970")
    verdict: str


@dataclass(frozen=True)
class BundleLog:
    """The bundles of a store."""

    store: Store

    def current(self) -> str | None:
        """Return the promoted version, or None before the first; raises `CorruptArtefactError`."""
        try:
            return read_document(self.store, _CURRENT, _Current).version
        except FileNotFoundError:
            return None

    def manifest(self, version: str) -> BundleManifest:
        """Return a bundle's manifest; raises `CorruptArtefactError` or `FileNotFoundError`."""
        name = f"bundles/{version}/{MANIFEST}"
        manifest = read_document(self.store, name, BundleManifest)
        if manifest.version != version:
            problem = f"describes version {manifest.version}: it was copied from there; export the bundle again"
            raise CorruptArtefactError(self.store.path(name), problem)
        return manifest

    def versions(self) -> list[str]:
        """Return the versions that exist, in order of name, which is the order of the stream."""
        return [name.split("/")[1] for name in self.store.glob(f"bundles/*/{MANIFEST}")]

    def manifests(self) -> list[BundleManifest]:
        """Return the readable bundles in the order of export, which after a retraining differs from that of names.

        One that is retired meanwhile is left out; so is one with a damaged manifest, which the log names.
        """
        found = []
        for version in self.versions():
            try:
                found.append(self.manifest(version))
            except FileNotFoundError:
                continue
            except CorruptArtefactError as error:
                logger.warning("bundle %s is left out: %s", version, error)
        return sorted(found, key=lambda manifest: (manifest.created_at, manifest.version))

    def read(self, manifest: BundleManifest, name: str) -> bytes:
        """Return a verified file of a bundle; raises `CorruptArtefactError`."""
        return self.store.read_verified(manifest.folder, manifest.file(name))

    def commit(self, manifest: BundleManifest) -> None:
        """Write the manifest, which makes the bundle exist; its files must have been written."""
        write_document(self.store, f"{manifest.folder}/{MANIFEST}", manifest)

    def promote(self, version: str) -> None:
        """Point ``CURRENT`` at a version, even if another one is pinned.

        Raises
        ------
        FileNotFoundError
            Where there is no such bundle.
        CorruptArtefactError
            Where its manifest is damaged.
        """
        self.manifest(version)
        write_document(self.store, _CURRENT, _Current(version=version))

    def publish(self, version: str) -> bool:
        """Promote a version unless a bundle is pinned; say whether that was done. Raises as `promote` and `pin`.

        An operator writes the pin before ``CURRENT``: one that is found afterwards was set meanwhile, and wins.
        """
        if self.pin() is None:
            self.promote(version)
        if (pin := self.pin()) is None:
            return True
        if self._serves_other_than(pin.version):
            self.promote(pin.version)
        return False

    def _serves_other_than(self, version: str) -> bool:
        try:
            return self.current() != version
        except CorruptArtefactError:
            return True

    def pin(self) -> Pin | None:
        """Return the operator's pin, or None; raises `CorruptArtefactError`."""
        try:
            return read_document(self.store, _PIN, Pin)
        except FileNotFoundError:
            return None

    def set_pin(self, pin: Pin) -> None:
        """Promote a version and keep it promoted, over any other pin; raises as `promote`."""
        self.manifest(pin.version)
        write_document(self.store, _PIN, pin)
        self.promote(pin.version)

    def lift_pin(self) -> None:
        """Let the trainer promote again; nothing happens where nothing is pinned."""
        self.store.remove(_PIN)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Record that a version failed, so that the trainer does not promote it again."""
        write_document(self.store, f"bundles/{withdrawal.version}/{_WITHDRAWAL}", withdrawal)

    def withdrawal(self, version: str) -> Withdrawal | None:
        """Return why a version was withdrawn, or None; raises `CorruptArtefactError`."""
        try:
            return read_document(self.store, f"bundles/{version}/{_WITHDRAWAL}", Withdrawal)
        except FileNotFoundError:
            return None

    def retire(self, keep: int = 3, spare: Collection[str] = ()) -> list[str]:
        """Remove all but the last `keep` bundles, the promoted, the pinned and the spared; return the versions removed.

        What a killed export has left is removed too, after an hour. Raises `CorruptArtefactError` and removes
        nothing where ``CURRENT`` or ``PIN`` is damaged: what they name is unknown then.
        """
        pin = self.pin()
        kept = {self.current(), *spare} | ({pin.version} if pin else set())
        removed = [manifest.version for manifest in self.manifests()[:-keep] if manifest.version not in kept]
        for version in removed:
            # Without its manifest a half-removed bundle does not exist.
            self.store.remove(f"bundles/{version}/{MANIFEST}")
            self.store.remove(f"bundles/{version}")
        self._remove_leftovers(time.time() - _GRACE_SECONDS)
        return removed

    def _remove_leftovers(self, before: float) -> None:
        """Remove folders without a manifest in which nothing has been written since a time."""
        files: dict[str, list[str]] = {}
        for name in self.store.glob("bundles/*/*"):
            files.setdefault(f"bundles/{name.split('/')[1]}", []).append(name)
        for folder, names in files.items():
            if f"{folder}/{MANIFEST}" not in names and all(self._is_older(name, before) for name in names):
                self.store.remove(folder)

    def _is_older(self, name: str, before: float) -> bool:
        try:
            return self.store.modified(name) < before
        except FileNotFoundError:  # a temporary file that has been renamed in the meantime: another process writes here
            return False
