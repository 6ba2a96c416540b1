"""The monitor's result for each pane, with recall by age, stored as ``monitor/<window>/<pane>.json``.

Ages are seconds of event time, in a few fixed ranges, so that counts of many windows can be added.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from weir.contracts import CorruptArtefactError, Document, Keys, Store, WindowManifest
from weir.contracts.base.statistics import of_newest_windows
from weir.contracts.storage.documents import read_document, write_document

__all__ = [
    "UP_TO",
    "AgeHits",
    "Examples",
    "Freshness",
    "NewestRecalls",
    "Of",
    "WindowRecall",
    "ages_of",
    "by_age",
    "first_rows",
    "load",
    "mean_recall",
    "recent_cases",
    "recorded",
    "save",
]

log = logging.getLogger(__name__)

Of = Literal["bundle", "history"]
"""The part of an answer whose age is meant: the bundle, or the histories."""

_Ints = npt.NDArray[np.int64]

UP_TO: Final = (60.0, 300.0, 1800.0, 7200.0, 21600.0, 86400.0, 604800.0)
"""Upper ends of the ranges of age, seconds; a last range has all older ages."""

_FOLDER: Final = "monitor"

_RECENT: Final = 5
"""Number of windows over which recalls are averaged."""
_WAITING: Final = 1000
"""Most panes that wait for their result; without a monitor they would grow forever."""


class AgeHits(Document):
    """Counts of answers for one range of ages of bundle or histories: all answers, and those with the next item."""

    of: Of
    up_to: float | None = Field(description="upper end of the range, seconds; null: beyond the largest")
    cases: int = Field(ge=0)
    hits: dict[int, int] = Field(description="k -> answers with the next item among the first k")


def by_age(of: Of, ages: npt.NDArray[np.float64], hits: Mapping[int, Sequence[float]]) -> tuple[AgeHits, ...]:
    """Count answers by their ages (n,), seconds; `hits` maps k to n values of 0 or 1.

    Answers of negative age do not count: such an event happened before the bundle's newest event, but arrived after the
    bundle was trained.
    """
    ranges = np.where(ages < 0, -1, np.searchsorted(UP_TO, ages))
    ends = [*UP_TO, None]
    return tuple(
        AgeHits(
            of=of,
            up_to=ends[place],
            cases=int(np.count_nonzero(ranges == place)),
            hits={k: int(np.asarray(values)[ranges == place].sum()) for k, values in hits.items()},
        )
        for place in range(len(ends))
        if (ranges == place).any()
    )


def ages_of(
    manifest: WindowManifest,
    times: Sequence[int],
    newest: Sequence[int],
    hits: Mapping[str, Mapping[int, Sequence[float]]],
) -> tuple[AgeHits, ...]:
    """Count the answers about a window's n events by the age of bundle and of histories; a late pane has no counts.

    `times` (n,) are the events' times, `newest` (n,) the newest event that the answering bundle was trained on, both in
    milliseconds. Histories end at the start of the window. `hits` maps the kind of recall (``served``, ``committed``)
    to k to the n hits.
    """
    if manifest.pane or not times:
        return ()
    at = np.array(times, np.int64)
    return (
        *by_age("bundle", (at - np.array(newest, np.int64)) / 1000, hits["served"]),
        *by_age("history", (at - manifest.start_ms) / 1000, hits["committed"]),
    )


def first_rows(users: Keys, times: _Ints) -> _Ints:
    """Return for each event (n,) the row of the first event of the same user.

    Of several first events at the same time, the first row counts.
    """
    order = np.lexsort((times, users))
    _, first, user = np.unique(users[order], return_index=True, return_inverse=True)
    rows = np.empty(len(users), np.int64)
    rows[order] = order[first[user]]
    return rows


class Examples(Document):
    """Numbers of events behind a result; an event whose history has no known item only counts for served recall."""

    sampled: int = 0
    model: int = Field(default=0, description="behind recall of model and index")
    served: int = Field(default=0, description="behind recall as served")
    popularity: int = Field(default=0, description="behind recall of the popularity baseline")
    skipped: dict[str, int] = Field(default_factory=dict, description="reason -> events whose answer does not count")


class Freshness(Document):
    """Freshness of a window: seconds from its events until a bundle trained on them was served, in observer's time."""

    bundle_version: str
    servable_at: float = Field(description="wall clock, seconds since 1970")
    seconds_min: float
    seconds_median: float
    seconds_max: float
    quantiles: tuple[float, ...] = Field(default=(), description="21 quantiles, from the shortest to the longest")
    events: int = Field(default=1, description="of the window, behind the quantiles")


