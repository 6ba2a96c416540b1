"""Exposure against an oracle that goes through lists and events one by one."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipelines import support
from weir.contracts import PADDING_KEY, ExposureCounts, Store, WindowCounts, WindowName, hash_id
from weir.contracts.served_lists import SERVED_SCHEMA, new_segment, served_token, write_served
from weir.pipelines.runs.run import Base, Run
from weir.pipelines.transforms import exposure
from weir.pipelines.transforms.deduplicate import ShardWindow
from weir.pipelines.transforms.exposure import AttachExposure, passed_over

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
