""""""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipelines import support
from tests.pipelines.known_users import KnownUsers
from weir.contracts import (
    ITEMS_SCHEMA,
    PADDING_KEY,
    ExposureCounts,
    FeatureNames,
    Store,
    UserKeys,
    WindowCounts,
    WindowName,
    hash_id,
    items_schema,
)
from weir.contracts.served_lists import SERVED_SCHEMA, new_segment, served_token, write_served
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.run import Base, Run
from weir.pipelines.transforms import exposure
from weir.pipelines.transforms.deduplicate import Deduplicate, ShardWindow, newest_known, observed
from weir.pipelines.transforms.exposure import AttachExposure, passed_over
from weir.pipelines.transforms.histories import TouchedUsers
from weir.pipelines.transforms.split import ShardSlice
from weir.readers.features import with_features

SCHEMA = pa.schema(
    [
        ("item_id", pa.string()),
        ("timestamp", pa.int64()),
        ("label", pa.int8()),
        ("weight", pa.float32()),
        ("attribution_token", pa.string()),
        ("position", pa.int64()),
        ("user_key", pa.int64()),
        ("item_key", pa.int64()),
        ("event_key", pa.int64()),
    ]
)
RUN = Run("one", Base(), {}, PipelineConfig(window_seconds=10).window_ms, 0, flush=True)

Row = tuple[str, int, int, int, int | None, int]
rows = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 10_000),
        st.integers(0, 4),
        st.sampled_from([1, -1, 0]),
        st.one_of(st.none(), st.integers(1, 3)),
        st.integers(7, 8),
    ),
    min_size=1,
    max_size=15,
)


def merged(found: list[Row], cuts: int) -> ShardWindow:
    """Rows (partition, position, time, label, event, user) in pieces of up to `cuts` rows."""
    pieces = []
    for name in "ab":
        mine = [row for row in found if row[0] == name]
        for at in range(0, len(mine), cuts):
            table = [
                dict(zip(SCHEMA.names, (f"i{time}", time, label, 1.0, None, at, user, time + 1, event), strict=True))
                for _, at, time, label, event, user in mine[at : at + cuts]
            ]
            pieces.append(ShardSlice(name, 0, pa.RecordBatch.from_pylist(table, SCHEMA)))
    [(shard, [window])] = Deduplicate(Store("memory://d"), RUN).process((3, reversed(pieces)))
    assert shard == window.shard == 3
    return window


@given(rows, st.integers(1, 4))
def test_the_first_copy_in_order_stays_however_rows_are_cut(found: list[Row], cuts: int) -> None:
    found = [(name, 100 * number + at % 100, *rest) for number, (name, at, *rest) in enumerate(found)]
    window, kept, known = merged(found, cuts), [], set()
    for _, at, time, label, event, user in sorted(found, key=lambda row: (row[2], row[0], row[1])):
        if event is None or (user, event) not in known:
            kept.append((time, at, label))
        known.add((user, event))
    stored = [(row["timestamp"], row["position"], row["label"]) for row in window.rows.to_pylist()]
    assert stored == [row for row in kept if row[2]]
    assert window.counts.model_dump() == {
        "events": len(stored),
        "positives": sum(label == 1 for _, _, label in kept),
        "negatives": sum(label == -1 for _, _, label in kept),
        "ignored": sum(label == 0 for _, _, label in kept),
        "duplicates": len(found) - len(kept),
        "late": 0,
        "unknown_histories": 0,
    }
    positives = [time for time, _, label in kept if label == 1]
    items = {row["item_key"]: (row["item_id"], row["count"]) for row in window.items.to_pylist()}
    assert items == {time + 1: (f"i{time}", positives.count(time)) for time in positives}
    users = {row["user_key"]: row["count"] for row in window.users.to_pylist()}
    assert sum(users.values()) == len(positives)


