"""Recall by age: kept bundles answer queries about later windows, with histories of several ages.

The events of a window are the same for every age, so that differences are due to age alone. The server's own code
answers in this process, without a catalogue, and leaves seen items out (`served` in `weir.serving.monitor.recall`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts import (
    PADDING_KEY,
    BundleLog,
    BundleManifest,
    CorruptArtefactError,
    ItemKeys,
    Keys,
    Label,
    Store,
    UserKeys,
    WindowLog,
)
from weir.contracts import WindowManifest as Window
from weir.contracts.base import columns
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.histories.files import KnownUsers, nothing_known
from weir.serving.monitor.results import first_rows
from weir.serving.search.queries import ByHistory, Features, Query, Task, said_in
from weir.serving.search.retriever import Retriever

__all__ = ["Aged", "Judged", "Sampling", "judged"]

Aged = Literal["bundle", "history", "both"]
"""The part of a server that is old.

``bundle``: an old bundle with the history up to the event. ``history``: the newest bundle before the window, with an
old history. ``both``: an old bundle with an equally old history, as of a server that looks users up in the store.
"""

_BATCH: Final = 256
_COLUMNS: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.HISTORY, columns.LABEL]

Hits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sampling:
    """Size of a measurement: up to `events` positive events in each of the newest `windows`, and ages up to `ages`.

    `k` is the cut-off of recall, `seed` seeds the draw of events.
    """

    windows: int = 20
    ages: int = 10
    events: int = 500
    k: int = 20
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Judged:
    """The result for one window: whether the answers about its n events, from `users` (n,), were hits at each age.

    Ages count windows: a bundle of age 1 was trained on all windows before this window; a history of age 1 ends at this
    window's start; a history of age 0 ends at the event.
    """

    window: Window
    users: UserKeys
    hits: dict[tuple[Aged, int], Hits] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Events:
    """n events of a window: their item ids, their histories (item keys, oldest first) by age, and their features."""

    items: list[str]
    histories: dict[int, list[ItemKeys]]
    features: list[Features]


def judged(store: Store, sampling: Sampling) -> list[Judged]:
    """Return the hits of kept bundles on events of the newest windows.

    Windows without a bundle of age 1, and bundles that are retired meanwhile, are left out.

    Raises
    ------
    CorruptArtefactError
        If a bundle or a window is damaged.
    """
    log = WindowLog(store)
    panes = log.newest(2 * (sampling.windows + sampling.ages))
    plan = _plan(panes, _served(BundleLog(store)), sampling)
    drawn = {pane.sequence: _drawn(log, pane, sampling) for pane in panes if pane.sequence in plan}
    past = _past(log, panes, plan, drawn)
    results = {pane.sequence: Judged(pane, _users_of(drawn[pane.sequence])) for pane in panes if pane.sequence in plan}
    events = {number: _events(log, results[number].window, drawn[number], past, max(plan[number])) for number in plan}
    for bundle, windows in _by_bundle(store, plan):
        for window, age in windows:
            for (aged, old), history in _questions(age, plan[window]):
                results[window].hits[aged, old] = _hits(bundle, events[window], history, sampling.k)
    return [result for result in results.values() if ("both", 1) in result.hits]


def _served(log: BundleLog) -> list[BundleManifest]:
    """Return the stored bundles that were promoted and not withdrawn, by the last pane that they were trained on."""
    good = [bundle for bundle in log.manifests() if bundle.promoted and log.withdrawal(bundle.version) is None]
    return sorted(good, key=lambda bundle: bundle.trained_sequence)


def _plan(
    panes: Sequence[Window], bundles: Sequence[BundleManifest], sampling: Sampling
) -> dict[int, dict[int, BundleManifest]]:
    """Return the windows to measure and the bundles to ask, as sequence of a window -> age -> bundle of this age."""
    plan = dict[int, dict[int, BundleManifest]]()
    for window in [pane for pane in panes if pane.pane == 0][-sampling.windows :]:
        length, ages = window.end_ms - window.start_ms, dict[int, BundleManifest]()
        for bundle in bundles:
            age = -((bundle.max_event_ms - window.start_ms) // length)
            is_read = window.start_ms - (age - 1) * length >= panes[0].start_ms
            if bundle.trained_sequence < window.sequence and 1 <= age <= sampling.ages and is_read:
                ages[age] = bundle
        if 1 in ages:
            plan[window.sequence] = ages
    return plan


def _by_bundle(
    store: Store, plan: dict[int, dict[int, BundleManifest]]
) -> Iterator[tuple[LoadedBundle, list[tuple[int, int]]]]:
    """Yield each bundle of a plan with its (window, age) pairs; bundles are loaded as deltas if possible."""
    asked, log = defaultdict[str, list[tuple[int, int]]](list), BundleLog(store)
    order = {bundle.version: bundle.trained_sequence for ages in plan.values() for bundle in ages.values()}
    for window, ages in plan.items():
        for age, bundle in ages.items():
            asked[bundle.version].append((window, age))
    loaded: LoadedBundle | None = None
    for version in sorted(asked, key=order.__getitem__):
        if (kept := _loaded(log, version, loaded)) is not None:
            loaded = kept
            yield loaded, asked[version]


def _loaded(log: BundleLog, version: str, before: LoadedBundle | None) -> LoadedBundle | None:
    """Load a bundle, as deltas on the bundle `before` if possible; None if the bundle has been retired."""
    try:
        return load_bundle(log, version, served=before)
    except (CorruptArtefactError, FileNotFoundError):
        if version in log.versions():
            raise
        return None


def _questions(age: int, ages: dict[int, BundleManifest]) -> list[tuple[tuple[Aged, int], int]]:
    """Return what to ask a bundle of this age: ((aged part, its age), age of the history to ask with).

    The bundle of age 1 is asked with histories of all `ages`.
    """
    questions: list[tuple[tuple[Aged, int], int]] = [(("bundle", age), 0), (("both", age), age)]
    return questions + [(("history", old), old) for old in (0, *ages)] if age == 1 else questions


def _drawn(log: WindowLog, window: Window, sampling: Sampling) -> pa.Table:
    """Draw positive examples of a window; the draw depends on the seed and the window only."""
    said = [columns.USER_FEATURES] if window.user_features.names.all else []
    own = log.all_examples(window, [*_COLUMNS, *said])
    places = np.flatnonzero(own[columns.LABEL].to_numpy() == Label.POSITIVE)
    if len(places) > sampling.events:
        draw = np.random.default_rng([sampling.seed, window.sequence])
        places = np.sort(draw.choice(places, sampling.events, replace=False))
    return own.take(places)


def _past(
    log: WindowLog,
    panes: Sequence[Window],
    plan: Mapping[int, dict[int, BundleManifest]],
    drawn: Mapping[int, pa.Table],
) -> list[tuple[Window, pa.Table]]:
    """Return the windows that the histories need, each with its events of all users of the `drawn` examples."""
    if not plan:
        return []
    users = np.unique(np.concatenate([_users_of(events) for events in drawn.values()]))
    since = min(_since(pane, max(plan[pane.sequence])) for pane in panes if pane.sequence in plan)
    wanted = [pane for pane in panes if pane.start_ms >= since and pane.sequence <= max(plan)]
    return [(pane, _of_users(log.all_examples(pane, _COLUMNS), users)) for pane in wanted]


def _since(window: Window, age: int) -> int:
    """Return when the history that is `age` windows old at `window` ends, milliseconds since 1970."""
    return window.start_ms - (age - 1) * (window.end_ms - window.start_ms)


def _events(
    log: WindowLog, window: Window, drawn: pa.Table, past: Sequence[tuple[Window, pa.Table]], oldest: int
) -> _Events:
    """Return the `drawn` events of a window, with their histories of each age up to `oldest`, from `past` windows."""
    names = log.items(window)
    ids = dict(zip(names[columns.ITEM_KEY].to_pylist(), names[columns.ITEM_ID].to_pylist(), strict=True))
    since = _since(window, oldest)
    known = [part for one, part in past if one.sequence <= window.sequence and one.start_ms >= since]
    events = _of_users(pa.concat_tables([*known, drawn.select(_COLUMNS)]), _users_of(drawn))
    histories = {0: _lists(drawn)}
    for age in range(1, oldest + 1):
        histories[age] = _as_of(events, _since(window, age), len(drawn))
    return _Events([ids[key] for key in drawn[columns.ITEM_KEY].to_pylist()], histories, said_in(drawn))


def _users_of(events: pa.Table) -> UserKeys:
    return UserKeys(events[columns.USER_KEY].to_numpy())


def _of_users(events: pa.Table, users: Keys) -> pa.Table:
    return events.filter(pa.array(np.isin(events[columns.USER_KEY].to_numpy(), users)))


def _as_of(events: pa.Table, cut_ms: int, count: int) -> list[ItemKeys]:
    """Return the histories that the users of the last `count` events had at `cut_ms`.

    A user's history at a time is the history stored with the user's next event.
    """
    since = events.filter(pa.array(events[columns.TIMESTAMP].to_numpy() >= cut_ms))
    first = first_rows(since[columns.USER_KEY].to_numpy(), since[columns.TIMESTAMP].to_numpy())
    return _lists(since.take(first[-count:]))


def _lists(events: pa.Table) -> list[ItemKeys]:
    """Return the histories of events, without padding."""
    histories = events[columns.HISTORY].combine_chunks()
    keys = histories.flatten().to_numpy().reshape(len(events), -1)
    return [ItemKeys(row[row != PADDING_KEY]) for row in keys]


class _NoUsers:
    """A source of histories in which every user is unknown, for queries that bring their histories."""

    def look_up(self, users: UserKeys, asked: npt.NDArray[np.int64]) -> KnownUsers:
        return nothing_known(len(users), len(asked))


def _hits(bundle: LoadedBundle, events: _Events, age: int, k: int) -> Hits:
    """Ask a bundle with histories of this age; return a mask of the answers whose `k` items have the event's item."""
    retriever, shown = Retriever(_NoUsers()), list[list[str]]()
    # The retriever uses a history's ids only to report unknown items.
    users = zip(events.histories[age], events.features, strict=True)
    queries = [Query(ByHistory(("",) * len(keys), keys), k, said) for keys, said in users]
    for start in range(0, len(queries), _BATCH):
        task = Task(bundle, tuple(queries[start : start + _BATCH]), exclude_seen=True)
        shown += [hits.ids for hits in retriever([task])[0].hits]
    return np.array([item in ids for item, ids in zip(events.items, shown, strict=True)], np.bool_)
