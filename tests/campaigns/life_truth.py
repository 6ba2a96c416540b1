"""What a store must hold and answer after its life, by the log alone."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from tests.campaigns.life_beside import K
from tests.campaigns.life_log import LATE, events_of, first_end
from tests.readers.files import ORIGIN, Event
from weir.contracts import BundleLog, Store, WindowLog, hash_id, read_format
from weir.serving.bundles.loading import load_bundle
from weir.serving.client import RetrievalClient, by_history, by_user


class Written(NamedTuple):
    """The parts of the log there are, who was forgotten, if windows have retired, and since which second all is there.

    Where a store has moved after windows had retired, the new one does not have what was before that.
    """

    parts: int
    forgotten: frozenset[str]
    retired: bool
    since: float

    def events(self) -> Iterator[Event]:
        """Yield the events of the log."""
        return chain.from_iterable(map(events_of, range(self.parts)))

    def rebuilt(self, store: Store) -> "Written":
        """Return what a rebuild of a store has: of its first window, some panes may have retired."""
        return self._replace(since=max(self.since, first_end(store))) if self.retired else self


Rows = dict[int, Counter[tuple[int, int, int, int]]]
"""By the start of a window, in milliseconds: how often each (user key, item key, milliseconds, label) is there."""


def check_events(store: Store, written: Written, window_seconds: int) -> int:
    """Each event is there once, but for those of forgotten users and of windows that have retired; returns how many."""
    found, wanted = _stored(store), _wanted(store, written, window_seconds)
    first = min(found if written.retired else wanted)
    for start in {start for start in wanted if start >= first} | found.keys():
        # Of the first windows, some panes may have retired, and what came late is there.
        is_whole = not written.retired or (start > first + 1000 * LATE and start >= 1000 * (ORIGIN + written.since))
        assert found[start] <= wanted[start], f"{start}: {found[start] - wanted[start]} is too much"
        assert not is_whole or found[start] == wanted[start], f"{start}: {wanted[start] - found[start]} is missing"
    return sum(rows.total() for rows in found.values())


def _stored(store: Store) -> Rows:
    log, found = WindowLog(store), defaultdict[int, Counter[Any]](Counter)
    for manifest in log.committed():
        rows = log.all_examples(manifest, ["user_key", "item_key", "timestamp", "label"])
        found[manifest.start_ms].update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return found


def _wanted(store: Store, written: Written, window_seconds: int) -> Rows:
    found, layout = defaultdict[int, Counter[Any]](Counter), read_format(store)
    assert layout is not None
    key = partial(hash_id, secret=layout.key_secret)
    for event in written.events():
        if event.type != "view" and event.user not in written.forgotten:
            second, label = ORIGIN + event.second, 1 if event.type == "click" else -1
            start = 1000 * (second // window_seconds * window_seconds)
            found[start][key(event.user), key(event.item), 1000 * second, label] += 1
    return found


def check_bundles(store: Store) -> int:
    """Every bundle finds each of its items by the item's own vector; returns how many bundles there are."""
    log = BundleLog(store)
    for manifest in log.manifests():
        bundle = load_bundle(log, manifest.version)
        popularity = bundle.popularity[np.arange(len(bundle.popularity))]
        rows = np.flatnonzero(np.isfinite(popularity))
        assert len(rows) == bundle.items
        vectors = bundle.exact.vectors[rows]
        scores = bundle.index.search(vectors, 1, nprobe=bundle.index.lists).scores[:, 0]
        is_found = scores >= (vectors * vectors).sum(1) - 0.02
        assert is_found.mean() > (0.8 if "HNSW" in manifest.index.type else 0.999), manifest.version
    return len(log.manifests())


def check_users(port: int, written: Written, kept: int) -> int:
    """The server knows the last items of users, `kept` of each, and nothing of forgotten ones; returns how many."""
    compared = 0
    with RetrievalClient(f"127.0.0.1:{port}", timeout=20) as client:
        for user, items in _last_items(written, kept).items():
            asked = [by_user(user, K), by_history(items, K), by_user("stranger", K)]
            known, same, stranger = client.retrieve(asked).hits
            expected = stranger if user in written.forgotten else same
            assert np.allclose(known.scores, expected.scores, atol=1e-4), f"{user}: {known}, {expected}"
            compared += 1
    assert compared, "there is no user to ask about"
    return compared


def _last_items(written: Written, kept: int) -> dict[str, list[str]]:
    """Return the last items that users clicked; but for who clicked two of them in one second, or one too early."""
    clicks = defaultdict[str, list[tuple[int, str]]](list)
    for event in written.events():
        if event.type == "click":
            clicks[event.user].append((event.second, event.item))
    last = {user: sorted(all_of_them)[-kept - 1 :] for user, all_of_them in clicks.items()}
    clear = {user: some for user, some in last.items() if len({second for second, _ in some}) == len(some)}
    known = {user: some[-kept:] for user, some in clear.items() if some[-kept:][0][0] >= written.since}
    return {user: [item for _, item in some] for user, some in known.items()}
