"""Commit: all that a run has made, as one commit; what a run is killed before does not exist."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import apache_beam as beam
import pyarrow as pa
from pydantic import Field

from contracts import (
    ITEMS_SCHEMA,
    Commit,
    CommitLog,
    CommitTakenError,
    Document,
    FileEntry,
    HistoryFile,
    SourceSpan,
    Store,
    WindowCounts,
    WindowManifest,
    WindowName,
    columns,
)
from contracts.artefacts import write_table
from contracts.commits import requirements
from contracts.documents import read_document, write_document
from contracts.history_files import HISTORIES
from pipelines.committed_panes import panes_before
from pipelines.config import PipelineConfig
from pipelines.item_features import newest_known
from pipelines.open_rows import OpenRows
from pipelines.positions import Run
from pipelines.progress import LettersWritten, Progress
from pipelines.transforms.count import SketchCoder, empty_sketch
from pipelines.transforms.write import ShardReport

__all__ = ["CommitRun", "Made", "RunOutcome", "Start", "WindowSketches"]

_OUTCOME: Final = "outcome.json"


@dataclass(frozen=True)
class WindowSketches:
    """The encoded sketches of the window that starts at `start_ms`."""

    start_ms: int
    items: bytes
    users: bytes


class Start:
    """Comes with every run, so that one without a row is completed, too."""


Made: TypeAlias = ShardReport | WindowSketches | HistoryFile | LettersWritten | OpenRows | Start
"""What the transforms of a run hand to its commit."""


class RunOutcome(Document):
    """What a run leaves to its driver: its commit, if it had anything to commit, and how far it has read.

    `was_taken` says that another writer was faster: then nothing of the run counts.
    """

    commit: Commit | None = None
    was_taken: bool = False
    newest_ms: int
    read: tuple[str, ...] = Field(description="partitions that could be read")
    spans: dict[str, SourceSpan]
    open_rows: tuple[OpenRows, ...] = Field(description="rows that wait for their window to close")

    @classmethod
    def of(cls, store: Store, run: Run) -> "RunOutcome":
        """Return the outcome of a run that has ended; raises `FileNotFoundError` or `CorruptArtefactError`."""
        return read_document(store, f"{run.folder}/{_OUTCOME}", cls)


@dataclass
class _Pane:
    """All that has been made of one pane."""

    name: WindowName
    reports: list[ShardReport] = field(default_factory=list)
    sketches: WindowSketches | None = None


@dataclass
class _Parts:
    """All that a run has made, sorted."""

    panes: dict[int, _Pane] = field(default_factory=dict)
    letters: dict[str, list[LettersWritten]] = field(default_factory=lambda: defaultdict(list))
    open_rows: list[OpenRows] = field(default_factory=list)
    histories: list[HistoryFile] = field(default_factory=list)

    @classmethod
    def of(cls, elements: Iterable[Made], store: Store, run: Run) -> "_Parts":
        parts = cls()
        for element in elements:
            if isinstance(element, ShardReport):
                parts.panes.setdefault(element.name.start_ms, _Pane(element.name)).reports.append(element)
            elif isinstance(element, WindowSketches):
                name = run.name(element.start_ms, panes_before(store, run.base.cursor, element.start_ms))
                parts.panes.setdefault(element.start_ms, _Pane(name)).sketches = element
            elif isinstance(element, LettersWritten):
                parts.letters[element.file.partition].append(element)
            elif isinstance(element, OpenRows):
                parts.open_rows.append(element)
            elif isinstance(element, HistoryFile):
                parts.histories.append(element)
        return parts


class CommitRun(beam.DoFn):
    """All that a run has made (`Made`) to its commit, if it made any.

    One key, hence one worker at a time. Panes are listed in order of time. A retry finds the commit made and takes it
    for its own by the writer that it names.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig) -> None:
        self._store = store
        self._run = run
        self._config = config

    def process(self, element: tuple[int, Iterable[Made]], progress: Progress) -> Iterator[Commit]:
        """Commit a run."""
        parts = _Parts.of(element[1], self._store, self._run)
        spans = self._run.spans(progress, parts.letters)
        outcome = RunOutcome(
            read=tuple(progress.partitions),
            newest_ms=max(self._run.newest_ms, progress.max_event_ms),
            spans=spans,
            open_rows=self._waiting(parts, progress),
        )
        if parts.panes or parts.letters or (self._run.flush and self._has_moved(spans)):
            try:
                commit = self._commit(parts, spans)
                CommitLog(self._store).append(commit)
                outcome = outcome.model_copy(update={"commit": commit})
                yield commit
            except CommitTakenError:
                outcome = outcome.model_copy(update={"was_taken": True})
        write_document(self._store, f"{self._run.folder}/{_OUTCOME}", outcome)

    def _has_moved(self, spans: Mapping[str, SourceSpan]) -> bool:
        """Say whether something was read that brought no pane: blank lines, empty files."""
        known = self._run.base.sources
        return any(key not in known or known[key] != span for key, span in spans.items())

    def _waiting(self, parts: _Parts, progress: Progress) -> tuple[OpenRows, ...]:
        kept = (rows for rows in self._run.open_rows if not self._run.is_closed(rows.start_ms, progress))
        return (*kept, *parts.open_rows)

    def _commit(self, parts: _Parts, spans: dict[str, SourceSpan]) -> Commit:
        at, now = self._run.base.cursor, time.time()
        panes = sorted(parts.panes.values(), key=lambda pane: pane.name)
        return Commit(
            number=at.number,
            writer=self._run.id,
            predecessor=at.checksum,
            committed_at=now,
            sequence=at.sequence,
            panes=tuple(self._manifest(pane, at.sequence + place, now) for place, pane in enumerate(panes)),
            sources=spans,
            letters=tuple(one.file for key in sorted(parts.letters) for one in parts.letters[key]),
            covered=at.sequence + len(panes) if panes else 0,
            histories=tuple(sorted(parts.histories, key=lambda file: file.shard)),
            redaction=self._run.base.redaction,
            requires=requirements(*((HISTORIES,) if panes else ()), redaction=self._run.base.redaction),
        )

    def _manifest(self, pane: _Pane, sequence: int, now: float) -> WindowManifest:
        files = sorted((report.file for report in pane.reports if report.file), key=lambda file: file.name)
        return WindowManifest(
            sequence=sequence,
            start_ms=pane.name.start_ms,
            end_ms=pane.name.end_ms,
            pane=pane.name.pane,
            previous=panes_before(self._store, self._run.base.cursor, pane.name.start_ms).commit,
            attempt=self._run.id,
            min_event_ms=min(report.min_event_ms for report in pane.reports),
            max_event_ms=max(report.max_event_ms for report in pane.reports),
            committed_at=now,
            counts=sum((report.counts for report in pane.reports), WindowCounts()),
            history_length=self._config.history_length,
            sketch=self._config.sketch.parameters(),
            item_features=self._config.item_features,
            files=(*files, self._write_items(pane), *self._write_sketches(pane)),
        )

    def _write_items(self, pane: _Pane) -> FileEntry:
        found = pa.concat_tables([report.items for report in pane.reports])
        merged = found.group_by(columns.ITEM_KEY).aggregate([(columns.ITEM_ID, "min"), (columns.COUNT, "sum")])
        items = merged.rename_columns(ITEMS_SCHEMA.names).cast(ITEMS_SCHEMA).sort_by(columns.ITEM_KEY)
        observed = [report.features for report in pane.reports if report.features is not None]
        items = newest_known(items, observed, self._config.item_features)
        return write_table(self._store, f"{pane.name.folder(self._run.id)}/{WindowName.items()}", items)

    def _write_sketches(self, pane: _Pane) -> list[FileEntry]:
        empty = SketchCoder().encode(empty_sketch(self._config.sketch))
        found = pane.sketches or WindowSketches(pane.name.start_ms, empty, empty)
        encoded = {WindowName.sketch(): found.items, WindowName.user_sketch(): found.users}
        folder = pane.name.folder(self._run.id)
        return [
            self._store.write(f"{folder}/{name}", SketchCoder().decode(data).to_bytes())
            for name, data in encoded.items()
        ]
