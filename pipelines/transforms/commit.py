"""Commit: all that a run has made, as one commit; what a run is killed before does not exist."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import apache_beam as beam
from pydantic import Field

from weir.contracts import Commit, CommitLog, CommitTakenError, Document, SourceSpan, Store
from weir.contracts.documents import read_document, write_document
from weir.pipelines.config import PipelineConfig
from weir.pipelines.open_rows import OpenRows
from weir.pipelines.positions import Run
from weir.pipelines.progress import Progress
from weir.pipelines.run_commit import Made, RunCommit, RunParts

__all__ = ["CommitRun", "RunOutcome"]

_OUTCOME: Final = "outcome.json"


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


class CommitRun(beam.DoFn):
    """All that a run has made (`Made`) to its commit, if it made any.

    One key, so one worker at a time. A retry finds the commit made and takes it
    for its own by the writer that it names.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig) -> None:
        self._store = store
        self._run = run
        self._config = config

    def process(self, element: tuple[int, Iterable[Made]], progress: Progress) -> Iterator[Commit]:
        """Commit a run."""
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
        """Say whether something was read that brought no pane: blank lines, empty files."""
        known = self._run.base.sources
        return any(key not in known or known[key] != span for key, span in spans.items())

    def _waiting(self, parts: RunParts, progress: Progress) -> tuple[OpenRows, ...]:
        kept = (rows for rows in self._run.open_rows if not self._run.is_closed(rows.start_ms, progress))
        return (*kept, *parts.open_rows)
