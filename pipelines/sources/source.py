"""What a source of rows is: partitions with positions; and whether the log of a store goes on in this store."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from shlex import quote
from typing import Any, Final, Generic, TypeVar

from weir.contracts import EventClock, LogState, SourceSpan, Store, UserError
from weir.pipelines.runs.positions import Listed
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
"""The key of the windows of another store as a partition; that of a file ends with its suffix."""

P = TypeVar("P", bound=Listed)


class MovedStoreError(UserError):
    """The log goes on in another store, or is about to; the message says in which."""


class Source(ABC, Generic[P]):
    """What a pipeline reads. Positions in its partitions ascend, and the row at a position never changes.

    Every method but `check` and `windows` raises `BrokerAwayError` while nobody can say what there is.
    """

    is_behind: bool = False
    """Whether less was read than was listed: the driver then looks again, changed or not."""

    @abstractmethod
    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that must not take rows from this source; raises a `UserError`."""

    @abstractmethod
    def discover(self) -> list[P]:
        """Return the partitions as they are now; raises `FileNotFoundError` where there is nothing yet."""

    def starts(self, _partitions: list[P], _state: LogState, _in_hand: InHand) -> dict[str, SourceSpan]:
        """Return spans by key that are to be committed before these partitions are read: where reading starts."""
        return {}

    def in_log(self, partitions: list[P]) -> Set[str] | None:
        """Return the keys of all files of the log; None if unknown: then retention drops no position of a file."""
        return {partition.key for partition in partitions}

    @abstractmethod
    def identify(self, partitions: list[P], state: LogState, in_hand: InHand) -> list[P]:
        """Return listed partitions with their keys and fingerprints; those that cannot be read now are left out."""

    @abstractmethod
    def cut(self, found: list[P], state: LogState, in_hand: InHand) -> Iterator[list[P]]:
        """Yield what each of successive runs reads, at least once: memory bounds a run. The last is all of it.

        A run ends before the next one is asked for; by then it shows in `state` and `in_hand`.
        """

    @abstractmethod
    def readings(self, partitions: Sequence[P], seen: Seen) -> Sequence[Planned]:
        """Return what a run is to read of the partitions that `cut` has yielded."""

    @abstractmethod
    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Add the transforms from `readings` to the commit of a run."""

    def look(self, _partitions: list[P], _clock: EventClock, *, is_all: bool) -> str:  # noqa: ARG002 - of other sources
        """Return why a run must not commit what there is of a new log yet, "" if it may.

        With `is_all` nothing more is to come. Raises a `UserError` where nothing can be used.
        """
        return ""

    def end(self) -> None:
        """Raise a `UserError` where a bounded run has not read all there is."""


class LogSource(Source[P]):
    """A log; any one, as its positions tell the rows apart."""

    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that has moved, or whose rebuild has not ended; raises `MovedStoreError`."""
        check_home(store, state)


def check_home(store: Store, state: LogState) -> None:
    """Refuse a store whose log goes on in another one, or does not go on here yet; raises `MovedStoreError`."""
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
    """Refuse a store on its way to another one, which does not hold all of it yet; raises `MovedStoreError`."""
    if state.moved_to and _is_half_rebuilt(LogState.open(Store(state.moved_to))):
        raise MovedStoreError(
            f"{store.url}: is moving to {state.moved_to}, which does not hold all of it yet: "
            f"run `weir rebuild --from {quote(store.url)} --to {quote(state.moved_to)} --cut-over` first, "
            "with the settings of the rebuild"
        )


def _is_half_rebuilt(state: LogState) -> bool:
    """Say whether a store takes in the windows of another one, which has the log."""
    return WINDOWS in state.sources and not state.moved_from
