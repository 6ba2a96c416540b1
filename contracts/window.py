"""Contract 3, the window: one committed slice of event time, with its training examples, items and sketches.

A window lives in ``windows/<start>-<end>/<pane>/``; rows that come late make a further pane. Its manifest is
written last, so a window exists when its manifest does. Commits are numbered in the order they were made
(`WindowManifest.sequence`); every consumer follows that order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from contracts import columns
from contracts.artefacts import MANIFEST, read_manifest, read_table, write_manifest
from contracts.errors import CorruptArtefactError
from contracts.features import FeatureNames
from contracts.storage import FileEntry, Store

__all__ = [
    "ITEMS_SCHEMA",
    "SourceSpan",
    "WindowCounts",
    "WindowLog",
    "WindowManifest",
    "WindowName",
    "examples_schema",
    "items_schema",
]

SCHEMA_VERSION: Final = 1
_EXAMPLES: Final = "examples-"
_ITEMS: Final = "items.parquet"
_SKETCH: Final = "sketch.bin"
_USER_SKETCH: Final = "user-sketch.bin"

ITEMS_SCHEMA: Final = pa.schema(
    [
        pa.field(columns.ITEM_KEY, pa.int64(), nullable=False),
        pa.field(columns.ITEM_ID, pa.string(), nullable=False),
        pa.field(columns.COUNT, pa.int64(), nullable=False),
    ]
)
"""The distinct items of a window's positive events, in order of key, with their counts."""


def items_schema(features: FeatureNames) -> pa.Schema:
    """Return the schema of ``items.parquet``: `ITEMS_SCHEMA` and, after it, the newest known values of each feature."""
    return pa.schema([*ITEMS_SCHEMA, *features.fields])


def examples_schema(history_length: int) -> pa.Schema:
    """Return the schema of ``examples-*.parquet``.

    `history` holds the keys of the user's last positives before the event, oldest first, padded on the left
    with `PADDING_KEY`; `label` is +1 or -1 (`Label`); `event_key` is the hashed `event_id`, null without one.
    """
    return pa.schema(
        [
            pa.field(columns.USER_KEY, pa.int64(), nullable=False),
            pa.field(columns.ITEM_KEY, pa.int64(), nullable=False),
            pa.field(columns.TIMESTAMP, pa.int64(), nullable=False),
            pa.field(columns.HISTORY, pa.list_(pa.int64(), history_length), nullable=False),
            pa.field(columns.WEIGHT, pa.float32(), nullable=False),
            pa.field(columns.LABEL, pa.int8(), nullable=False),
            pa.field(columns.EVENT_KEY, pa.int64()),
            pa.field(columns.ATTRIBUTION_TOKEN, pa.string()),
        ]
    )


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WindowCounts(_Model):
    """What was counted: `events` = `positives` + `negatives` are the distinct valid events kept."""

    events: int = 0
    positives: int = 0
    negatives: int = 0
    ignored: int = 0
    duplicates: int = 0
    late: int = 0


class SourceSpan(_Model):
    """How far one source partition had been read when the window was committed.

    Positions are byte offsets (JSON Lines) or row numbers. Every row of the window whose position is below
    `stop` has been counted. `resume` is the lowest position of a row of a window that was still open after
    the run (`stop` if there is none); `size` is the partition's size in bytes at that time, which tells
    whether it has grown. `dead` counts its dead letters so far.
    """

    start: int
    stop: int
    resume: int
    size: int
    dead: int = 0


