"""All that a run has made, as one commit; whoever makes the parts, the commit is made the same way."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

import pyarrow as pa

from weir.contracts import (
    ITEMS_SCHEMA,
    Commit,
    ExposureCounts,
    FileEntry,
    HistoryFile,
    SourceSpan,
    Store,
    WindowCounts,
    WindowManifest,
    WindowName,
    columns,
)
from weir.contracts.artefacts import write_table
from weir.contracts.commit import requirements
from weir.contracts.history_files import HISTORIES
from weir.contracts.source_span import SPANS
from weir.contracts.user_features import UserFeatures
from weir.pipelines.committed_panes import panes_before
from weir.pipelines.config import PipelineConfig
from weir.pipelines.item_features import newest_known
from weir.pipelines.open_rows import OpenRows
from weir.pipelines.positions import Run
from weir.pipelines.progress import LettersWritten
from weir.pipelines.transforms.count import SketchCoder, empty_sketch
from weir.pipelines.transforms.write import ShardReport

__all__ = ["Made", "RunCommit", "RunParts", "Start", "WindowSketches"]


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


@dataclass
class _Pane:
    """All that has been made of one pane."""

    name: WindowName
    reports: list[ShardReport] = field(default_factory=list)
    sketches: WindowSketches | None = None


@dataclass
class RunParts:
    """All that a run has made, sorted: panes by window start, files of dead letters by partition."""

    panes: dict[int, _Pane] = field(default_factory=dict)
    letters: dict[str, list[LettersWritten]] = field(default_factory=lambda: defaultdict(list))
    open_rows: list[OpenRows] = field(default_factory=list)
    histories: list[HistoryFile] = field(default_factory=list)

    @classmethod
    def of(cls, elements: Iterable[Made], store: Store, run: Run) -> "RunParts":
        """Sort what the transforms have made."""
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


@dataclass(frozen=True)
class RunCommit:
    """Makes the commit of a run."""

    store: Store
    run: Run
    config: PipelineConfig

    def of(self, parts: RunParts, spans: dict[str, SourceSpan]) -> Commit:
        """Write what only the whole run knows, and return the commit; panes are listed in order of time."""
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
            letters=tuple(one.file for key in sorted(parts.letters) for one in parts.letters[key]),
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
        """Return those of all shards, in their order: the same bits, whatever the order of the reports."""
        written = [(report.file.name, report.user_features) for report in pane.reports if report.file is not None]
        parts = [said for _, said in sorted(written, key=itemgetter(0))]
        return UserFeatures.merged([UserFeatures.nothing(self.config.user_features), *parts])

    def _write_items(self, pane: _Pane) -> FileEntry:
        found = pa.concat_tables([report.items for report in pane.reports])
        merged = found.group_by(columns.ITEM_KEY).aggregate([(columns.ITEM_ID, "min"), (columns.COUNT, "sum")])
        items = merged.rename_columns(ITEMS_SCHEMA.names).cast(ITEMS_SCHEMA).sort_by(columns.ITEM_KEY)
        observed = [report.features for report in pane.reports if report.features is not None]
        items = newest_known(items, observed, self.config.item_features)
        return write_table(self.store, f"{pane.name.folder(self.run.id)}/{WindowName.items()}", items)

    def _write_sketches(self, pane: _Pane) -> list[FileEntry]:
        if (found := pane.sketches) is not None:
            items, users = map(SketchCoder.decompressed, (found.items, found.users))
        else:
            items = users = empty_sketch(self.config.sketch).to_bytes()
        folder = pane.name.folder(self.run.id)
        named = {WindowName.sketch(): items, WindowName.user_sketch(): users}
        return [self.store.write(f"{folder}/{name}", data) for name, data in named.items()]


def _required(panes: list[_Pane], spans: dict[str, SourceSpan]) -> list[str]:
    wanted = [HISTORIES] if panes else []
    return [*wanted, SPANS] if any(span.counted for span in spans.values()) else wanted