class WindowRecall(Document):
    """The monitor's result for one pane: recalls by kind and cut-off; a kind without examples has no entry."""

    schema_version: Literal[1] = 1
    sequence: int
    window: str
    measured_at: float = Field(description="wall clock, seconds since 1970")
    bundle_versions: tuple[str, ...] = Field(description="the bundles whose answers count")
    examples: Examples
    index: dict[int, float]
    model: dict[int, float]
    served: dict[int, float]
    committed: dict[int, float] = Field(
        default_factory=dict, description="as served, with the histories that were committed before the window"
    )
    popularity: dict[int, float]
    ages: tuple[AgeHits, ...] = Field(
        default=(), description="served, by the age of the bundle; committed, by the age of the histories"
    )
    freshness: Freshness | None = None

    def cases(self, kind: str) -> int:
        """Return the number of events behind a kind of recall."""
        behind = {"index": "model", "committed": "served"}.get(kind, kind)
        return int(getattr(self.examples, behind))


def save(store: Store, result: WindowRecall) -> None:
    """Write a result atomically; it replaces an earlier result of the same pane."""
    write_document(store, f"{_FOLDER}/{result.window}.json", result)


def load(store: Store, manifest: WindowManifest) -> WindowRecall | None:
    """Return the stored result of a pane; None if the pane was not measured. Raises `CorruptArtefactError`."""
    try:
        return read_document(store, f"{_FOLDER}/{manifest.name}.json", WindowRecall)
    except FileNotFoundError:
        return None


def recorded(store: Store) -> list[WindowRecall]:
    """Return all stored results in commit order; damaged results are left out with a warning."""
    results = []
    for name in store.glob(f"{_FOLDER}/*/*.json"):
        try:
            results.append(read_document(store, name, WindowRecall))
        except CorruptArtefactError as error:
            log.warning("left out: %s", error)
    return sorted(results, key=lambda result: result.sequence)


def mean_recall(recalls: Sequence[WindowRecall], kind: str, k: int, last: int = _RECENT) -> float | None:
    """Return the mean of a kind of recall at k, weighted by examples; None if no result has it.

    The mean is over all panes of the `last` newest windows that have this recall.
    """
    values = [(getattr(recall, kind)[k], recall.cases(kind)) for recall in _newest(recalls, kind, k, last)]
    total = sum(examples for _, examples in values)
    return sum(value * examples for value, examples in values) / total if total else None


def recent_cases(recalls: Sequence[WindowRecall], kind: str, k: int) -> int:
    """Return the number of examples behind `mean_recall` with the same arguments."""
    return sum(recall.cases(kind) for recall in _newest(recalls, kind, k, _RECENT))


def _newest(recalls: Sequence[WindowRecall], kind: str, k: int, last: int) -> list[WindowRecall]:
    return of_newest_windows(((recall.window, recall) for recall in recalls if k in getattr(recall, kind)), last)


@dataclass
class NewestRecalls:
    """Follows the monitor's stored results; `recalls` has the newest `kept` ones.

    At most two files are read while there is no new result, because windows are measured in commit order.
    """

    store: Store
    kept: int = 100
    recalls: deque[WindowRecall] = field(init=False)
    _waiting: deque[WindowManifest] = field(default_factory=lambda: deque(maxlen=_WAITING))

    def __post_init__(self) -> None:
        self.recalls = deque(maxlen=self.kept)

    def expect(self, windows: Iterable[WindowManifest]) -> None:
        """Add newly committed windows to those whose results `catch_up` is to read; only the newest `kept` count."""
        self._waiting.extend(deque(windows, maxlen=self.kept))

    def catch_up(self) -> None:
        """Read new results; a damaged result is left out and raises `CorruptArtefactError`."""
        while self._waiting and (self._take_first() or self._skip_first()):
            pass

    def _take_first(self) -> bool:
        """Read the result of the first waiting window; return False if it has none yet."""
        try:
            result = load(self.store, self._waiting[0])
        except CorruptArtefactError:
            self._waiting.popleft()
            raise
        if result is None:
            return False
        self.recalls.append(result)
        self._waiting.popleft()
        return True

    def _skip_first(self) -> bool:
        """Skip the first waiting window if it has no result although the last one has; return whether the last has."""
        if len(self._waiting) < 2 or load(self.store, self._waiting[-1]) is None:
            return False
        if load(self.store, self._waiting[0]) is None:
            self._waiting.popleft()
        return True
