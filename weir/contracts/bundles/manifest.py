"""The manifest of a bundle: identity, files, and the recipe to train it again."""

from typing import Annotated, Any, Final, Literal, NewType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from weir.contracts.base import columns
from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.base.models import CommitRef, StoredModel
from weir.contracts.storage.artefacts import MANIFEST
from weir.contracts.storage.documents import Document
from weir.contracts.storage.store import FileEntry

__all__ = [
    "BUNDLE_ITEMS_SCHEMA",
    "COMPACTED",
    "BundleFile",
    "BundleManifest",
    "BundleRef",
    "IndexFit",
    "IndexInfo",
    "IndexRows",
    "Recipe",
    "Stretch",
    "Version",
]


class Stretch(StoredModel):
    """A training segment: consecutive steps with the same ranks, threads, kind of device and libraries."""

    sequence: int = Field(ge=0, description="the window in which it starts")
    step: int = Field(ge=0, description="steps before it")
    ranks: int = Field(ge=1, description="processes that shared each step")
    threads: int = Field(ge=1, description="threads of each; sums are cut into as many parts")
    device: Literal["cpu", "cuda"]
    software: dict[str, str] = Field(description="library -> version")

    def is_like(self, other: "Stretch") -> bool:
        """Return whether `other` was trained with the same ranks, threads, device and software."""
        here, there = (one.model_dump(exclude={"sequence", "step"}) for one in (self, other))
        return here == there


class Recipe(StoredModel):
    """Trainer settings that decide training and search, and the training segments (`Stretch`) in order."""

    settings: dict[str, Any]
    stretches: tuple[Stretch, ...]


Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z._-]+$", max_length=200)]
"""Name of a bundle. The trainer's versions sort in the order of the stream and end in a digest of the bundle's
content."""

BUNDLE_ITEMS_SCHEMA: Final = pa.schema(
    [
        pa.field(columns.ROW, pa.int32(), nullable=False),
        pa.field(columns.ITEM_ID, pa.string(), nullable=False),
        pa.field(columns.ITEM_KEY, pa.int64(), nullable=False),
        pa.field(columns.POPULARITY, pa.float64(), nullable=False),
    ]
)
"""`row` is the index row; `popularity` is the decayed count of the frequency view at export."""

IndexRows = NewType("IndexRows", npt.NDArray[np.int64])
"""Rows of a bundle's index, of any shape; -1 means no row."""


COMPACTED: Final = "complete"
"""Subfolder of a delta for the complete bundle that stands for the delta and its chain."""


class BundleFile:
    """File names of a bundle.

    ``embeddings.npy`` is float32, shape (2 + items, dimension): row 0 is padding (zeros), row 1 stands for every item
    without a row of its own, row 2 + i is the *input* embedding of index row i. The user tower (``tower.onnx``) takes
    ``history`` float32 (batch, length, dimension), gathered from it oldest first and padded on the left, and ``mask``
    bool (batch, length), True for real items; it returns ``user`` float32 (batch, dimension). ``vectors.npy`` holds the
    vectors of the index, uncompressed: float32 (items, dimension).

    A delta has no index. Its ``items.parquet``, ``vectors.npy`` and ``embeddings.npy`` hold only the m changed and new
    rows; `row` of the items is their index row, and the embeddings start with rows 0 and 1. ``removed.npy`` int32 (r,)
    has the rows that lose their item, until a later delta reuses them. If the index has inverted lists, ``lists.npy``
    int32 (m,) are the lists of the rows, and ``centroids.npy`` float32 (c, dimension) the centroids of the lists that
    the delta appends.

    If windows have item features, complete bundles and deltas have ``features.npz``: the vectors that features add to
    an item's embedding (`weir.contracts.interactions.features`), from which the server also answers for an item without
    a row. If examples have user features, ``user-features.npz`` has, in the same form, the vectors that they add to the
    output of the user tower before it is normalised.

    If there is a second phase, complete bundles and deltas have ``scorer.onnx``, which re-scores candidates: it takes
    ``user`` float32 (batch, dimension), the query of the index, ``items`` float32 (items, dimension), rows of
    ``vectors.npy``, and ``candidates`` int64 (batch, candidates), indexes into ``items``; it returns ``score`` float32
    (batch, candidates).

    A compacted bundle has the files of a complete one, and the row numbers of its delta, so a row may have no item:
    ``items.parquet`` lacks it, the index does not find it, and its vectors are zeros.
    """

    INDEX: Final = "index.faiss"
    ITEMS: Final = "items.parquet"
    EMBEDDINGS: Final = "embeddings.npy"
    VECTORS: Final = "vectors.npy"
    TOWER: Final = "tower.onnx"
    SCORER: Final = "scorer.onnx"
    LISTS: Final = "lists.npy"
    REMOVED: Final = "removed.npy"
    CENTROIDS: Final = "centroids.npy"
    FEATURES: Final = "features.npz"
    USER_FEATURES: Final = "user-features.npz"