def test_windows_of_a_shard_come_in_order_of_time() -> None:
    pieces = []
    for start in (20_000, 0, 10_000, 20_000):
        row = dict(zip(SCHEMA.names, ("i", start + 1, 1, 1.0, None, len(pieces), 7, 9, None), strict=True))
        pieces.append(ShardSlice("a", start, pa.RecordBatch.from_pylist([row], SCHEMA)))
    [(_, windows)] = Deduplicate(Store("memory://d"), RUN).process((3, pieces))
    assert [(window.name.start_ms, window.counts.events) for window in windows] == [(0, 1), (10_000, 1), (20_000, 2)]


NAMES = FeatureNames(categorical=["genre"], dense=["price"])
KEYED = pa.schema([("item_key", pa.int64()), ("user_key", pa.int64()), ("timestamp", pa.int64())])

said = st.tuples(
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 3),
    st.sampled_from([None, ["jazz"], ["rock", "pop"], []]),
    st.one_of(st.none(), st.integers(0, 9).map(float)),
)


def rows_of(found: list[Any]) -> pa.Table:
    keyed = pa.Table.from_pylist([dict(zip(KEYED.names, row[:3], strict=True)) for row in found], KEYED)
    genres = pa.array([row[3] for row in found], pa.list_(pa.string()))
    prices = pa.array([row[4] for row in found], pa.float64())
    return with_features(keyed, {"genre": genres, "price": prices}, NAMES)


@given(st.lists(said, max_size=25), st.integers(1, 3), st.randoms())
def test_the_newest_known_value_is_kept_however_users_are_sharded(found: list[Any], shards: int, random: Any) -> None:
    parts = [rows_of([row for row in found if row[1] % shards == shard]) for shard in range(shards)]
    told = [observed(part) for part in parts]
    random.shuffle(told)
    keys = sorted({row[0] for row in found})
    items = pa.Table.from_pylist([{"item_key": key, "item_id": f"i{key}", "count": 1} for key in keys], ITEMS_SCHEMA)
    kept = newest_known(items, told, NAMES)
    assert kept.schema == items_schema(NAMES)
    assert kept.select(ITEMS_SCHEMA.names) == items
    for row in kept.to_pylist():
        mine = sorted((one for one in found if one[0] == row["item_key"]), key=lambda one: (one[2], one[1]))
        for place, name in ((3, "genre"), (4, "price")):
            assert row[name] == next((one[place] for one in reversed(mine) if one[place] is not None), None)


@given(st.lists(said, min_size=1, max_size=25))
def test_no_more_rows_are_kept_than_tell_something(found: list[Any]) -> None:
    kept = observed(rows_of(found))
    assert kept is not None
    assert len(kept) <= 2 * len({row[0] for row in found})


def test_without_features_nothing_is_added() -> None:
    items, none = pa.Table.from_pylist([{"item_key": 1, "item_id": "i", "count": 2}], ITEMS_SCHEMA), FeatureNames()
    rows = pa.table({name: np.zeros(1, np.int64) for name in KEYED.names})
    assert observed(rows) is None
    assert newest_known(items, [], none) is items


LENGTH = 3

# (user, item, time, positive); few users and times, so that ties and late events are common.
event = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(0, 12), st.booleans())
windows = st.lists(st.lists(event, max_size=8), max_size=6)


def table(window: list[Any]) -> pa.Table:
    names = ["user_key", "item_key", "timestamp"]
    columns = {name: pa.array([row[place] for row in window], pa.int64()) for place, name in enumerate(names)}
    return pa.table(columns | {"label": pa.array([1 if row[3] else -1 for row in window], pa.int8())})


def truth(everything: list[Any], user: int, time: int) -> list[int]:
    """The last positives of a user that are older, or as old and came before, out of all that ever came."""
    mine = [row for row in everything if row[0] == user and row[3]]
    return [row[1] for row in sorted(mine, key=lambda row: row[2]) if row[2] <= time][-LENGTH:]


