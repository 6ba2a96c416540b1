"""Sources: the interface of a log, or of other partitions, to runs; and the check that a store may take rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from shlex import quote
from typing import Any, Final, Generic, TypeVar

from weir.contracts import EventClock, LogState, SourceSpan, Store, UserError
from weir.pipelines.runs.run import Listed
from weir.pipelines.sources.plan import InHand, Planned, RunPlan, Seen

__all__ = [
    "WINDOWS",
    "LogSource",
    "MovedStoreError",
    "Source",
    "check_arrived",
    "check_home",
]

WINDOWS: Final = "windows"
"""The partition key of another store's windows; keys of files end with a suffix."""

P = TypeVar("P", bound=Listed)


class MovedStoreError(UserError):
    """The log continues in another store, or is about to."""


class Source(ABC, Generic[P]):
    """A source of rows in partitions. Positions in a partition ascend, and the row at a position never changes.

    Every method but `check` and `windows` raises `BrokerAwayError` while the source cannot be reached.
    """

    is_behind: bool = False
    """Whether less was read than was listed, so that the driver must look again."""

    @abstractmethod
    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that must not take rows from this source; raises a `UserError`."""

    @abstractmethod
    def discover(self) -> list[P]:
        """Return the present partitions; raises `FileNotFoundError` if the source does not exist yet."""

    def starts(self, _partitions: list[P], _state: LogState, _in_hand: InHand) -> dict[str, SourceSpan]:
        """Return partition key -> start span that must be committed before the partitions are read."""
        return {}

    def in_log(self, partitions: list[P]) -> Set[str] | None:
        """Return the keys of all log files; None if they are unknown, so that retention forgets no file."""
        return {partition.key for partition in partitions}

    @abstractmethod
    def identify(self, partitions: list[P], state: LogState, in_hand: InHand) -> list[P]:
        """Return the readable partitions with their keys and fingerprints."""

    @abstractmethod
    def cut(self, found: list[P], state: LogState, in_hand: InHand) -> Iterator[list[P]]:
        """Yield, for one run after another, its partitions, cut to fit in memory; the last run reads to the end of all.

        The caller makes the run, which updates `state` and `in_hand`, before it asks for the partitions of the next.
        """

    @abstractmethod
    def readings(self, partitions: Sequence[P], seen: Seen) -> Sequence[Planned]:
        """Return what a run reads of partitions that `cut` has yielded."""

    @abstractmethod
    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Add the transforms from `readings` to the commit of a run."""

    def look(self, _partitions: list[P], _clock: EventClock, *, is_all: bool) -> str:  # noqa: ARG002 - of other sources
        """Return why the first run must not commit yet, "" if it may.

        With `is_all` no more input will come. Raises a `UserError` if the log has no usable row.
        """
        return ""

    def end(self) -> None:
        """Raise a `UserError` if a bounded run has not read everything."""


class LogSource(Source[P]):
    """A source that is a log. A store accepts rows of any log, because partition keys tell logs apart."""

    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that has moved, or an unfinished rebuild; raises `MovedStoreError`."""
        check_home(store, state)


def check_home(store: Store, state: LogState) -> None:
    """Refuse a store that has moved, or an unfinished rebuild; raises `MovedStoreError`."""
    if state.moved_to:
        raise MovedStoreError(
            f"{store.url}: has moved to {state.moved_to}: run the pipeline with --store {quote(state.moved_to)}"
        )
    if _is_half_rebuilt(state):
        raise MovedStoreError(
            f"{store.url}: is being rebuilt from the windows of another store, which still takes in the log: "
            f"run `weir rebuild --to {quote(store.url)} --cut-over` first, else rows would count twice"
        )


def check_arrived(store: Store, state: LogState) -> None:
    """Refuse a store that has moved to a rebuild that is unfinished; raises `MovedStoreError`."""
    if state.moved_to and _is_half_rebuilt(LogState.open(Store(state.moved_to))):
        raise MovedStoreError(
            f"{store.url}: is moving to {state.moved_to}, which does not hold all of it yet: "
            f"run `weir rebuild --from {quote(store.url)} --to {quote(state.moved_to)} --cut-over` first, "
            "with the settings of the rebuild"
        )


def _is_half_rebuilt(state: LogState) -> bool:
    """Return whether a store takes in windows of another one that still has the log."""
    return WINDOWS in state.sources and not state.moved_from