class IndexFit(StoredModel):
    """How well the lists of an IVF index fit the items; exports keep the lists (docs/store.md)."""

    trained_at: float = Field(description="when its centroids were trained, wall clock, seconds since 1970")
    trained_items: int = Field(ge=1, description="items that they were trained on")
    trained_lists: int = Field(ge=1, description="lists then; repairs append more")
    cosine: float = Field(description="5 % quantile, at the training, of the cosine of an item and its centroid")
    repairs: int = Field(default=0, ge=0, description="local repairs since")
    changed: int = Field(default=0, ge=0, description="new and moved items of this export")
    unfit: float = Field(default=0.0, description="share of these whose cosine is below `cosine`")
    unfit_left: float = Field(default=0.0, description="the same share right after the newest repair")
    recall: float | None = Field(default=None, description="of the exact best, on the newest window's queries")
    recall_trained: float | None = Field(default=None, description="the same when the lists were new")
    unmeasured: int = Field(default=0, ge=0, description="rows that deltas have published since `recall` was measured")


class IndexInfo(StoredModel):
    """The index's type (a FAISS factory string), its search parameters, and the fit of its lists."""

    type: str
    parameters: dict[str, int | float] = Field(default_factory=dict)
    fit: IndexFit | None = None


class BundleRef(StoredModel):
    """Reference to a bundle: its version, and the checksum of its manifest, so that no other bundle can replace it."""

    version: Version
    checksum: str


class BundleManifest(Document):
    """``MANIFEST.json`` of a bundle.

    Training follows the commit order: the model has been trained on all windows up to `trained_sequence`.
    """

    schema_version: Literal[1, 2] = Field(default=1, description="1: a complete bundle; 2: a delta")
    version: Version
    variant: str = Field(default="main", description="the line that it is of; main: that of the plain settings")
    created_at: float = Field(description="wall clock, seconds since 1970")
    trained_sequence: int = Field(ge=0)
    trained_window: str = Field(description="name of the last window trained on; its sketch gave log Q last")
    trained_commit: CommitRef | None = Field(
        default=None, description="the commit of that window; none: an earlier version made the bundle"
    )
    max_event_ms: int = Field(description="newest event trained on, event time in milliseconds")
    items: int = Field(ge=0)
    dimension: int = Field(ge=1)
    metric: Literal["inner_product", "cosine"]
    history_length: int = Field(ge=1, description="items of a history that the tower takes")
    history_read: int | None = Field(
        default=None, ge=1, description="newest of them that windows had when it was trained; none: all"
    )
    index: IndexInfo
    evaluation: dict[str, float] = Field(default_factory=dict, description="prequential metrics, name -> value")
    promoted: bool = Field(description="whether the gate let it through")
    verdict: str = Field(description="what the gate said, in a sentence")
    software_version: str
    parent: BundleRef | None = Field(default=None, description="the bundle that this one changes; none: it is complete")
    base: Version | None = Field(default=None, description="the complete bundle at the start of the chain of parents")
    depth: int = Field(default=0, ge=0, description="deltas since the complete bundle, this one included")
    changed: int = Field(default=0, ge=0, description="rows that a delta changes or adds")
    removed: int = Field(default=0, ge=0, description="rows that a delta removes")
    compacts: BundleRef | None = Field(
        default=None, description="the delta of the same version that this complete bundle stands for, row by row"
    )
    moved: float | None = Field(
        default=None,
        description="share of items that are new or off by more than the bound since they were last published; none: "
        "there was no bundle to compare with",
    )
    rescored: int | None = Field(
        default=None, ge=1, description="best items of the index that the scorer scores again; none: there is no scorer"
    )
    recipe: Recipe | None = Field(default=None, description="what `weir replay-bundle` makes it again by")
    files: tuple[FileEntry, ...]

    @model_serializer(mode="wrap")
    def _leave_out_what_is_absent(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialise(self)
        for name in ("rescored", "history_read", "trained_commit"):
            if getattr(self, name) is None:
                fields.pop(name, None)
        return fields

    @property
    def folder(self) -> str:
        """The directory, relative to the store."""
        folder = f"bundles/{self.version}"
        return folder if self.compacts is None else f"{folder}/{COMPACTED}"

    @property
    def newest(self) -> int:
        """The largest number of history items that a query uses, the newest known: the model was trained on no more."""
        return min(self.history_length, self.history_read or self.history_length)

    @property
    def rows(self) -> int:
        """Number of rows of a complete bundle; rows of a compacted bundle may have no item."""
        return self.items if self.compacts is None else self.file(BundleFile.VECTORS).rows

    def file(self, name: str) -> FileEntry:
        """Return a file's entry; raises `CorruptArtefactError` if the manifest does not list it."""
        for entry in self.files:
            if entry.name == name:
                return entry
        raise CorruptArtefactError(f"{self.folder}/{MANIFEST}", f"does not list {name}")