class WindowManifest(_Model):
    """``MANIFEST.json`` of one pane of a window; times are milliseconds of event time unless said otherwise."""

    schema_version: Literal[1] = SCHEMA_VERSION
    sequence: int = Field(ge=0, description="commit order, without gaps")
    run: int = Field(ge=0, description="sequence of the first commit of the pipeline run")
    last_of_run: bool
    start_ms: int
    end_ms: int
    pane: int = Field(ge=0)
    min_event_ms: int
    max_event_ms: int
    committed_at: float = Field(description="wall clock, seconds since 1970")
    counts: WindowCounts
    sources: dict[str, SourceSpan]
    history_length: int = Field(ge=1)
    sketch: dict[str, str | int | float | bool] = Field(description="kind and parameters of the estimators")
    item_features: FeatureNames = Field(default=FeatureNames(), description="features in items.parquet")
    files: tuple[FileEntry, ...]

    @model_serializer(mode="wrap")
    def _leave_out_absent_features(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialise(self)
        if not self.item_features.all:
            fields.pop("item_features", None)
        return fields

    @property
    def name(self) -> "WindowName":
        """The window and pane that this manifest commits."""
        return WindowName(self.start_ms, self.end_ms, self.pane)

    def file(self, name: str) -> FileEntry:
        """Return one file's entry; raises `CorruptArtefactError` where the manifest does not list it."""
        for entry in self.files:
            if entry.name == name:
                return entry
        raise CorruptArtefactError(f"{self.name.folder}/{MANIFEST}", f"does not list {name}")


@dataclass(frozen=True, order=True)
class WindowName:
    """A slice [start, end) of event time in milliseconds, and the pane."""

    start_ms: int
    end_ms: int
    pane: int = 0

    def __str__(self) -> str:
        return f"{_stamp(self.start_ms)}-{_stamp(self.end_ms)}/{self.pane:04d}"

    @property
    def folder(self) -> str:
        """The directory, relative to the store."""
        return f"windows/{self}"

    @staticmethod
    def examples(shard: int) -> str:
        """Return the file name of a user shard's examples."""
        return f"{_EXAMPLES}{shard:05d}.parquet"

    @staticmethod
    def items() -> str:
        """Return the file name of the items."""
        return _ITEMS

    @staticmethod
    def sketch() -> str:
        """Return the file name of the sketch."""
        return _SKETCH

    @staticmethod
    def user_sketch() -> str:
        """Return the file name of the sketch of users."""
        return _USER_SKETCH


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


@dataclass
class WindowLog:
    """The committed windows of a store, in commit order; each manifest is read once."""

    store: Store
    _known: dict[str, WindowManifest] = field(default_factory=dict, repr=False)

    def committed(self, after: int = -1) -> list[WindowManifest]:
        """Return the windows committed after the given sequence, in order and without gaps.

        Raises `CorruptArtefactError` for a manifest that does not validate and for two commits of one
        sequence, which only two pipelines writing to one store can make.
        """
        self._refresh()
        found = sorted(self._known.values(), key=lambda manifest: manifest.sequence)
        run: list[WindowManifest] = []
        for manifest in (m for m in found if m.sequence > after):
            if run and manifest.sequence == run[-1].sequence:
                problem = (
                    f"and {run[-1].name} are both commit {manifest.sequence}: do two pipelines write to this store?"
                )
                raise CorruptArtefactError(self.store.path(manifest.name.folder), problem)
            # A listing may show a commit before the one ahead of it: wait for that one.
            if run and manifest.sequence != run[-1].sequence + 1:
                break
            run.append(manifest)
        return run if not run or after < 0 or run[0].sequence == after + 1 else []

    def _refresh(self) -> None:
        names = {name.removesuffix(f"/{MANIFEST}") for name in self.store.glob(f"windows/*/*/{MANIFEST}")}
        for folder in self._known.keys() - names:
            del self._known[folder]
        for folder in names - self._known.keys():
            self._known[folder] = read_manifest(self.store, folder, WindowManifest)

    def commit(self, manifest: WindowManifest) -> None:
        """Make the window exist; its files must have been written."""
        write_manifest(self.store, manifest.name.folder, manifest)

    def shards(self, manifest: WindowManifest) -> list[int]:
        """Return the user shards that have examples in this window."""
        names = (entry.name for entry in manifest.files if entry.name.startswith(_EXAMPLES))
        return sorted(int(name.removeprefix(_EXAMPLES).removesuffix(".parquet")) for name in names)

    def examples(self, manifest: WindowManifest, shard: int, columns: list[str] | None = None) -> pa.Table:
        """Return one shard's examples in order of time; raises `CorruptArtefactError`."""
        return read_table(self.store, manifest.name.folder, manifest.file(WindowName.examples(shard)), columns)

    def all_examples(self, manifest: WindowManifest, columns: list[str] | None = None) -> pa.Table:
        """Return the examples of all shards, shard by shard; raises `CorruptArtefactError`."""
        tables = [self.examples(manifest, shard, columns) for shard in self.shards(manifest)]
        if tables:
            return pa.concat_tables(tables)
        schema = examples_schema(manifest.history_length)
        return (schema if columns is None else pa.schema([schema.field(name) for name in columns])).empty_table()

    def items(self, manifest: WindowManifest) -> pa.Table:
        """Return the window's items (`ITEMS_SCHEMA`); raises `CorruptArtefactError`."""
        return self._items(manifest, ITEMS_SCHEMA.names)

    def item_features(self, manifest: WindowManifest) -> pa.Table:
        """Return `item_key` and the newest known value of every feature of the window's items.

        Raises `CorruptArtefactError`.
        """
        return self._items(manifest, [columns.ITEM_KEY, *manifest.item_features.all])

    def _items(self, manifest: WindowManifest, wanted: list[str]) -> pa.Table:
        return read_table(self.store, manifest.name.folder, manifest.file(_ITEMS), wanted)

    def sketch(self, manifest: WindowManifest) -> bytes:
        """Return the window's serialised frequency estimator; raises `CorruptArtefactError`."""
        return self.store.read_verified(manifest.name.folder, manifest.file(_SKETCH))

    def user_sketch(self, manifest: WindowManifest) -> bytes | None:
        """Return the serialised estimator of positives by user key; None where the window has none.

        Raises `CorruptArtefactError`. Windows that were committed before there were user sketches have none.
        """
        if all(entry.name != _USER_SKETCH for entry in manifest.files):
            return None
        return self.store.read_verified(manifest.name.folder, manifest.file(_USER_SKETCH))

    def __iter__(self) -> Iterator[WindowManifest]:
        return iter(self.committed())
