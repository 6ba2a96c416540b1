"""Rebuild: the windows of a store as the source of another one with other settings.

All windows are one partition, and the position of a row is its pane and its place there: what makes every row of a log
count exactly once (`weir.pipelines.positions`) makes every row of the windows count exactly once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final

from pydantic import JsonValue

from weir.contracts import (
    CommitLog,
    EventClock,
    FeatureNames,
    LogState,
    Store,
    UserError,
    WindowLog,
    checksum,
    read_format,
)
from weir.contracts.commit import CommitRef
from weir.contracts.commits import LogMismatchError
from weir.pipelines.chain import RowsToWindows
from weir.pipelines.config import PipelineConfig
from weir.pipelines.lasting import settled
from weir.pipelines.layout import open_layout, with_window
from weir.pipelines.plan import InHand, Planned, RunPlan, Seen, file_readings
from weir.pipelines.sources import WINDOWS, Source
from weir.pipelines.transforms.panes import ReadPanes, pane_of, position_of
from weir.readers import Format, Partition, cost_of

__all__ = ["RebuildError", "WindowSource", "address", "prepare"]

_ROW_BYTES: Final = cost_of(1, 64)
"""What a row without its ids costs, as `run_bytes` counts."""


_AT: Final = "@"
"""In a fingerprint, between the identity of the origin and the newest of its commits whose windows are taken in."""


class RebuildError(UserError):
    """A store cannot become the rebuild of another; the message says why."""


def prepare(
    origin: Store, store: Store, config: PipelineConfig, named: Mapping[str, JsonValue] | None = None
) -> PipelineConfig:
    """Give a new store the keys and the clock of its origin and settings of its own, and return those to write it with.

    `named` goes to `open_layout`. Raises `RebuildError` where there is no origin, or where the store has other
    keys, and `LayoutError` where the store exists and was written with other settings.
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
    """Return where a store is, whatever the working folder."""
    return store.url if store.local_path is None else str(store.local_path.resolve())


@dataclass
class WindowSource(Source[Partition]):
    """The committed windows of `origin`, as one partition."""

    origin: Store
    config: PipelineConfig
    state: LogState = field(init=False)

    def __post_init__(self) -> None:
        self._commits = CommitLog(self.origin)
        self.state = LogState.open(self.origin)
        self._redaction = self.state.redaction
        # Written once, with its time: no other store has the same. A redaction changes the positions of rows.
        identity = checksum(self.origin.read("STORE.json"))
        self._identity = identity if self._redaction < 0 else f"{identity}-{self._redaction}"

    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that is no rebuild of this origin.

        Raises `RebuildError`; `LogMismatchError` where the origin does not hold the windows that were taken any more.
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
        try:
            self._commits.require(f"{store.url}, which is rebuilt from {self.origin.url}", sequence, ref)
        except LogMismatchError as error:
            problem = f"{error.problem}: rebuild it into a new folder"
            raise LogMismatchError(error.reader, problem, error.reason) from None

    def check_rows(self, state: LogState) -> None:
        """Refuse a state of the origin in which rows have other positions; raises `RebuildError`."""
        if state.redaction != self._redaction:
            raise RebuildError(
                f"{self.origin.url}: users were forgotten since this rebuild started, so its rows have moved; "
                "rebuild it into a new folder"
            )

    def discover(self) -> list[Partition]:
        """Return the windows as they are now; while there is nothing new, that costs one request."""
        self.state.catch_up(self._commits)
        self.check_rows(self.state)
        size = position_of(self.state.cursor.sequence)
        return [Partition(WINDOWS, self.origin.url, Format.PARQUET, size, fingerprint=self._identity)]

    def identify(self, partitions: list[Partition], _state: LogState, _in_hand: InHand) -> list[Partition]:
        """Return the partition, which is what it is."""
        return partitions

    def cut(self, found: list[Partition], state: LogState, in_hand: InHand) -> Iterator[list[Partition]]:
        """Yield the windows up to as many rows as fit into `run_bytes`, up to twice as many, and so on."""
        [windows] = found
        seen = state.sources | in_hand.pending
        start = pane_of(seen[WINDOWS].stop) if WINDOWS in seen else 0
        ref = _decoded(seen[WINDOWS].fingerprint.partition(_AT)[2]) if WINDOWS in seen else None
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
        """Return the windows up to a commit, which identifies them."""
        return windows if ref is None else replace(windows, fingerprint=f"{self._identity}{_AT}{_encoded(ref)}")

    def readings(self, partitions: Sequence[Partition], seen: Seen) -> Sequence[Planned]:
        """Return the partition where it has more windows than are taken in."""
        return file_readings(self.config, partitions, seen)

    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Read the panes and commit their rows."""
        rows = readings | "Read windows" >> ReadPanes(self.origin, self.config)
        return rows | "Windows" >> RowsToWindows(store, plan.run, self.config, plan.histories)


def _encoded(ref: CommitRef) -> str:
    return f"{ref.number}-{ref.checksum}"


def _decoded(text: str) -> CommitRef | None:
    number, _, found = text.partition("-")
    return CommitRef(number=int(number), checksum=found) if text else None


def _check_features(origin: Store, of: str, wanted: FeatureNames, known: FeatureNames) -> None:
    """Refuse a feature of another kind than the windows have; one that they do not have is unknown."""
    wrong = {*wanted.categorical} & {*known.dense} | {*wanted.dense} & {*known.categorical}
    if wrong:
        kind = "dense" if {*wrong} & {*known.dense} else "categorical"
        raise RebuildError(f"{of} feature {min(wrong)} is {kind} in {origin.url}: name it so in pipeline.{of}_features")
