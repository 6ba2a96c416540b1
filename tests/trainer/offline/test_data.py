""""""

import datetime as dt
import gzip
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.offline.logs import circles, log_of
from tests.trainer.windows import WindowWriter
from weir.contracts import CorruptArtefactError, Store, hash_ids
from weir.readers import LogColumns, LogConfig, Partition
from weir.trainer.offline.data import (
    Interactions,
    InteractionsError,
    is_store,
    read_interactions,
    read_store,
    sample_users,
)

T = 1_700_000_000
ROWS = [("u2", "b", T + 30), ("u1", "a", T + 10), ("u2", "a", T + 20), ("u1", "b", T + 20), ("u3", "c", T + 5)]
IN_TIME = [ROWS[4], ROWS[1], ROWS[2], ROWS[3], ROWS[0]]


def decoded(read: Interactions) -> list[tuple[Any, ...]]:
    """User, item and second of each row."""
    assert read.timestamps is not None
    seconds = (time / 1000 for time in read.timestamps.tolist())
    return list(zip(read.user_ids[read.users], read.item_ids[read.items], seconds, strict=True))


def table(rows: list[tuple[Any, ...]] = ROWS) -> pa.Table:
    users, items, times = zip(*rows, strict=True)
    return pa.table({"user_id": users, "item_id": items, "timestamp": times})


def json_lines(rows: list[tuple[Any, ...]] = ROWS) -> bytes:
    lines = [json.dumps({"user_id": user, "item_id": item, "timestamp": t, "weight": 1.5}) for user, item, t in rows]
    return "\n".join(lines).encode()


def test_parquet_and_json_lines_come_in_stable_order_of_time(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "log.parquet")
    (tmp_path / "log.jsonl").write_bytes(json_lines())
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(json_lines()))
    for name in ("log.parquet", "log.jsonl", "log.jsonl.gz"):
        read = read_interactions(str(tmp_path / name))
        assert decoded(read) == IN_TIME
        # Codes number the ids by their first row.
        assert read.user_ids.tolist() == ["u3", "u1", "u2"]
        assert read.item_ids.tolist() == ["c", "a", "b"]
        assert read.users.dtype == read.items.dtype == np.int64
        assert read.split is None


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 2**62), st.integers(T, T + 4)), min_size=1, max_size=30))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]) -> None:
    path = tmp_path_factory.mktemp("data") / "log.parquet"
    pq.write_table(table(rows), path)
    in_time = sorted(rows, key=lambda row: row[2])
    assert decoded(read_interactions(str(path))) == [(str(user), str(item), time) for user, item, time in in_time]


def test_a_folder_and_a_glob_are_read_in_order_of_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    pq.write_table(table(ROWS[:2]), tmp_path / "a.parquet")
    (tmp_path / "deep/b.jsonl").write_bytes(json_lines(ROWS[2:]))
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.md").write_text("no data")
    assert decoded(read_interactions(str(tmp_path))) == IN_TIME
    assert decoded(read_interactions(f"{tmp_path}/*.parquet")) == [ROWS[1], ROWS[0]]


def test_columns_have_the_names_given_and_a_split_is_kept(tmp_path: Path) -> None:
    columns = {"who": [7, 8], "what": [1, 1], "when": [T + 2, T + 1], "split": ["test", "train"]}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    names = LogColumns(user_id="who", item_id="what", timestamp="when")
    read = read_interactions(str(tmp_path / "log.parquet"), LogConfig(columns=names))
    assert read.user_ids.tolist() == ["8", "7"]
    assert read.split is not None
    assert read.split.tolist() == ["train", "test"]


def test_pairs_keep_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "order.txt.gz").write_bytes(gzip.compress(b"1 10\n1 4\n3 10\n"))
    read = read_interactions(str(tmp_path / "order.txt.gz"))
    assert read.timestamps is None
    assert read.user_ids[read.users].tolist() == ["1", "1", "3"]
    assert read.item_ids[read.items].tolist() == ["10", "4", "10"]


