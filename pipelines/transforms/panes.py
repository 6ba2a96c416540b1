"""Panes: the committed windows of another store as valid interactions, whose ids are keys already."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa

from weir.contracts import (
    PADDING_KEY,
    CorruptArtefactError,
    FeatureNames,
    Label,
    Store,
    WindowLog,
    WindowManifest,
    WindowName,
    columns,
)
from weir.contracts.artefacts import read_table
from weir.pipelines.chain import ROWS
from weir.pipelines.config import PipelineConfig
from weir.pipelines.progress import PartitionProgress, Progress
from weir.pipelines.transforms.read import PROGRESS
from weir.pipelines.transforms.validate import DEAD
from weir.readers import BlockId, Int64, Reading, ValidatedBlock

__all__ = ["ReadPanes", "pane_of", "position_of"]

_ROW_BITS: Final = 32
"""A position is the sequence of a pane and, in its low bits, the number of a row: shard by shard, in order of time."""

_COPIED: Final = (columns.TIMESTAMP, columns.LABEL, columns.WEIGHT, columns.ATTRIBUTION_TOKEN)
_KEYS: Final = (columns.USER_KEY, columns.ITEM_KEY, columns.EVENT_KEY)


def position_of(sequence: int) -> int:
    """Return the position of the first row of a pane."""
    return sequence << _ROW_BITS


def pane_of(position: int) -> int:
    """Return the sequence of the pane that holds a position."""
    return position >> _ROW_BITS


class ReadPanes(beam.PTransform[Any, Any]):
    """`Reading`s of the windows of a store to what `RowsToWindows` takes."""

    def __init__(self, origin: Store, config: PipelineConfig) -> None:
        super().__init__()
        self._origin = origin
        self._config = config

    def expand(self, readings: Any) -> Any:
        """Add the transforms."""
        listed = readings | "List panes" >> beam.ParDo(_ListPanes(self._origin)).with_outputs(PROGRESS, main="panes")
        rows = (
            listed.panes
            | "Spread panes" >> beam.Reshuffle()
            | "Read panes" >> beam.ParDo(_ReadPane(self._origin, self._config))
        )
        return {ROWS: rows, DEAD: (), PROGRESS: listed[PROGRESS]}


@dataclass(frozen=True)
class _Pane:
    """A pane to read: its rows from a position on."""

    partition: str
    manifest: WindowManifest
    start: int


class _ListPanes(beam.DoFn):
    """`Reading` to `_Pane`s, and how far they reach."""

    def __init__(self, origin: Store) -> None:
        self._origin = origin

    def process(self, element: Reading) -> Iterator[Any]:
        """List the panes from the start of the reading to the end of the partition."""
        partition, end = element.partition, pane_of(element.partition.size)
        seen = Progress(partitions={partition.key: PartitionProgress(partition.size)})
        yield beam.pvalue.TaggedOutput(PROGRESS, seen)
        found = WindowLog(self._origin).follow(after=pane_of(element.start) - 1)
        for manifest in takewhile(lambda manifest: manifest.sequence < end, found):
            yield _Pane(partition.key, manifest, element.start)


class _ReadPane(beam.DoFn):
    """`_Pane` to `ValidatedBlock`s, shard by shard."""

    def __init__(self, origin: Store, config: PipelineConfig) -> None:
        self._origin = origin
        self._rows = config.chunk_rows
        self._features, self._exposed = config.item_features, config.exposed_items
        self._user_features = config.user_features

    def setup(self) -> None:
        """Open the windows."""
        self._log = WindowLog(self._origin)

    def process(self, element: _Pane) -> Iterator[ValidatedBlock]:
        """Read one pane."""
        manifest, items = element.manifest, self._items(element.manifest)
        first = position_of(manifest.sequence)
        exposed = [columns.EXPOSED] if self._exposed and manifest.exposed_items else []
        said = [columns.USER_FEATURES] if self._user_features.all and manifest.user_features.names.all else []
        for shard, entry in manifest.examples.items():
            table = self._log.examples(manifest, shard, [*_COPIED, *_KEYS, *exposed, *said])
            positions = np.arange(first, first + entry.rows)
            first += entry.rows
            for start in range(0, len(table), self._rows):
                piece = slice(start, start + self._rows)
                wanted = positions[piece] >= element.start
                if wanted.any():
                    rows = self._keyed(table[piece].filter(pa.array(wanted)), positions[piece][wanted], items, manifest)
                    yield ValidatedBlock(BlockId(element.partition, int(positions[start])), rows, 0, 0)

    def _items(self, manifest: WindowManifest) -> pa.Table:
        """Return the items of a pane, in order of key, with the features that the settings name."""
        entry = manifest.file(WindowName.items())
        known = manifest.item_features.all
        names = [columns.ITEM_KEY, columns.ITEM_ID, *(name for name in self._features.all if name in known)]
        items = read_table(self._origin, manifest.folder, entry, names)
        for field in self._features.fields:
            if field.name not in known:
                items = items.append_column(field, pa.nulls(len(items), field.type))
        return items

    def _keyed(self, rows: pa.Table, positions: Int64, items: pa.Table, manifest: WindowManifest) -> pa.RecordBatch:
        """Return rows as `Locate` passes them on; the id of an item that has negatives only is null."""
        keys, owned = rows[columns.ITEM_KEY].to_numpy(), items[columns.ITEM_KEY].to_numpy()
        place = np.searchsorted(owned, keys)
        missing = np.append(owned, 0)[place] != keys
        missing |= place == len(owned)
        if (missing & (rows[columns.LABEL].to_numpy() == Label.POSITIVE)).any():
            path = self._origin.path(f"{manifest.folder}/{WindowName.items()}")
            raise CorruptArtefactError(path, "does not list every item of the window's positives")
        index = pa.array(place, mask=missing)
        fields = {columns.ITEM_ID: items[columns.ITEM_ID].take(index)}
        fields |= {name: rows[name] for name in _COPIED} | {columns.POSITION: pa.array(positions)}
        if self._features.all:
            fields[columns.FEATURES] = _features(items, index, self._features)
        if self._user_features.all:
            fields[columns.USER_FEATURES] = _user_features(rows, self._user_features)
        fields |= {name: rows[name] for name in _KEYS}
        if self._exposed:
            fields[columns.EXPOSED] = _exposed(rows, self._exposed)
        return pa.RecordBatch.from_pydict({name: _array(column) for name, column in fields.items()})


def _exposed(rows: pa.Table, limit: int) -> pa.Array:
    """Return the first so many exposed items of each row, null where the window was not joined with lists."""
    kind = pa.list_(pa.int64(), limit)
    if columns.EXPOSED not in rows.column_names:
        return pa.nulls(len(rows), kind)
    known = _array(rows[columns.EXPOSED])
    keys = known.flatten().to_numpy().reshape(len(rows), known.type.list_size)[:, :limit]
    padded = np.pad(keys, ((0, 0), (0, limit - keys.shape[1])), constant_values=PADDING_KEY)
    return pa.FixedSizeListArray.from_arrays(pa.array(padded.ravel()), limit)


def _features(items: pa.Table, index: pa.Array, names: FeatureNames) -> pa.Array:
    """Return what the window knows of the item of each row, as the struct of an interaction."""
    return pa.StructArray.from_arrays([_array(items[name].take(index)) for name in names.all], fields=names.fields)


def _user_features(rows: pa.Table, names: FeatureNames) -> pa.Array:
    """Return the user features that the settings name; one that the window does not have is unknown."""
    known = _array(rows[columns.USER_FEATURES]) if columns.USER_FEATURES in rows.column_names else None
    there = [field.name for field in known.type] if known is not None else []
    values = [
        known.field(field.name) if known is not None and field.name in there else pa.nulls(len(rows), field.type)
        for field in names.fields
    ]
    return pa.StructArray.from_arrays(values, fields=names.fields)


def _array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
