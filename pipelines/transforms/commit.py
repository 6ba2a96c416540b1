"""Commit: write the examples of each window, and make one commit of everything in a run."""

import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeAlias

import apache_beam as beam
import pyarrow as pa
from pydantic import Field

from weir.contracts import (
    ITEMS_SCHEMA,
    Commit,
    CommitLog,
    CommitTakenError,
    Document,
    ExposureCounts,
    FileEntry,
    HistoryFile,
    SourceSpan,
    Store,
    WindowCounts,
    WindowManifest,
    WindowName,
    examples_schema,
)
from weir.contracts.base import columns
from weir.contracts.commits.commit import HISTORIES, SPANS, requirements
from weir.contracts.interactions.features import UserFeatures
from weir.contracts.storage.artefacts import write_table
from weir.contracts.storage.documents import read_document, write_document
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.progress import LettersWritten, PendingRows, Progress
from weir.pipelines.runs.run import Run, panes_before
from weir.pipelines.transforms.count import SketchCoder, empty_sketch
from weir.pipelines.transforms.deduplicate import ShardWindow, newest_known

__all__ = [
    "CommitRun",
    "RunCommit",
    "RunOutcome",
    "RunPart",
    "RunParts",
    "ShardReport",
    "Start",
    "WindowSketches",
    "WriteShards",
]

_OUTCOME: Final = "outcome.json"


@dataclass(frozen=True)
class ShardReport:
    """What the commit needs to know of one shard of a pane: its file of examples, None without examples, and counts.

    `items` are its positives' items with their counts (`ITEMS_SCHEMA`), `features` their newest item features.
    """

    name: WindowName
    file: FileEntry | None
    items: pa.Table
    counts: WindowCounts
    min_event_ms: int
    max_event_ms: int
    features: pa.Table | None = None
    exposure: ExposureCounts = field(default_factory=ExposureCounts)
    user_features: UserFeatures = field(default_factory=UserFeatures)