@settings(max_examples=300)
@given(windows, st.integers(1, 3), st.integers(0, 3))
def test_a_history_is_the_true_one_or_unknown(found: list[list[Any]], together: int, more: int) -> None:
    """Against a plain list of all events; `together` windows make a run, whose users are looked up once.

    Of a user `more` items are kept than a history has.
    """
    most = LENGTH + more
    shard, everything = KnownUsers(most), list[Any]()
    found = [sorted(window, key=lambda row: row[2]) for window in found]
    for start in range(0, len(found), together):
        run = found[start : start + together]
        users = np.array([row[0] for window in run for row in window], np.int64)
        touched = TouchedUsers.of(shard, UserKeys(users), LENGTH)
        for window in run:
            before = list(everything)
            attached = touched.extend(table(window))
            for row, history, unknown in zip(window, attached.history.tolist(), attached.unknown, strict=True):
                positives = sorted((one for one in before if one[0] == row[0] and one[3]), key=lambda one: one[2])
                kept, cut = positives[-most:], len(positives) > most
                now = [one for one in everything[len(before) :] if one[0] == row[0] and one[3]]
                older = [one for one in kept if one[2] <= row[2]]
                older += [one for one in now if not cut or one[2] >= kept[0][2]]
                assert unknown == (cut and len(older) < LENGTH)
                expected = [] if unknown else truth(everything, row[0], row[2])
                assert history == [0] * (LENGTH - len(expected)) + expected
                everything.append(row)
        if len(users):
            shard.take_in(touched.delta(1000))
    for user in {row[0] for row in everything}:
        total, items, times = shard.rows[user]
        mine = sorted((row for row in everything if row[0] == user and row[3]), key=lambda row: row[2])
        assert total == len(mine)
        assert [item for item in items.tolist() if item] == [row[1] for row in mine][-most:]
        assert times.tolist()[most - len(mine[-most:]) :] == [row[2] for row in mine][-most:]
        assert shard.items[user] == list(dict.fromkeys(row[1] for row in everything if row[0] == user))


def test_new_seen_items_are_bounded() -> None:
    shard = KnownUsers(LENGTH)
    touched = TouchedUsers.of(shard, UserKeys(np.array([7, 8])), LENGTH)
    touched.extend(table([(7, item, item, item % 2) for item in (1, 2, 3, 2, 4)] + [(8, 1, 9, True)]))
    seen = touched.delta(3).seen
    assert (seen.of(0).tolist(), seen.of(1).tolist(), seen.bounded.tolist()) == ([2, 3, 4], [1], [True, False])


LIMIT = 3
SECRET = "00112233445566778899aabbccddeeff"  # noqa: S105 - of a test


class World:
    """Lists that were served, and the events of one shard of a window."""

    def __init__(self, folder: Path, secret: str = "") -> None:
        self.store, self.secret, self.folder = Store(str(folder / "store")), secret, folder
        self.events: list[dict[str, Any]] = []

    def serve(self, *lists: list[str], user: str | None = "ann", segment: str = "", kept: bool = True) -> str:
        """Keep lists, one for each query of a call, in a file of their own, and return their token."""
        segment = segment or new_segment()
        token = served_token("v1", segment, "0" * 16)
        key = None if user is None else hash_id(user, self.secret)
        rows = [
            dict(zip(SERVED_SCHEMA.names, [token, query, key, 0, "v1", False, items], strict=True))
            for query, items in enumerate(lists)
        ]
        if kept:
            write_served(self.store, segment, pa.Table.from_pylist(rows, SERVED_SCHEMA))
        return token

    def event(self, item: str, token: str | None = None, user: str = "ann", label: int = 1) -> None:
        keys = {"user_key": hash_id(user, self.secret), "item_key": hash_id(item, self.secret)}
        self.events.append(keys | {"label": label, "attribution_token": token})

    def joined(self, exposed: pa.Array | None = None) -> tuple[list[list[int]], ExposureCounts]:
        """Return the exposed items of every event, without padding, and the counts."""
        schema = {"user_key": pa.int64(), "item_key": pa.int64(), "label": pa.int8(), "attribution_token": pa.string()}
        rows = pa.Table.from_pylist(self.events, pa.schema(schema))
        if exposed is not None:
            rows = rows.append_column("exposed", exposed)
        none = rows.select([])
        window = ShardWindow(WindowName(0, 10), 0, rows, none, none, None, WindowCounts(), 0, 1)
        run = Run("one", Base(), {}, 10, 0, flush=True, secret=self.secret)
        transform = AttachExposure(self.store, run, support.config(self.folder, exposed_items=LIMIT))
        [found] = transform.process(window)
        lists = found.rows["exposed"].to_pylist()
        assert all(len(one) == LIMIT and sorted(one, key=lambda key: key == PADDING_KEY) == one for one in lists)
        return [[key for key in one if key != PADDING_KEY] for one in lists], found.exposure

    def keys(self, items: str) -> list[int]:
        return [hash_id(item, self.secret) for item in items]


