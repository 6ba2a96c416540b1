"""Contract 4, the bundle: one servable version of the model, its index and its ids.

A bundle lives in ``bundles/<version>/`` and is never rewritten. ``bundles/CURRENT`` names the promoted one and
is replaced atomically. Rows of the index, of the embeddings and of the items are the same numbers.
"""

from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from contracts import columns
from contracts.artefacts import MANIFEST, read_manifest, write_manifest
from contracts.errors import CorruptArtefactError
from contracts.storage import FileEntry, Store

__all__ = ["BUNDLE_ITEMS_SCHEMA", "BundleFile", "BundleLog", "BundleManifest", "IndexInfo"]

SCHEMA_VERSION: Final = 1
_CURRENT: Final = "bundles/CURRENT"

BUNDLE_ITEMS_SCHEMA: Final = pa.schema(
    [
        pa.field(columns.ROW, pa.int32(), nullable=False),
        pa.field(columns.ITEM_ID, pa.string(), nullable=False),
        pa.field(columns.ITEM_KEY, pa.int64(), nullable=False),
        pa.field(columns.POPULARITY, pa.float64(), nullable=False),
    ]
)
"""Row i describes index row i; `popularity` is the decayed count of the frequency view at export."""


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


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class IndexInfo(_Model):
    """The index's type (a FAISS factory string) and its search parameters."""

    type: str
    parameters: dict[str, int | float] = Field(default_factory=dict)


class BundleManifest(_Model):
    """``MANIFEST.json`` of a bundle.

    Training follows the commit order, so `trained_sequence` tells every window that the model has learnt:
    those whose sequence is not above it.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    version: str = Field(pattern=r"^[0-9A-Za-z._-]+$")
    created_at: float = Field(description="wall clock, seconds since 1970")
    trained_sequence: int = Field(ge=0)
    trained_window: str = Field(description="name of the last window trained on; its sketch gave log Q last")
    max_event_ms: int = Field(description="newest event trained on, event time in milliseconds")
    items: int = Field(ge=0)
    dimension: int = Field(ge=1)
    metric: Literal["inner_product", "cosine"]
    history_length: int = Field(ge=1)
    index: IndexInfo
    evaluation: dict[str, float] = Field(default_factory=dict, description="prequential figures, name -> value")
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


@dataclass(frozen=True)
class BundleLog:
    """The bundles of a store."""

    store: Store

    def current(self) -> str | None:
        """Return the promoted version, or None before the first."""
        try:
            return self.store.read(_CURRENT).decode().strip()
        except FileNotFoundError:
            return None

    def manifest(self, version: str) -> BundleManifest:
        """Return a bundle's manifest; raises `CorruptArtefactError` or `FileNotFoundError`."""
        return read_manifest(self.store, f"bundles/{version}", BundleManifest)

    def versions(self) -> list[str]:
        """Return the versions that exist, in order of name (which is the order of export)."""
        return [name.split("/")[1] for name in self.store.glob(f"bundles/*/{MANIFEST}")]

    def read(self, manifest: BundleManifest, name: str) -> bytes:
        """Return a verified file of a bundle; raises `CorruptArtefactError`."""
        return self.store.read_verified(manifest.folder, manifest.file(name))

    def commit(self, manifest: BundleManifest) -> None:
        """Make the bundle exist; its files must have been written."""
        write_manifest(self.store, manifest.folder, manifest)

    def promote(self, version: str) -> None:
        """Point ``CURRENT`` at a version; raises `FileNotFoundError` where there is no such bundle."""
        self.manifest(version)
        self.store.write(_CURRENT, f"{version}\n".encode())

    def retire(self, keep: int = 3) -> list[str]:
        """Remove all but the last `keep` bundles and the promoted one; return the versions removed."""
        current = self.current()
        doomed = [version for version in self.versions()[:-keep] if version != current]
        for version in doomed:
            # Without its manifest a half-removed bundle does not exist.
            self.store.remove(f"bundles/{version}/{MANIFEST}")
            self.store.remove(f"bundles/{version}")
        return doomed
