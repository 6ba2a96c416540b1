"""Commit: the windows of a run, one after the other, each by its manifest."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa

from contracts import (
    ITEMS_SCHEMA,
    FileEntry,
    SourceSpan,
    Store,
    WindowCounts,
    WindowLog,
    WindowManifest,
    WindowName,
    columns,
)
from contracts.artefacts import write_table
from pipelines.blocks import Progress
from pipelines.config import PipelineConfig
from pipelines.item_features import newest_known
from pipelines.positions import Run
from pipelines.transforms.count import SketchCoder, empty_sketch
from pipelines.transforms.write import ShardReport

__all__ = ["CommitWindows", "WindowSketches"]


@dataclass(frozen=True)
class WindowSketches:
    """The encoded sketches of the window that starts at `start_ms`."""

    start_ms: int
    items: bytes
    users: bytes


@dataclass
class _Pane:
    """All that has been made of one pane."""

    name: WindowName
    reports: list[ShardReport]
    sketches: WindowSketches


class CommitWindows(beam.DoFn):
    """All `ShardReport`s and `WindowSketches` of a run to committed manifests.

    One key, hence one worker at a time. Windows are committed in order of (start, pane). A retry finds what it
    had committed and goes on after it.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig) -> None:
        self._store = store
        self._run = run
        self._config = config

    def process(
        self, element: tuple[int, Iterable[ShardReport | WindowSketches]], progress: Progress
    ) -> Iterator[WindowManifest]:
        """Commit the windows of a run."""
        panes = self._panes(element[1])
        sources = self._run.sources(progress)
        log = WindowLog(self._store)
        known = {manifest.name: manifest for manifest in log.committed()}
        first = len(known)
        for number, pane in enumerate(panes):
            if pane.name in known:
                # Committed by this run before a retry: its name says so, since panes are numbered anew for each run.
                first = known[pane.name].run
                continue
            manifest = self._manifest(pane, sources, first + number, first)
            log.commit(manifest.model_copy(update={"last_of_run": pane is panes[-1]}))
            yield manifest

    def _panes(self, elements: Iterable[ShardReport | WindowSketches]) -> list[_Pane]:
        panes: dict[int, _Pane] = {}
        found = list(elements)
        empty = SketchCoder().encode(empty_sketch(self._config.sketch))
        for element in found:
            if isinstance(element, ShardReport):
                start = element.name.start_ms
                pane = panes.setdefault(start, _Pane(element.name, [], WindowSketches(start, empty, empty)))
                pane.reports.append(element)
        for element in found:
            if isinstance(element, WindowSketches):
                panes[element.start_ms].sketches = element
        return sorted(panes.values(), key=lambda pane: pane.name)

    def _manifest(self, pane: _Pane, sources: dict[str, SourceSpan], sequence: int, run: int) -> WindowManifest:
        files = sorted((report.file for report in pane.reports if report.file), key=lambda file: file.name)
        return WindowManifest(
            sequence=sequence,
            run=run,
            last_of_run=False,
            start_ms=pane.name.start_ms,
            end_ms=pane.name.end_ms,
            pane=pane.name.pane,
            min_event_ms=min(report.min_event_ms for report in pane.reports),
            max_event_ms=max(report.max_event_ms for report in pane.reports),
            committed_at=time.time(),
            counts=_sum(report.counts for report in pane.reports),
            sources=sources,
            history_length=self._config.history_length,
            sketch=self._config.sketch.parameters(),
            item_features=self._config.item_features,
            files=(*files, self._write_items(pane), *self._write_sketches(pane)),
        )

    def _write_items(self, pane: _Pane) -> FileEntry:
        found = pa.concat_tables([report.items for report in pane.reports])
        merged = found.group_by(columns.ITEM_KEY).aggregate([(columns.ITEM_ID, "min"), (columns.COUNT, "sum")])
        items = merged.rename_columns(ITEMS_SCHEMA.names).cast(ITEMS_SCHEMA).sort_by(columns.ITEM_KEY)
        told = [report.features for report in pane.reports if report.features is not None]
        items = newest_known(items, told, self._config.item_features)
        return write_table(self._store, f"{pane.name.folder}/{WindowName.items()}", items)

    def _write_sketches(self, pane: _Pane) -> list[FileEntry]:
        found = {WindowName.sketch(): pane.sketches.items, WindowName.user_sketch(): pane.sketches.users}
        return [
            self._store.write(f"{pane.name.folder}/{name}", SketchCoder().decode(encoded).to_bytes())
            for name, encoded in found.items()
        ]


def _sum(counts: Iterable[WindowCounts]) -> WindowCounts:
    total: dict[str, Any] = dict.fromkeys(WindowCounts.model_fields, 0)
    for count in counts:
        total = {name: total[name] + value for name, value in count.model_dump().items()}
    return WindowCounts(**total)
