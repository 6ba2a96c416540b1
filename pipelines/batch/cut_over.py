"""Cut-over: end a store with one commit and continue its log in the rebuild; no row is lost or counted twice.

The last commit of the old store names the new one (`Commit.moved_to`); no pipeline commits there again. Then the new
store takes in the remaining windows, and one commit (`Commit.moved_from`) hands it the positions of the log. A killed
cut-over is completed by running it again.
"""

import contextlib
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from weir.contracts import BundleLog, CommitLog, CommitTakenError, Inherited, LogState, SourceSpan, Store, read_format
from weir.contracts.commits.commit import MOVED
from weir.pipelines.batch.ingest import IngestSummary, ingest
from weir.pipelines.batch.rebuild import RebuildError, WindowSource, address, position_of
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.run_registry import append
from weir.pipelines.sources.source import WINDOWS
from weir.pipelines.transforms.read import is_retried
from weir.readers import generation

__all__ = ["cut_over"]


def cut_over(
    origin: Store,
    store: Store,
    config: PipelineConfig,
    *,
    from_log: bool = False,
    report: Callable[[IngestSummary], None] | None = None,
) -> IngestSummary:
    """End `origin` and continue its log in its rebuild `store`; `config` is what `rebuild.prepare` returned.

    With `from_log`, the rebuild reads the log itself instead of the windows of `origin`. Returns the summary of the
    commits to `store`; `report` is called after each run. Raises
    `RebuildError` if the cut-over is not possible or was interrupted, and the errors of `ingest`.
    """
    if from_log:
        total = ingest(store, config, report=report, registry=CollectorRegistry())
        _check_log(LogState.open(origin), LogState.open(store))
        _leave(origin, store)
        return total
    if LogState.open(store).moved_from == address(origin):
        return IngestSummary()
    # Copy most windows while the old pipeline still runs, so that the log pauses only for the rest.
    source = WindowSource(origin, config)
    before = _take_in(source, store, config, report)
    _leave(origin, store, source)
    rest = _take_in(source, store, config, report)
    _hand_over(origin, store)
    return before + rest


def _take_in(
    source: WindowSource, store: Store, config: PipelineConfig, report: Callable[[IngestSummary], None] | None
) -> IngestSummary:
    """Commit the rows of all present windows of the origin to `store`; return the summary of the commits.

    A cut-over calls this twice, so each call has its own metrics registry. Raises `RebuildError` if windows are left.
    """
    total = ingest(store, config, source=source, report=report, registry=CollectorRegistry())
    span = LogState.open(store).sources.get(WINDOWS)
    if span is None or not span.is_done or span.stop < position_of(source.state.cursor.sequence):
        raise RebuildError(f"{store.url}: does not hold all windows of its origin yet: run it again")
    return total


def _check_log(origin: LogState, state: LogState) -> None:
    """Raise `RebuildError` if the rebuild, in `state`, has read less of the log than its origin."""
    read = _newest(state)
    for name, span in _newest(origin).items():
        rebuilt = read.get(name)
        if rebuilt is None or rebuilt.stop < span.stop:
            raise RebuildError(
                f"{name}: the old store has read this partition of the log to {span.stop}, its rebuild less: run it "
                "again, or rebuild from the windows if the file or topic is gone"
            )
        if rebuilt.first > span.first:
            raise RebuildError(
                f"{name}: the old store has read this partition from {span.first} on, its rebuild from {rebuilt.first} "
                "on, by pipeline.kafka.start or because the broker has deleted the rest: rebuild from the windows"
            )


def _newest(state: LogState) -> dict[str, SourceSpan]:
    """Return log file or topic partition -> its newest span; the key lacks the suffix ``@2`` of a rewritten file."""
    by_age = sorted(_of_log(state), key=generation)
    return {key.removesuffix(f"@{generation(key)}"): state.sources[key] for key in by_age}


def _leave(origin: Store, store: Store, source: WindowSource | None = None) -> None:
    """Commit that `origin` has moved to `store`; a running pipeline of `origin` then ends before its next commit.

    Raises `RebuildError` if `origin` has moved elsewhere, if only `origin` has a promoted bundle, or if users were
    erased since `source` was opened.
    """
    if BundleLog(origin).current() is not None and BundleLog(store).current() is None:
        raise RebuildError(f"{store.url}: has no promoted bundle to answer from; train one with `weir train`")
    log, state, target = CommitLog(origin), LogState.open(origin), address(store)
    while not state.moved_to:
        if source is not None:
            source.check_rows(state)
        with contextlib.suppress(CommitTakenError):
            append(log, state, MOVED, moved_to=target)
        state.catch_up(log)
    if state.moved_to != target:
        raise RebuildError(f"{origin.url}: has moved to {state.moved_to} already")


def _hand_over(origin: Store, store: Store) -> None:
    """Commit the log positions of `origin` to `store`, so that its pipeline continues the log there."""
    last, form = LogState.open(origin), read_format(origin)
    window_ms = form.layout.window_ms if form and form.layout else 1
    sources = {key: _carried(last.sources[key], last.counted.get(key, {}), window_ms) for key in _of_log(last)}
    log, state = CommitLog(store), LogState.open(store)
    while not state.moved_from:
        with contextlib.suppress(CommitTakenError):
            append(log, state, MOVED, moved_from=address(origin), sources=sources)
        state.catch_up(log)


def _of_log(state: LogState) -> list[str]:
    """Return the partition keys of the log itself: not of a rebuild's source windows, not of retried dead letters."""
    return [key for key in state.sources if key != WINDOWS and not is_retried(key)]


def _carried(span: SourceSpan, counted: dict[int, int], window_ms: int) -> SourceSpan:
    """Return a span of the origin as the new store continues it: with `counted` as inherited rows, no dead letters."""
    beyond = {start: stop for start, stop in counted.items() if stop > span.resume}
    inherited = (*span.inherited, Inherited(window_ms=window_ms, counted=beyond)) if beyond else span.inherited
    return span.model_copy(
        update={
            "start": span.resume,
            "dead": 0,
            "letters": {},
            "letter_checksums": {},
            "inherited": inherited,
            "counted": {},
            "open": {},
            "unlisted": None,
            "job": "",
        }
    )