@pytest.mark.parametrize(
    "times",
    [
        ["2023-11-14T22:13:22Z", "2023-11-14T23:13:21+01:00"],
        [dt.datetime(2023, 11, 14, 22, 13, 22, tzinfo=dt.UTC), dt.datetime(2023, 11, 14, 22, 13, 21, tzinfo=dt.UTC)],
        [T + 2.0, T + 1.0],
        [1000 * T + 2000, 1000 * T + 1000],
        [10**6 * T + 2 * 10**6, 10**6 * T + 10**6],
    ],
)
def test_times_of_any_spelling_become_milliseconds(tmp_path: Path, times: list[Any]) -> None:
    pq.write_table(table([("u", "a", times[0]), ("u", "b", times[1])]), tmp_path / "log.parquet")
    read = read_interactions(str(tmp_path / "log.parquet"))
    assert decoded(read) == [("u", "b", T + 1), ("u", "a", T + 2)]
    assert read.timestamps is not None
    assert read.timestamps.dtype == np.int64


def test_an_id_that_looks_like_a_date_stays_a_string(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(json_lines([("2020-01-01", "a", T)]))
    assert read_interactions(str(tmp_path / "log.jsonl")).user_ids.tolist() == ["2020-01-01"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("log.xlsx", b"1,2", "log.xlsx: there is no file of a format .*; allowed are files, folders and globs of"),
        ("log.jsonl", b"", "has no valid positive interaction; at least one is needed$"),
        ("log.txt", b"\n", "has no valid positive interaction; at least one is needed$"),
        ("log.jsonl", b'{"user_id": "u", "item": "a"}', "position 0: item_id is missing or null"),
        ("log.jsonl", b"\n[1, 2]", "log.jsonl, position 1: expected a JSON object, got list"),
        (
            "log.jsonl",
            b'{"user_id": 1.5, "item_id": "a"}',
            "user_id is 1.5, a floating-point number; allowed are strings and integers",
        ),
        ("log.jsonl", b'{"user_id": "u", "item_id": "a", "timestamp": "noon"}', "a number or an RFC 3339 string"),
        ("log.jsonl", b'{"user_id": "u", "item_id": "a", "timestamp": true}', r"got `bool` - at `\$.timestamp`"),
        (
            "log.jsonl",
            b'{"user_id": "u", "item_id": "a", "timestamp": 7}',
            r"timestamp is 7 \(1970-01-01T00:00:07Z\); allowed are 1990-01-01",
        ),
        ("log.txt.gz", gzip.compress(b"1 2\n" * 99, mtime=0)[:-12], "EOFError"),
        ("log.txt", b"1 2 3\n", "Expected 2 columns"),
        ("log.parquet", b"no parquet", "log.parquet cannot be read as parquet"),
    ],
)
def test_errors_name_the_file_and_what_is_allowed(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InteractionsError, match=told) as raised:
        read_interactions(str(tmp_path / name))
    assert name in str(raised.value)


def test_files_that_are_absent_or_disagree_are_named(tmp_path: Path) -> None:
    with pytest.raises(InteractionsError, match=r"absent\.parquet: there is no such file"):
        read_interactions(str(tmp_path / "absent.parquet"))
    with pytest.raises(InteractionsError, match=r"there is no file of a format that can be read"):
        read_interactions(str(tmp_path))


def test_files_that_spell_ids_and_times_differently_are_one_log(tmp_path: Path) -> None:
    pq.write_table(table([(1, 2, T)]), tmp_path / "a.parquet")
    pq.write_table(table([("1", "2", "2023-11-14T22:13:21Z")]), tmp_path / "b.parquet")
    read = read_interactions(str(tmp_path))
    assert decoded(read) == [("1", "2", T), ("1", "2", T + 1)]
    assert (len(read.user_ids), len(read.item_ids)) == (1, 1)


