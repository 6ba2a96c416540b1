"""Writes real windows through the contracts, for tests that need a stream before any pipeline has run."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa

from tests.pipelines.known_users import KnownUsers
from weir.contracts import (
    PADDING_KEY,
    FeatureNames,
    Label,
    Store,
    WindowCounts,
    WindowLog,
    WindowManifest,
    WindowName,
    examples_schema,
    hash_ids,
    items_schema,
)
from weir.contracts.base import columns
from weir.contracts.interactions.features import UserFeatures
from weir.contracts.storage.artefacts import write_table
from weir.pipelines.transforms.histories import TouchedUsers
from weir.sketches import CountMinSketch


class WindowWriter:
    """Commits one window after another to a store.

    `features` holds values by item for each feature; lists of strings make a categorical one. `exposed` are, for each
    event of the next windows, the items that it was shown with, equally many, and `said` is what each says of its user,
    by feature.
    """

    def __init__(self, store: Store, *, history_length: int = 10, width: int = 1 << 12) -> None:
        self.store = store
        self.users = KnownUsers(history_length)
        self.width = width
        self.sequence = 0
        self.features: dict[str, dict[str, Any]] = {}
        self.exposed: list[list[str]] | None = None
        self.said: dict[str, list[Any]] = {}

    def commit(
        self,
        users: list[str],
        items: list[str],
        times: np.ndarray,
        *,
        positive: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        span: tuple[int, int] | None = None,
        pane: int = 0,
    ) -> WindowManifest:
        """Commit events (users (n,), items (n,), times (n,) in ms, in order) as the next window."""
        n = len(users)
        positive = np.ones(n, np.bool_) if positive is None else positive
        weights = np.ones(n, np.float32) if weights is None else weights.astype(np.float32)
        user_keys, item_keys = hash_ids(pa.array(users, pa.string())), hash_ids(pa.array(items, pa.string()))
        events = pa.table(
            {
                columns.USER_KEY: user_keys,
                columns.ITEM_KEY: item_keys,
                columns.TIMESTAMP: times,
                columns.LABEL: np.where(positive, Label.POSITIVE, Label.NEGATIVE).astype(np.int8),
            }
        )
        touched = TouchedUsers.of(self.users, user_keys, self.users.length)
        history = touched.extend(events).history
        self.users.take_in(touched.delta(1 << 30))
        start, end = span if span is not None else (int(times.min()), int(times.max()) + 1)
        name = WindowName(start, end, pane)
        sketch, user_sketch = CountMinSketch(self.width), CountMinSketch(self.width)
        sketch.update(item_keys[positive])
        user_sketch.update(user_keys[positive])
        folder = name.folder(f"{self.sequence:04d}")
        files = [
            write_table(self.store, f"{folder}/{name.items()}", self._items(items, item_keys, positive)),
            self.store.write(f"{folder}/{name.sketch()}", sketch.to_bytes()),
            self.store.write(f"{folder}/{name.user_sketch()}", user_sketch.to_bytes()),
        ]
        table = _examples(events, history, weights, self.exposed)
        names, said = _names_of(self.said), UserFeatures()
        if self.said:
            values = pa.StructArray.from_arrays(
                [pa.array(self.said[field.name], field.type) for field in names.fields], fields=names.fields
            )
            table = table.append_column(pa.field(columns.USER_FEATURES, values.type, nullable=False), values)
            said = UserFeatures.of(table, names)
        # Two shards, split by user, as a pipeline would.
        for shard in (0, 1):
            part = table.filter(pa.array(user_keys % 2 == shard))
            files.append(write_table(self.store, f"{folder}/{name.examples(shard)}", part))
        manifest = self._manifest(name, times, positive, files).model_copy(update={"user_features": said})
        WindowLog(self.store).commit(manifest)
        self.sequence += 1
        return manifest

    def _manifest(self, name: WindowName, times: np.ndarray, positive: np.ndarray, files: list[Any]) -> WindowManifest:
        n, ups = len(times), int(positive.sum())
        return WindowManifest(
            sequence=self.sequence,
            attempt=f"{self.sequence:04d}",
            start_ms=name.start_ms,
            end_ms=name.end_ms,
            pane=name.pane,
            min_event_ms=int(times.min()) if n else name.start_ms,
            max_event_ms=int(times.max()) if n else name.start_ms,
            committed_at=0.0,
            counts=WindowCounts(events=n, positives=ups, negatives=n - ups),
            history_length=self.users.length,
            sketch={"kind": "count-min", "width": self.width},
            item_features=self._names,
            exposed_items=len(self.exposed[0]) if self.exposed else 0,
            files=tuple(files),
        )

    @property
    def _names(self) -> FeatureNames:
        return _names_of({name: list(by_item.values()) for name, by_item in self.features.items()})

    def _items(self, items: list[str], keys: np.ndarray, positive: np.ndarray) -> pa.Table:
        distinct, first, counts = np.unique(keys[positive], return_index=True, return_counts=True)
        ids = list(np.array(items, object)[positive][first]) if len(distinct) else []
        values: dict[str, Any] = {columns.ITEM_KEY: distinct, columns.ITEM_ID: ids, columns.COUNT: counts}
        values |= {name: [self.features[name].get(one) for one in ids] for name in self._names.all}
        return pa.table(values, schema=items_schema(self._names))


def _names_of(features: dict[str, list[Any]]) -> FeatureNames:
    lists = [name for name, values in features.items() if isinstance(next(filter(None, values)), list)]
    return FeatureNames(categorical=lists, dense=[name for name in features if name not in lists])


def _examples(events: pa.Table, history: np.ndarray, weights: np.ndarray, exposed: list[list[str]] | None) -> pa.Table:
    n, length = history.shape
    lists = pa.FixedSizeListArray.from_arrays(pa.array(history.ravel()), length)
    values = {
        **{name: events[name] for name in events.column_names},
        columns.HISTORY: lists,
        columns.WEIGHT: weights,
        columns.EVENT_KEY: pa.nulls(n, pa.int64()),
        columns.ATTRIBUTION_TOKEN: pa.nulls(n, pa.string()),
    }
    if not exposed:
        return pa.table(values, schema=examples_schema(length))
    keys = hash_ids(pa.array(itertools.chain.from_iterable(exposed), pa.string()))
    values[columns.EXPOSED] = pa.FixedSizeListArray.from_arrays(pa.array(keys), len(exposed[0]))
    return pa.table(values, schema=examples_schema(length, len(exposed[0])))


def synthetic(
    writer: WindowWriter,
    *,
    first: int = 0,
    windows: int = 3,
    events: int = 400,
    users: int = 30,
    items: int = 60,
    seed: int = 0,
    step_ms: int = 3_600_000,
    exposed: int = 0,
    said: bool = False,
) -> list[WindowManifest]:
    """Commit windows in which each user walks through a neighbourhood of items, popular ones more often.

    Each event is shown with `exposed` items of its neighbourhood, and may say where its user lives, and how old it is.
    """
    draw = np.random.default_rng(seed)
    written = []
    for number in range(first, first + windows):
        who = draw.integers(users, size=events)
        near = (who * 2 + draw.integers(6, size=events)) % items
        popular = (draw.zipf(1.5, size=events) - 1) % items
        what = np.where(draw.random(events) < 0.7, near, popular)
        times = np.sort(draw.integers(step_ms, size=events)) + number * step_ms
        if exposed:
            beside = (who[:, None] * 2 + draw.integers(8, size=(events, exposed))) % items
            writer.exposed = [[f"i{item}" for item in row] for row in beside]
        if said:
            writer.said = {
                "lives": [[f"street {user % 7}"] + ["town"] * int(user % 3 == 1) if user % 5 else None for user in who],
                "age": [float(user) if user % 4 else None for user in who],
            }
        span = (number * step_ms, (number + 1) * step_ms)
        written.append(writer.commit([f"u{user}" for user in who], [f"i{item}" for item in what], times, span=span))
    return written


FEATURES: dict[str, dict[str, Any]] = {
    "genre": {f"i{item}": [f"genre {item % 6}"] + ["old"] * (item % 4 == 1) for item in range(60) if item % 5},
    "price": {f"i{item}": float(item) for item in range(60) if item % 7},
}
"""Of most of the items of `synthetic`."""


__all__ = ["FEATURES", "PADDING_KEY", "WindowWriter", "synthetic"]
