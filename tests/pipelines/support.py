"""Runs of the pipeline on a small log, and what a reader without Beam, Arrow or keys makes of that log."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.readers.files import ORIGIN, Event, write_gzip, write_lines, write_parquet  # noqa: F401 - used as support's
from weir.contracts import (
    CommitLog,
    FeatureNames,
    LogState,
    Store,
    UserHistories,
    UserKeys,
    WindowLog,
    WindowManifest,
    hash_id,
    read_format,
)
from weir.contracts.interactions.features import UserFeatures
from weir.pipelines.batch.run_once import run_once
from weir.pipelines.config import PipelineConfig, SketchConfig
from weir.pipelines.layout import identify_files, open_layout
from weir.pipelines.maintenance.change_settings import change
from weir.pipelines.sources.plan import InHand, RunPlan, make_plan
from weir.pipelines.store_settings import values_of
from weir.pipelines.transforms.read import read_dead_letters
from weir.readers import DeadLetter, discover
from weir.sketches import ExactCounter, load

TYPES = {"click": "positive", "skip": "negative", "view": "ignore"}


def config(folder: Path, **changes: Any) -> PipelineConfig:
    settings: dict[str, Any] = {
        "log": str(folder / "log"),
        "event_types": TYPES,
        "window_seconds": 10,
        "allowed_lateness_seconds": 5,
        "history_length": 3,
        "user_shards": 2,
        "sketch": SketchConfig(width=256, depth=2),
        "chunk_bytes": 200,
        "chunk_rows": 3,
        "metrics_port": 0,
    }
    return PipelineConfig(**settings | changes)


def plan_of(store: Store, settings: PipelineConfig, *, flush: bool = True, only_whole_lines: bool = False) -> RunPlan:
    found = identify_files(discover(settings.log), LogState.open(store).sources)
    ways: Any = {
        "secret": open_layout(store, settings).key_secret,
        "flush": flush,
        "only_whole_lines": only_whole_lines,
    }
    return make_plan(store, settings, found, LogState.open(store), InHand(), **ways)


def change_settings(store: Store, settings: PipelineConfig) -> None:
    change(store, values_of(settings))


def run(store: Store, settings: PipelineConfig, *, flush: bool = True, only_whole_lines: bool = False) -> None:
    run_once(store, settings, plan_of(store, settings, flush=flush, only_whole_lines=only_whole_lines))


def dead_letters(store: Store) -> list[DeadLetter]:
    """All dead letters that commits list."""
    log, found = CommitLog(store), list[DeadLetter]()
    at = log.first()
    while (step := log.next(at)) is not None:
        commit, at = step
        for file in commit.letters:
            letters = read_dead_letters(store, file.name)
            assert len(letters) == file.rows == sum(file.reasons.values())
            found += letters
    return found


def dead_positions(store: Store, partition: str) -> Any:
    return np.array([one.position for one in dead_letters(store) if one.partition == partition], np.int64)


def committed(store: Store) -> list[WindowManifest]:
    manifests = WindowLog(store).committed()
    assert [manifest.sequence for manifest in manifests] == list(range(len(manifests)))
    return manifests


def stored_events(store: Store) -> dict[int, Counter[tuple[int, int, int, int]]]:
    """Window start (s) -> how often each (user key, item key, ms, label) is stored."""
    log, found = WindowLog(store), defaultdict[int, Counter[tuple[int, int, int, int]]](Counter)
    for manifest in committed(store):
        rows = log.all_examples(manifest, ["user_key", "item_key", "timestamp", "label"])
        found[manifest.start_ms // 1000].update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return {window: counts for window, counts in found.items() if counts}


def expected_events(events: Iterable[Event], window_seconds: int = 10) -> dict[int, Counter[tuple[int, int, int, int]]]:
    found, known = defaultdict[int, Counter[tuple[int, int, int, int]]](Counter), set()
    for event in events:
        second = ORIGIN + event.second
        window = second // window_seconds * window_seconds
        if event.type == "view" or (event.event_id is not None and (event.user, window, event.event_id) in known):
            continue
        known.add((event.user, window, event.event_id))
        label = 1 if event.type == "click" else -1
        found[window][(hash_id(event.user), hash_id(event.item), second * 1000, label)] += 1
    return dict(found)


def _told(events: Iterable[Event]) -> dict[tuple[int, int, int], dict[str, Any]]:
    """What each (user key, item key, ms) says in the fields of features."""
    return {
        (hash_id(event.user), hash_id(event.item), (ORIGIN + event.second) * 1000): {
            "genre": event.genre if event.genre is None else list(event.genre),
            "price": event.price,
        }
        for event in events
    }


def check_features(store: Store, events: Iterable[Event]) -> None:
    """Each pane holds, for each of its items, the newest known values; (user, item, second) must determine them."""
    log, told = WindowLog(store), _told(events)
    for manifest in committed(store):
        rows = log.all_examples(manifest, ["timestamp", "user_key", "item_key", "label"]).to_pylist()
        newest: dict[int, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: (row["timestamp"], row["user_key"])):
            if row["label"] == 1:
                known = newest.setdefault(row["item_key"], {"genre": None, "price": None})
                said = told[row["user_key"], row["item_key"], row["timestamp"]]
                known.update({name: value for name, value in said.items() if value is not None})
        found = {row.pop("item_key"): row for row in log.item_features(manifest).to_pylist()}
        assert found == newest


def check_user_features(store: Store, events: Iterable[Event]) -> None:
    """Each example has what came with its event; (user, item, second) must determine it."""
    log, told = WindowLog(store), _told(events)
    for manifest in committed(store):
        names = FeatureNames(categorical=["genre"], dense=["price"])
        rows = log.all_examples(manifest)
        for row in rows.to_pylist():
            assert row["user_features"] == told[row["user_key"], row["item_key"], row["timestamp"]]
        assert manifest.user_features.names == names
        whole = UserFeatures.of(rows, names)
        assert manifest.user_features.categorical == whole.categorical
        for found, wanted in zip(manifest.user_features.dense["price"], whole.dense["price"], strict=True):
            assert abs(found - wanted) <= 1e-9 * max(abs(wanted), 1)


def check_counts(store: Store) -> None:
    """Every manifest's counts, items and sketch agree with its own examples."""
    log = WindowLog(store)
    for manifest in committed(store):
        rows = log.all_examples(manifest)
        labels = rows["label"].to_pylist()
        assert manifest.counts.events == len(labels)
        assert manifest.counts.positives == labels.count(1)
        assert manifest.counts.negatives == labels.count(-1)
        pairs = zip(rows["item_key"].to_pylist(), labels, strict=True)
        items = log.items(manifest)
        assert dict(zip(items["item_key"].to_pylist(), items["count"].to_pylist(), strict=True)) == Counter(
            item for item, label in pairs if label == 1
        )
        assert items["item_key"].to_pylist() == sorted(items["item_key"].to_pylist())
        check_sketch(log.sketch(manifest), rows, "item_key")
        check_sketch(log.user_sketch(manifest), rows, "user_key")