def test_rows_that_a_pipeline_would_refuse_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = [b'{"user_id"', b'{"user_id": 7.5, "item_id": "a", "timestamp": 1700000000}', b'{"item_id": "b"}']
    (tmp_path / "log.jsonl").write_bytes(b"\n".join([*broken, json_lines(), b'{"user_id": "u", "item_id": "a"}']))
    with caplog.at_level(logging.WARNING):
        assert decoded(read_interactions(str(tmp_path / "log.jsonl"))) == IN_TIME
    assert caplog.messages == [
        f"{tmp_path}/log.jsonl: left out are 4 rows (malformed_json 1, wrong_type 1, missing_field 1, no time 1)"
    ]


def test_event_types_say_which_rows_are_positive(tmp_path: Path) -> None:
    pq.write_table(
        table().append_column("event_type", [["skip", "play", "view", "play", "play"]]), tmp_path / "a.parquet"
    )
    types = {"play": "positive", "skip": "negative", "view": "ignore"}
    read = read_interactions(str(tmp_path / "a.parquet"), LogConfig(event_types=types))
    assert decoded(read) == [ROWS[4], ROWS[1], ROWS[3]]
    assert decoded(read_interactions(str(tmp_path / "a.parquet"))) == IN_TIME
    with pytest.raises(InteractionsError, match="has no valid positive interaction"):
        read_interactions(str(tmp_path / "a.parquet"), LogConfig(event_types=dict.fromkeys(types, "ignore")))


def test_numbers_that_only_give_an_order_are_times_where_the_settings_allow_1970(tmp_path: Path) -> None:
    pq.write_table(table([("u", "a", 2), ("u", "b", 1)]), tmp_path / "log.parquet")
    config = LogConfig(min_time=dt.datetime(1970, 1, 1, tzinfo=dt.UTC))
    assert decoded(read_interactions(str(tmp_path / "log.parquet"), config)) == [("u", "b", 1), ("u", "a", 2)]


def test_a_split_may_be_absent_from_some_rows(tmp_path: Path) -> None:
    lines = [{"user_id": "u", "item_id": item, "split": label} for item, label in (("a", "train"), ("b", None))]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"user_id": "u", "item_id": "c"}])))
    read = read_interactions(str(tmp_path / "log.jsonl"))
    assert read.split is not None
    assert read.split.tolist() == ["train", None, None]


def test_what_a_file_system_raises_names_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Partition) -> None:
        raise OSError(5, "Input/output error")

    (tmp_path / "log.jsonl").write_bytes(json_lines())
    monkeypatch.setattr(Partition, "open", fail)
    with pytest.raises(InteractionsError, match=r"log\.jsonl: cannot be read: .*Input/output error"):
        read_interactions(str(tmp_path / "log.jsonl"))


def test_the_end_of_a_log_says_how_much_was_read(tmp_path: Path) -> None:
    rows = [(f"u{row % 3}", f"i{row}", T + row) for row in range(20)]
    pq.write_table(table(rows), tmp_path / "log.parquet")
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(json_lines(rows)))
    end = read_interactions(str(tmp_path / "log.parquet"), newest=7)
    assert (decoded(end), end.newest_rows) == (rows[-7:], 7)
    for whole in (20, 21, None):
        read = read_interactions(str(tmp_path / "log.parquet"), newest=whole)
        assert (decoded(read), read.newest_rows) == (rows, None)
    assert decoded(read_interactions(str(tmp_path / "log.jsonl.gz"), newest=100)) == rows


@pytest.fixture
def writer(tmp_path: Path) -> WindowWriter:
    return WindowWriter(Store(str(tmp_path)))