class WriteShards(beam.DoFn):
    """Turns a `ShardWindow` with histories into a `ShardReport`; writes the examples as a Parquet file.

    If Beam repeats the work, it writes another file; the commit lists the files of one attempt only.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig) -> None:
        self._store = store
        self._run = run
        self._names = config.user_features
        self._schema = examples_schema(config.history_length, config.exposed_items, config.user_features)

    def process(self, element: ShardWindow) -> Iterator[ShardReport]:
        """Write the examples of one shard of a window."""
        file, user_features = None, UserFeatures()
        if len(element.rows):
            table = element.rows.select(self._schema.names).cast(self._schema)
            name = WindowName.examples(element.shard, secrets.token_hex(4))
            file = write_table(self._store, f"{element.name.folder(self._run.id)}/{name}", table)
            user_features = UserFeatures.of(table, self._names)
        yield ShardReport(
            element.name,
            file,
            element.items,
            element.counts,
            element.min_event_ms,
            element.max_event_ms,
            element.features,
            element.exposure,
            user_features,
        )


@dataclass(frozen=True)
class WindowSketches:
    """The encoded sketches of the window that starts at `start_ms`."""

    start_ms: int
    items: bytes
    users: bytes


class Start:
    """An element that each run adds to its outputs, so that a run without rows reaches `CommitRun`, too."""


RunPart: TypeAlias = ShardReport | WindowSketches | HistoryFile | LettersWritten | PendingRows | Start
"""An output of a run's transforms, and so an input of the run's commit."""


@dataclass
class _Pane:
    """Reports and sketches of one pane."""

    name: WindowName
    reports: list[ShardReport] = field(default_factory=list)
    sketches: WindowSketches | None = None


@dataclass
class RunParts:
    """All outputs of a run, grouped: panes by window start, files of dead letters by partition."""

    panes: dict[int, _Pane] = field(default_factory=dict)
    letters: dict[str, list[LettersWritten]] = field(default_factory=lambda: defaultdict(list))
    open_rows: list[PendingRows] = field(default_factory=list)
    histories: list[HistoryFile] = field(default_factory=list)

    @classmethod
    def of(cls, elements: Iterable[RunPart], store: Store, run: Run) -> "RunParts":
        """Group the outputs of the transforms."""
        parts = cls()
        for element in elements:
            if isinstance(element, ShardReport):
                parts.panes.setdefault(element.name.start_ms, _Pane(element.name)).reports.append(element)
            elif isinstance(element, WindowSketches):
                name = run.name(element.start_ms, panes_before(store, run.base.cursor, element.start_ms))
                parts.panes.setdefault(element.start_ms, _Pane(name)).sketches = element
            elif isinstance(element, LettersWritten):
                parts.letters[element.file.partition].append(element)
            elif isinstance(element, PendingRows):
                parts.open_rows.append(element)
            elif isinstance(element, HistoryFile):
                parts.histories.append(element)
        return parts


@dataclass(frozen=True)
class RunCommit:
    """Builds the commit of a run from its outputs; does not append it to the log."""

    store: Store
    run: Run
    config: PipelineConfig

    def of(self, parts: RunParts, spans: dict[str, SourceSpan]) -> Commit:
        """Write the item list and sketches of each pane, and return the commit, its panes ordered by time.

        `spans` maps each partition to the span that the commit records.
        """
        at, now = self.run.base.cursor, time.time()
        panes = sorted(parts.panes.values(), key=lambda pane: pane.name)
        return Commit(
            number=at.number,
            writer=self.run.id,
            predecessor=at.checksum,
            committed_at=now,
            sequence=at.sequence,
            panes=tuple(self._manifest(pane, at.sequence + place, now) for place, pane in enumerate(panes)),
            sources=spans,
            letters=tuple(written.file for key in sorted(parts.letters) for written in parts.letters[key]),
            covered=at.sequence + len(panes) if panes else 0,
            histories=tuple(sorted(parts.histories, key=lambda file: file.shard)),
            redaction=self.run.base.redaction,
            requires=requirements(*_required(panes, spans), redaction=self.run.base.redaction),
        )

    def _manifest(self, pane: _Pane, sequence: int, now: float) -> WindowManifest:
        files = sorted((report.file for report in pane.reports if report.file), key=lambda file: file.name)
        return WindowManifest(
            sequence=sequence,
            start_ms=pane.name.start_ms,
            end_ms=pane.name.end_ms,
            pane=pane.name.pane,
            previous=panes_before(self.store, self.run.base.cursor, pane.name.start_ms).commit,
            attempt=self.run.id,
            min_event_ms=min(report.min_event_ms for report in pane.reports),
            max_event_ms=max(report.max_event_ms for report in pane.reports),
            committed_at=now,
            counts=sum((report.counts for report in pane.reports), WindowCounts()),
            history_length=self.config.history_length,
            sketch=self.config.sketch.parameters(),
            item_features=self.config.item_features,
            exposed_items=self.config.exposed_items,
            exposure=sum((report.exposure for report in pane.reports), ExposureCounts()),
            user_features=self._user_features(pane),
            files=(*files, self._write_items(pane), *self._write_sketches(pane)),
        )

    def _user_features(self, pane: _Pane) -> UserFeatures:
        """Merge the user features of all shards by file name, so that the bits do not depend on report order."""
        written = [(report.file.name, report.user_features) for report in pane.reports if report.file is not None]
        parts = [user_features for _, user_features in sorted(written, key=itemgetter(0))]
        return UserFeatures.merged([UserFeatures.nothing(self.config.user_features), *parts])

    def _write_items(self, pane: _Pane) -> FileEntry:
        found = pa.concat_tables([report.items for report in pane.reports])
        merged = found.group_by(columns.ITEM_KEY).aggregate([(columns.ITEM_ID, "min"), (columns.COUNT, "sum")])
        items = merged.rename_columns(ITEMS_SCHEMA.names).cast(ITEMS_SCHEMA).sort_by(columns.ITEM_KEY)
        observed = [report.features for report in pane.reports if report.features is not None]
        items = newest_known(items, observed, self.config.item_features)
        return write_table(self.store, f"{pane.name.folder(self.run.id)}/{WindowName.items()}", items)

    def _write_sketches(self, pane: _Pane) -> list[FileEntry]:
        """Write the sketches of items and of users, empty ones without positives; return their entries."""
        if (sketches := pane.sketches) is not None:
            items, users = map(SketchCoder.decompressed, (sketches.items, sketches.users))
        else:
            items = users = empty_sketch(self.config.sketch).to_bytes()
        folder = pane.name.folder(self.run.id)
        named = {WindowName.sketch(): items, WindowName.user_sketch(): users}
        return [self.store.write(f"{folder}/{name}", data) for name, data in named.items()]


def _required(panes: list[_Pane], spans: dict[str, SourceSpan]) -> list[str]:
    """Return the features of the store that readers of the commit must know."""
    features = [HISTORIES] if panes else []
    return [*features, SPANS] if any(span.counted for span in spans.values()) else features


class RunOutcome(Document):
    """The result of a run for its driver: its commit, if any, and how far it has read.

    If `was_taken`, another writer has committed first, and nothing of the run counts.
    """

    commit: Commit | None = None
    was_taken: bool = False
    newest_ms: int
    read: tuple[str, ...] = Field(description="partitions that could be read")
    spans: dict[str, SourceSpan]
    open_rows: tuple[PendingRows, ...] = Field(description="rows that wait for their window to close")

    @classmethod
    def of(cls, store: Store, run: Run) -> "RunOutcome":
        """Return the outcome of a completed run; raises `FileNotFoundError` or `CorruptArtefactError`."""
        return read_document(store, f"{run.folder}/{_OUTCOME}", cls)


class CommitRun(beam.DoFn):
    """Turns all outputs of a run (`RunPart`s) into its commit, if there is anything to commit.

    All elements have one key, so one worker makes the commit. A retry finds its earlier commit by the writer's name.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig) -> None:
        self._store = store
        self._run = run
        self._config = config

    def process(self, element: tuple[int, Iterable[RunPart]], progress: Progress) -> Iterator[Commit]:
        """Commit a run if it has panes, dead letters or, with `flush`, new positions; write its `RunOutcome`."""
        parts = RunParts.of(element[1], self._store, self._run)
        spans = self._run.spans(progress, parts.letters)
        outcome = RunOutcome(
            read=tuple(progress.partitions),
            newest_ms=max(self._run.newest_ms, progress.max_event_ms),
            spans=spans,
            open_rows=self._waiting(parts, progress),
        )
        if parts.panes or parts.letters or (self._run.flush and self._has_moved(spans)):
            try:
                commit = RunCommit(self._store, self._run, self._config).of(parts, spans)
                CommitLog(self._store).append(commit)
                outcome = outcome.model_copy(update={"commit": commit})
                yield commit
            except CommitTakenError:
                outcome = outcome.model_copy(update={"was_taken": True})
        write_document(self._store, f"{self._run.folder}/{_OUTCOME}", outcome)

    def _has_moved(self, spans: Mapping[str, SourceSpan]) -> bool:
        """Return whether spans have changed without a pane, as after blank lines and empty files."""
        before = self._run.base.sources
        return any(key not in before or before[key] != span for key, span in spans.items())

    def _waiting(self, parts: RunParts, progress: Progress) -> tuple[PendingRows, ...]:
        """Return the files of rows, of earlier runs and of this run, whose windows stay open."""
        earlier = (rows for rows in self._run.open_rows if not self._run.is_closed(rows.start_ms, progress))
        return (*earlier, *parts.open_rows)
