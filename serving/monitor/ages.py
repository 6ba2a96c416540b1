"""Recall by age: how old the bundle that answered was at the event, and how old the histories that it was asked with.

Ages are seconds of event time, in a few fixed ranges, so that counts of many windows add up.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from weir.contracts import Document, Keys, WindowManifest

__all__ = ["UP_TO", "AgeHits", "Of", "ages_of", "by_age", "first_rows"]

Of = Literal["bundle", "history"]
"""Whose age."""

UP_TO: Final = (60.0, 300.0, 1800.0, 7200.0, 21600.0, 86400.0, 604800.0)
"""The upper ends of the ranges, seconds; a last one has what is older."""

_Ints = npt.NDArray[np.int64]


class AgeHits(Document):
    """Answers of one range of ages: how many, and how many of them had the next item among the first k."""

    of: Of
    up_to: float | None = Field(description="upper end of the range, seconds; null: beyond the largest")
    cases: int = Field(ge=0)
    hits: dict[int, int] = Field(description="k -> answers with the next item among the first k")


def by_age(of: Of, ages: npt.NDArray[np.float64], hits: Mapping[int, Sequence[float]]) -> tuple[AgeHits, ...]:
    """Count answers by their ages (n,), seconds; `hits` says by k which of them had the item, n values of 0 or 1.

    An age below 0 belongs to an event that came after what the bundle was trained on, although it happened before:
    nobody was served so, and it does not count.
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
    """Count the answers about a window's events by both ages; those about late events, which are of no time, have none.

    `times` (n,) are those of the events, `newest` (n,) of the newest event that the bundles were trained on, both in
    milliseconds. Histories are as old as the start of the window. `hits` has those of ``served`` and ``committed``.
    """
    if manifest.pane or not times:
        return ()
    at = np.array(times, np.int64)
    return (
        *by_age("bundle", (at - np.array(newest, np.int64)) / 1000, hits["served"]),
        *by_age("history", (at - manifest.start_ms) / 1000, hits["committed"]),
    )


def first_rows(users: Keys, times: _Ints) -> _Ints:
    """Return for each event (n,) the row of its user's first one: its history is what was known before all of them.

    Of events at the same time the first in storage order counts.
    """
    order = np.lexsort((times, users))
    _, first, user = np.unique(users[order], return_index=True, return_inverse=True)
    rows = np.empty(len(users), np.int64)
    rows[order] = order[first[user]]
    return rows
