"""Rebuild: the windows of one store as the source of another store with other settings.

All windows form one partition; the position of a row is its pane and its place in the pane. So each row of the windows
counts exactly once, by the same rule as each row of a log (`weir.pipelines.runs.run`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from weir.contracts import (
    PADDING_KEY,
    CommitLog,
    CorruptArtefactError,
    EventClock,
    FeatureNames,
    Label,
    LogState,
    Store,
    UserError,
    WindowLog,
    WindowManifest,
    WindowName,
    checksum,
    read_format,
)
from weir.contracts.base import columns
from weir.contracts.base.models import CommitRef
from weir.contracts.commits.commit_log import LogMismatchError
from weir.contracts.storage.artefacts import read_table
from weir.pipelines.config import PipelineConfig
from weir.pipelines.layout import open_layout, with_window
from weir.pipelines.runs.progress import PartitionProgress, Progress
from weir.pipelines.sources.plan import InHand, Planned, RunPlan, Seen, file_readings
from weir.pipelines.sources.source import WINDOWS, Source
from weir.pipelines.store_settings import settled
from weir.pipelines.transforms.chain import ROWS, RowsToWindows
from weir.pipelines.transforms.read import DEAD, PROGRESS
from weir.readers import BlockId, Format, Int64, Partition, Reading, ValidatedBlock, cost_of

__all__ = ["ReadPanes", "RebuildError", "WindowSource", "address", "pane_of", "position_of", "prepare"]


_ROW_BITS: Final = 32
"""A position is a pane's sequence, and in the low bits the row number: by shard, then by time."""

_ROW_BYTES: Final = cost_of(1, 64)
"""Cost of a row without its ids, in the unit of `run_bytes`."""

_AT: Final = "@"
"""In a fingerprint: separates the identity of the origin from the newest commit whose windows were read."""

_COPIED: Final = (columns.TIMESTAMP, columns.LABEL, columns.WEIGHT, columns.ATTRIBUTION_TOKEN)
_KEYS: Final = (columns.USER_KEY, columns.ITEM_KEY, columns.EVENT_KEY)


def position_of(sequence: int) -> int:
    """Return the position of the first row of a pane."""
    return sequence << _ROW_BITS


def pane_of(position: int) -> int:
    """Return the sequence of the pane that holds a position."""
    return position >> _ROW_BITS


class ReadPanes(beam.PTransform[Any, Any]):
    """Turns `Reading`s of `origin`'s windows into the input of `RowsToWindows`: keyed rows and progress, no letters."""

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
    """A pane to read, from position `start` on."""

    partition: str
    manifest: WindowManifest
    start: int


class _ListPanes(beam.DoFn):
    """Turns a `Reading` into its `_Pane`s; the progress is tagged `PROGRESS`."""

    def __init__(self, origin: Store) -> None:
        self._origin = origin

    def process(self, element: Reading) -> Iterator[Any]:
        """List the panes from the start of the reading to the end of the partition."""
        partition, end = element.partition, pane_of(element.partition.size)
        progress = Progress(partitions={partition.key: PartitionProgress(partition.size)})
        yield beam.pvalue.TaggedOutput(PROGRESS, progress)
        panes = WindowLog(self._origin).follow(after=pane_of(element.start) - 1)
        for manifest in takewhile(lambda manifest: manifest.sequence < end, panes):
            yield _Pane(partition.key, manifest, element.start)