@pytest.mark.parametrize("secret", ["", SECRET])
def test_what_lies_above_a_click_and_right_below_it_was_passed_over(tmp_path: Path, secret: str) -> None:
    world = World(tmp_path, secret)
    token = world.serve([*"abcdef"])
    world.event("c", token)
    world.event("x")
    assert world.joined() == ([world.keys("bad"), []], ExposureCounts(joined=1, items=3))


def test_what_the_user_chose_too_is_no_negative(tmp_path: Path) -> None:
    world = World(tmp_path)
    token = world.serve([*"abcd"])
    world.event("c", token)
    world.event("b", token)
    world.event("d")
    world.event("a", user="bob")
    world.event("a", label=-1)
    assert world.joined()[0] == [world.keys("a"), world.keys("a"), [], [], []]


def test_every_click_has_one_outcome(tmp_path: Path) -> None:
    world = World(tmp_path)
    anns, anybodys = world.serve([*"ab"]), world.serve([*"bc"], user=None)
    world.event("b", anns)
    world.event("b", anns)
    world.event("b", anns, user="cyd")
    world.event("z", anns)
    world.event("c", anybodys, user="bob")
    world.event("a", anns, label=-1)
    world.event("y", "v1/0123456789abcdef")
    world.event("y", "garbage")
    world.event("y", world.serve([*"yz"], kept=False))
    world.event("y", anns[:-1] + "1")
    damaged = world.serve([*"ab"])
    [file] = (path for path in (tmp_path / "store").rglob("*.parquet") if damaged.split("/")[1][:25] in path.name)
    file.write_bytes(file.read_bytes()[:-1])
    world.event("b", damaged)
    counts = ExposureCounts(joined=2, repeated=1, not_kept=2, unknown_list=2, other_item=2, unreadable=1, items=2)
    assert world.joined()[1] == counts


def test_rows_of_another_stores_windows_keep_what_they_bring(tmp_path: Path) -> None:
    world = World(tmp_path)
    token = world.serve([*"abc"])
    world.event("b", token)
    world.event("c", token)
    world.event("x")
    brought = pa.array([[5, 6, PADDING_KEY], None, None], pa.list_(pa.int64(), LIMIT))
    exposed, counts = world.joined(brought)
    assert exposed == [[5, 6], world.keys("a"), []]
    assert counts == ExposureCounts(joined=1, carried=1, items=3)


def test_a_window_without_a_row_is_no_error(tmp_path: Path) -> None:
    assert World(tmp_path).joined() == ([], ExposureCounts())