def check_sketch(data: bytes, rows: pa.Table, column: str) -> None:
    """Bounds of the positives' keys are above the truth, exact counts equal to it, totals right."""
    estimator = load(data)
    keys = zip(rows[column].to_pylist(), rows["label"].to_pylist(), strict=True)
    truth = Counter(key for key, label in keys if label == 1)
    assert estimator.total == truth.total()
    estimates = estimator.estimate(np.array(list(truth), np.int64))
    assert (estimates >= list(truth.values())).all()
    if isinstance(estimator, ExactCounter):
        assert estimates.tolist() == list(truth.values())


def check_histories(store: Store, length: int, since: int = 0, late_items: int = 0) -> None:
    """Every event carries its user's last positives before it, out of all there were, or none where that is unknown.

    Of a user so many more items are kept as `late_items` says.
    Panes before `since` were written under another rule: only their events count.
    """
    log, memory = WindowLog(store), defaultdict[int, list[tuple[int, int]]](list)
    for manifest in committed(store):
        unknown = 0
        for shard in log.shards(manifest):
            rows = log.examples(manifest, shard).to_pylist()
            assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
            before = {user: sorted(memory[user], key=_time) for user in {row["user_key"] for row in rows}}
            for row in rows:
                everything = sorted(memory[row["user_key"]], key=_time)
                known = [pair for pair in everything if pair[0] <= row["timestamp"]]
                provable = _is_provable(before[row["user_key"]], known, row["timestamp"], length, length + late_items)
                items = [item for _, item in known][-length:] if provable else []
                unknown += not provable
                assert manifest.sequence < since or row["history"] == [0] * (length - len(items)) + items
                if row["label"] == 1:
                    memory[row["user_key"]].append((row["timestamp"], row["item_key"]))
        assert manifest.sequence < since or manifest.counts.unknown_histories == unknown
    check_users(store, length + late_items, memory)


def _time(pair: tuple[int, int]) -> int:
    return pair[0]


def _is_provable(
    before: list[tuple[int, int]], known: list[tuple[int, int]], time: int, length: int, most: int
) -> bool:
    """Say whether the last positives of a user, `most` of them from `before` the window, tell the history."""
    if len(before) <= most:
        return True
    kept = before[-most:]
    new = [pair for pair in known if pair not in before and pair[0] >= kept[0][0]]
    return sum(pair[0] <= time for pair in kept) + len(new) >= length


def check_users(store: Store, length: int, memory: dict[int, list[tuple[int, int]]]) -> None:
    """The files of users say of everybody what all windows say."""
    state, seen = LogState.open(store), defaultdict[int, dict[int, None]](dict)
    log = WindowLog(store)
    for manifest in committed(store):
        for row in log.all_examples(manifest, ["user_key", "item_key"]).to_pylist():
            seen[row["user_key"]].setdefault(row["item_key"])
    layout = read_format(store)
    assert layout is not None
    assert layout.layout is not None
    histories = UserHistories(store, layout.layout.user_shards)
    histories.take_in(state.histories)
    users = UserKeys(np.array(sorted(seen), np.int64))
    known = histories.find(users)
    (totals, items, times), found = known.records(), known.seen(np.arange(len(users)))
    for place, user in enumerate(users.tolist()):
        last = sorted(memory[user], key=_time)[-length:]
        assert totals[place] == len(memory[user])
        assert items[place].tolist()[length - len(last) :] == [item for _, item in last]
        assert times[place].tolist()[length - len(last) :] == [time for time, _ in last]
        assert (items[place].tolist()[: length - len(last)]).count(0) == length - len(last)
        assert set(found.of(place).tolist()) == set(seen[user])
        assert not found.bounded[place]