class _ReadPane(beam.DoFn):
    """Turns a `_Pane` into `ValidatedBlock`s of its rows, shard by shard."""

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
        user_features = [columns.USER_FEATURES] if self._user_features.all and manifest.user_features.names.all else []
        for shard, entry in manifest.examples.items():
            table = self._log.examples(manifest, shard, [*_COPIED, *_KEYS, *exposed, *user_features])
            positions = np.arange(first, first + entry.rows)
            first += entry.rows
            for start in range(0, len(table), self._rows):
                part = slice(start, start + self._rows)
                is_new = positions[part] >= element.start
                if is_new.any():
                    rows = self._keyed(table[part].filter(pa.array(is_new)), positions[part][is_new], items, manifest)
                    yield ValidatedBlock(BlockId(element.partition, int(positions[start])), rows, 0, 0)

    def _items(self, manifest: WindowManifest) -> pa.Table:
        """Return the item list of a pane, ordered by key, with the configured features, null if unknown."""
        entry = manifest.file(WindowName.items())
        known = manifest.item_features.all
        names = [columns.ITEM_KEY, columns.ITEM_ID, *(name for name in self._features.all if name in known)]
        items = read_table(self._origin, manifest.folder, entry, names)
        for feature in self._features.fields:
            if feature.name not in known:
                items = items.append_column(feature, pa.nulls(len(items), feature.type))
        return items

    def _keyed(self, rows: pa.Table, positions: Int64, items: pa.Table, manifest: WindowManifest) -> pa.RecordBatch:
        """Return the examples of a pane as rows with ids and keys, the input of `AssignWindows`.

        The item list names only the items of positives, so the id of another item is null.
        """
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
    """Return the first `limit` exposed items of each row; null if the window was not joined with served lists."""
    kind = pa.list_(pa.int64(), limit)
    if columns.EXPOSED not in rows.column_names:
        return pa.nulls(len(rows), kind)
    exposed = _array(rows[columns.EXPOSED])
    keys = exposed.flatten().to_numpy().reshape(len(rows), exposed.type.list_size)[:, :limit]
    padded = np.pad(keys, ((0, 0), (0, limit - keys.shape[1])), constant_values=PADDING_KEY)
    return pa.FixedSizeListArray.from_arrays(pa.array(padded.ravel()), limit)


def _features(items: pa.Table, index: pa.Array, names: FeatureNames) -> pa.Array:
    """Return the features of the item at `index` of each row, as a struct column (n,)."""
    return pa.StructArray.from_arrays([_array(items[name].take(index)) for name in names.all], fields=names.fields)


def _user_features(rows: pa.Table, names: FeatureNames) -> pa.Array:
    """Return the configured user features, null where the window does not have them."""
    known = _array(rows[columns.USER_FEATURES]) if columns.USER_FEATURES in rows.column_names else None
    there = [field.name for field in known.type] if known is not None else []
    values = [
        known.field(field.name) if known is not None and field.name in there else pa.nulls(len(rows), field.type)
        for field in names.fields
    ]
    return pa.StructArray.from_arrays(values, fields=names.fields)


def _array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column in one chunk."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


class RebuildError(UserError):
    """A store cannot become the rebuild of another one."""


def prepare(
    origin: Store, store: Store, config: PipelineConfig, named: Mapping[str, JsonValue] | None = None
) -> PipelineConfig:
    """Create the store of a rebuild, with the key secret and the clock of its origin; return its settings.

    An existing store must fit. `named` is passed to `open_layout`. Raises `RebuildError` if the origin does not exist,
    or the store has another key secret, and `LayoutError` if the store already exists with other settings.
    """
    given = read_format(origin)
    if given is None:
        raise RebuildError(f"{origin.url}: there is no store to rebuild")
    if address(origin) == address(store):
        raise RebuildError(f"{store.url}: a store cannot be rebuilt into itself; use a new folder")
    known = read_format(store)
    if known is not None and known.key_secret != given.key_secret:
        raise RebuildError(f"{store.url}: its keys have another secret than those of {origin.url}; use a new folder")
    config = settled(store, config.model_copy(update={"secret_keys": bool(given.key_secret)}))
    config = with_window(store if known else origin, config, follow=False)
    open_layout(store, config, named, key_secret=given.key_secret)
    if origin.exists("CLOCK.json"):
        EventClock.of(origin).save(store)
    return config


def address(store: Store) -> str:
    """Return the absolute path or URL of a store, under which commits name it."""
    return store.url if store.local_path is None else str(store.local_path.resolve())