def _expected(world: World, calls: dict[str, tuple[str | None, list[list[str]]]]) -> list[list[int]]:
    """Go through the events one by one."""
    found, known = [], set()
    for event in world.events:
        user, lists = calls.get(event["attribution_token"], (None, []))
        exposed: list[int] = []
        for query, items in enumerate(lists):
            keys = world.keys("".join(items))
            is_theirs = user is None or hash_id(user, world.secret) == event["user_key"]
            if event["label"] != 1 or not is_theirs or event["item_key"] not in keys:
                continue
            if (event["attribution_token"], query, event["item_key"]) in known:
                break
            known.add((event["attribution_token"], query, event["item_key"]))
            place = keys.index(event["item_key"])
            for number in [*range(place - 1, -1, -1), place + 1]:
                is_chosen = any(
                    one["label"] == 1 and one["user_key"] == event["user_key"] and number < len(keys)
                    and one["item_key"] == keys[number]
                    for one in world.events
                )  # fmt: skip
                if number < len(keys) and not is_chosen:
                    exposed.append(keys[number])
            break
        found.append(exposed[:LIMIT])
    return found


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_is_what_an_oracle_finds_event_by_event(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    world, calls = World(tmp_path_factory.mktemp("world")), dict[str, tuple[str | None, list[list[str]]]]()
    items = st.lists(st.sampled_from("abcdefgh"), max_size=6, unique=True)
    for number in range(data.draw(st.integers(0, 4))):
        user, lists = (
            data.draw(st.sampled_from(["ann", "bob", None])),
            data.draw(st.lists(items, min_size=1, max_size=3)),
        )
        calls[world.serve(*lists, user=user, segment=new_segment(1_700_000_000 + number))] = (user, lists)
    event = st.tuples(
        st.sampled_from("abcdefgh"),
        st.sampled_from([*calls, None]),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from([1, 1, 1, -1]),
    )
    for one in data.draw(st.lists(event, max_size=12)):
        world.event(*one)
    exposed, counts = world.joined()
    assert exposed == _expected(world, calls)
    clicks = sum(one["label"] == 1 and one["attribution_token"] is not None for one in world.events)
    assert sum(counts.clicks.values()) == clicks
    assert counts.items == sum(map(len, exposed))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9, unique=True), st.data())
def test_the_nearest_above_comes_first(items: list[int], data: st.DataObject) -> None:
    item, chosen = data.draw(st.sampled_from(items)), data.draw(st.sets(st.integers(1, 9)))
    limit = data.draw(st.integers(1, 5))
    found, place = passed_over(items, item, chosen, limit), items.index(item)
    order = [items.index(one) for one in found]
    assert item not in found
    assert not chosen & {*found}
    assert len(found) <= limit
    assert max(order, default=0) <= place + 1
    assert order == sorted(order, key=lambda at: (at > place, -at))
    missing = {*items[: place + 2]} - {*found} - chosen - {item}
    assert len(found) == limit or not missing


def test_a_file_is_read_once_for_all_its_clicks_and_only_so_many_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposure, "_CACHED_BYTES", 1)
    store = World(tmp_path).store
    segments = [new_segment(1_700_000_000 + number) for number in range(3)]
    tables = {}
    for segment in segments:
        world = World(tmp_path)
        world.serve([*"ab"], segment=segment)
        tables[segment] = exposure.read_segment(store, segment)
    lists = exposure._Lists(store)
    for segment in [*segments, segments[0], "20200101T000000Z-00000000"]:
        assert lists.of(segment) == tables.get(segment)
        assert len(lists._segments) == 1
    for file in (tmp_path / "store").rglob("*.parquet"):
        file.unlink()
    assert lists.of("20200101T000000Z-00000000") is None
    assert lists.of(segments[1]) is None


def test_what_was_read_serves_all_shards_of_a_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    segment = new_segment()
    world.serve([*"ab"], segment=segment)
    lists = exposure._Lists(world.store)
    first = lists.of(segment)
    for file in (tmp_path / "store").rglob("*.parquet"):
        file.unlink()
    assert first is not None
    assert lists.of(segment) is first
