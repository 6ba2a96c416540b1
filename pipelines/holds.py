"""What holds windows back: who still needs them, and from which pane on."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, takewhile
from typing import NamedTuple

from weir.contracts import CorruptArtefactError, LogState, Store, WindowLog
from weir.contracts.checkpoint import checkpoint_names, read_checkpoint_mark
from weir.contracts.commits import LogMismatchError
from weir.contracts.places import GATE_CASES, GATE_WINDOWS, MonitorPlace
from weir.contracts.variants import line_of, lines

__all__ = ["Hold", "histories_from", "holds"]


class Hold(NamedTuple):
    """A reader that needs the panes from `sequence` on; `why` says so in words."""

    reader: str
    sequence: int
    why: str


def holds(store: Store, state: LogState) -> list[Hold]:
    """Return what every reader of windows still needs; one that has left no trace in the store needs nothing.

    A position that is damaged, or of another commit log, holds all windows: how far its reader has got is unknown.
    """
    needed = histories_from(state)
    found = [Hold("histories", needed, "their events are not in the histories of users yet: start `weir ingest` once")]
    try:
        found += _trainer(store)
    except (CorruptArtefactError, LogMismatchError) as error:
        found.append(Hold("trainer", 0, str(error)))
    try:
        found += _monitor(store)
    except (CorruptArtefactError, LogMismatchError) as error:
        found.append(Hold("monitor", 0, str(error)))
    return found


def histories_from(state: LogState) -> int:
    """Return the first pane whose events the files of users do not hold yet."""
    return state.histories.covered


def _trainer(store: Store) -> Iterator[Hold]:
    # Where the newest checkpoint is damaged, training continues from the one before.
    marks = [mark for variant in lines(store) for mark in _marks(line_of(store, variant))]
    if marks:
        sequence, path = min(marks)
        yield Hold("trainer", sequence, f"{path.removeprefix(store.path('') + '/')} continues there")
        yield Hold("gate", _gate_from(store, sequence), "bundles are compared on these windows")


def _marks(line: Store) -> list[tuple[int, str]]:
    """Return the pane at which each checkpoint of a line continues, and its path."""
    while True:
        names = checkpoint_names(line)
        # A trainer beside removes old ones: then there are newer ones.
        with suppress(FileNotFoundError):
            return [(read_checkpoint_mark(line, name).sequence, line.path(f"checkpoints/{name}")) for name in names]


def _gate_from(store: Store, sequence: int) -> int:
    """Return the first pane that the gate reads for a trainer at this one: back to `GATE_CASES` positives."""
    log = WindowLog(store)
    start = log.left(max(sequence - GATE_WINDOWS, 0) - 1)
    before = list(takewhile(lambda pane: pane.sequence < sequence, log.follow(start)))[::-1]
    cases = accumulate((pane.counts.positives for pane in before), initial=0)
    needed = [pane.sequence for pane, known in zip(before, cases, strict=False) if known < GATE_CASES]
    return min(needed, default=sequence)


def _monitor(store: Store) -> Iterator[Hold]:
    place = MonitorPlace.read(store)
    if place is not None:
        yield Hold("monitor", min(place.measured, place.counted) + 1, "not measured, or not in its popularity yet")
    elif store.glob("monitor/*/*.json"):
        yield Hold("monitor", 0, "it has noted no place beside its results: start `weir monitor`, or remove monitor/")