@dataclass
class WindowSource(Source[Partition]):
    """The committed windows of `origin` as a source with one partition; `state` is the log state of `origin`."""

    origin: Store
    config: PipelineConfig
    state: LogState = field(init=False)

    def __post_init__(self) -> None:
        self._commits = CommitLog(self.origin)
        self.state = LogState.open(self.origin)
        self._redaction = self.state.redaction
        # STORE.json is written once, with its time, so its checksum is unique. A redaction changes row positions.
        identity = checksum(self.origin.read("STORE.json"))
        self._identity = identity if self._redaction < 0 else f"{identity}-{self._redaction}"

    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that is not a rebuild of this origin.

        Raises `RebuildError`; `LogMismatchError` if the origin no longer holds the windows that `store` was built
        from.
        """
        span = state.sources.get(WINDOWS)
        if state.moved_from:
            raise RebuildError(f"{store.url}: was rebuilt from {state.moved_from}, and has its log since")
        if state.sources and span is None:
            raise RebuildError(f"{store.url}: holds rows of a log; windows are rebuilt into a new store")
        identity, _, ref = ("", "", "") if span is None else span.fingerprint.partition(_AT)
        if span is not None and identity != self._identity:
            problem = (
                f"is the rebuild of another store than {self.origin.url}, or of this one before users were forgotten"
            )
            raise RebuildError(f"{store.url}: {problem}; rebuild it into a new folder")
        if span is not None:
            self._require_log(store, pane_of(span.stop) - 1, _decoded(ref))

    def _require_log(self, store: Store, sequence: int, ref: CommitRef | None) -> None:
        """Raise `LogMismatchError` unless pane `sequence` of the origin is in commit `ref`."""
        try:
            self._commits.require(f"{store.url}, which is rebuilt from {self.origin.url}", sequence, ref)
        except LogMismatchError as error:
            problem = f"{error.problem}: rebuild it into a new folder"
            raise LogMismatchError(error.reader, problem, error.reason) from None

    def check_rows(self, state: LogState) -> None:
        """Raise `RebuildError` if a redaction has changed the positions of the origin's rows."""
        if state.redaction != self._redaction:
            raise RebuildError(
                f"{self.origin.url}: users were forgotten since this rebuild started, so its rows have moved; "
                "rebuild it into a new folder"
            )

    def discover(self) -> list[Partition]:
        """Return the one partition, up to the newest pane; costs one request to the store if nothing is new."""
        self.state.catch_up(self._commits)
        self.check_rows(self.state)
        size = position_of(self.state.cursor.sequence)
        return [Partition(WINDOWS, self.origin.url, Format.PARQUET, size, fingerprint=self._identity)]

    def identify(self, partitions: list[Partition], _state: LogState, _in_hand: InHand) -> list[Partition]:
        """Return the partition unchanged."""
        return partitions

    def cut(self, found: list[Partition], state: LogState, in_hand: InHand) -> Iterator[list[Partition]]:
        """Yield the partition cut for one run after another, at about `run_bytes` of rows each; at last all of it."""
        [windows] = found
        spans = state.sources | in_hand.pending
        start = pane_of(spans[WINDOWS].stop) if WINDOWS in spans else 0
        ref = _decoded(spans[WINDOWS].fingerprint.partition(_AT)[2]) if WINDOWS in spans else None
        rows, stop, log = 0, pane_of(windows.size), WindowLog(self.origin)
        for pane in takewhile(lambda pane: pane.sequence < stop, log.follow(after=start - 1)):
            _check_features(self.origin, "item", self.config.item_features, pane.item_features)
            _check_features(self.origin, "user", self.config.user_features, pane.user_features.names)
            if rows and (rows + pane.counts.events) * _ROW_BYTES > self.config.run_bytes - in_hand.cost:
                rows = 0
                yield [self._up_to(ref, replace(windows, size=position_of(pane.sequence)))]
            rows += pane.counts.events
            ref = log.last
        yield [self._up_to(ref, windows)]

    def _up_to(self, ref: CommitRef | None, windows: Partition) -> Partition:
        """Return the partition with `ref`, the commit of its last pane, added to the fingerprint."""
        return windows if ref is None else replace(windows, fingerprint=f"{self._identity}{_AT}{_encoded(ref)}")

    def readings(self, partitions: Sequence[Partition], seen: Seen) -> Sequence[Planned]:
        """Return a reading of the partition if it has windows that were not read."""
        return file_readings(self.config, partitions, seen)

    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Read the panes and commit their rows."""
        rows = readings | "Read windows" >> ReadPanes(self.origin, self.config)
        return rows | "Windows" >> RowsToWindows(store, plan.run, self.config, plan.histories)


def _encoded(ref: CommitRef) -> str:
    return f"{ref.number}-{ref.checksum}"


def _decoded(text: str) -> CommitRef | None:
    number, _, digest = text.partition("-")
    return CommitRef(number=int(number), checksum=digest) if text else None


def _check_features(origin: Store, of: str, wanted: FeatureNames, known: FeatureNames) -> None:
    """Raise `RebuildError` for a feature whose kind differs in the windows; a feature absent there is allowed."""
    wrong = {*wanted.categorical} & {*known.dense} | {*wanted.dense} & {*known.categorical}
    if wrong:
        kind = "dense" if {*wrong} & {*known.dense} else "categorical"
        raise RebuildError(f"{of} feature {min(wrong)} is {kind} in {origin.url}: name it so in pipeline.{of}_features")