def test_windows_give_their_positive_events_in_order_of_time(tmp_path: Path, writer: WindowWriter) -> None:
    assert not is_store(str(tmp_path))
    writer.commit(["anna", "ben", "anna", "cleo"], ["a", "b", "c", "a"], np.array([5, 7, 9, 9]))
    # A late pane, with a negative event.
    judged = np.array([True, False, True])
    writer.commit(["ben", "ben", "dora"], ["c", "a", "d"], np.array([1, 2, 8]), positive=judged, pane=1)
    assert is_store(str(tmp_path))
    found = read_store(str(tmp_path))
    assert found.timestamps is not None
    key = {str(hash_ids(pa.array([name]))[0]): name for name in ("anna", "ben", "cleo", "dora")}
    events = {
        (int(time), key[found.user_ids[user]], found.item_ids[item])
        for time, user, item in zip(found.timestamps, found.users, found.items, strict=True)
    }
    early, late = {(1, "ben", "c"), (5, "anna", "a"), (7, "ben", "b")}, {(8, "dora", "d"), (9, "anna", "c")}
    assert events == early | late | {(9, "cleo", "a")}
    assert found.timestamps.tolist() == [1, 5, 7, 8, 9, 9]
    assert (found.users[0], found.items[0], found.newest_rows) == (0, 0, None)
    newest = read_store(str(tmp_path), newest=2)
    assert (newest.timestamps.tolist(), newest.newest_rows) == ([9, 9], 2)
    assert set(newest.item_ids) == {"a", "c"}


def test_a_store_without_positive_events_is_told(tmp_path: Path, writer: WindowWriter) -> None:
    writer.commit(["anna"], ["a"], np.array([5]), positive=np.array([False]))
    with pytest.raises(InteractionsError, match="the store has no window with a positive interaction"):
        read_store(str(tmp_path))


def test_a_damaged_file_is_refused(tmp_path: Path, writer: WindowWriter) -> None:
    writer.commit(["anna"], ["a"], np.array([5]))
    [items] = tmp_path.glob("windows/**/items.parquet")
    items.write_bytes(items.read_bytes()[:-1])
    with pytest.raises(CorruptArtefactError, match=r"items\.parquet"):
        read_store(str(tmp_path))


logs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=40)


def spelt(log: Interactions) -> list[tuple[str, str, int]]:
    assert log.timestamps is not None
    rows = zip(log.user_ids[log.users], log.item_ids[log.items], log.timestamps.tolist(), strict=True)
    return [(str(user), str(item), time) for user, item, time in rows]


def log_from(rows: list[tuple[int, int]]) -> Interactions:
    """Return a log whose codes number what occurs in it."""
    numbers = [np.unique(column, return_inverse=True)[1].tolist() for column in zip(*rows, strict=True)]
    return log_of(*numbers)


@given(logs, st.integers(1, 45))
def test_chosen_users_keep_all_that_they_did(rows: list[tuple[int, int]], at_most: int) -> None:
    log = log_from(rows)
    some = sample_users(log, at_most)
    kept = {user for user, _, _ in spelt(some)}
    assert spelt(some) == [row for row in spelt(log) if row[0] in kept]
    assert len(some) <= at_most or len(kept) == 1
    # Codes number what is left, without gaps.
    assert sorted(set(some.users.tolist())) == list(range(len(some.user_ids)))
    assert sorted(set(some.items.tolist())) == list(range(len(some.item_ids)))
    # One more user would not fit.
    if len(some) < len(log) and len(some) <= at_most:
        others = [sum(row[0] == user for row in spelt(log)) for user in {row[0] for row in spelt(log)} - kept]
        assert len(some) + max(others) > at_most


def test_a_log_that_fits_stays_as_it_is() -> None:
    log = circles()
    assert sample_users(log, len(log)) is log


def test_the_same_users_are_chosen_each_time_and_not_the_first_ones() -> None:
    log = replace(circles(), split=np.array(["train"] * 300, object))
    some = sample_users(log, 100)
    assert spelt(some) == spelt(sample_users(log, 100))
    assert len(some) == 90
    assert set(some.user_ids.tolist()) != set(range(6))
    assert some.split is not None
    assert len(some.split) == 90
