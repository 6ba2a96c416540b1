import datetime as dt
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.offline.data import Interactions, InteractionsError, read_interactions

ROWS = [("u2", "b", 30), ("u1", "a", 10), ("u2", "a", 20), ("u1", "b", 20), ("u3", "c", 5)]
IN_TIME = [("u3", "c", 5), ("u1", "a", 10), ("u2", "a", 20), ("u1", "b", 20), ("u2", "b", 30)]


def decoded(read: Interactions) -> list[tuple[Any, ...]]:
    assert read.timestamps is not None
    return list(
        zip(read.user_ids[read.users], read.item_ids[read.items], (int(time) for time in read.timestamps), strict=True)
    )


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


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 2**62), st.integers(0, 4)), min_size=1, max_size=30))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]) -> None:
    path = tmp_path_factory.mktemp("data") / "log.parquet"
    pq.write_table(table(rows), path)
    assert decoded(read_interactions(str(path))) == sorted(rows, key=lambda row: row[2])


def test_a_folder_and_a_glob_are_read_in_order_of_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    pq.write_table(table(ROWS[:2]), tmp_path / "a.parquet")
    (tmp_path / "deep/b.jsonl").write_bytes(json_lines(ROWS[2:]))
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.md").write_text("no data")
    assert decoded(read_interactions(str(tmp_path))) == IN_TIME
    assert decoded(read_interactions(f"{tmp_path}/*.parquet")) == [ROWS[1], ROWS[0]]


def test_columns_have_the_names_given_and_a_split_is_kept(tmp_path: Path) -> None:
    columns = {"who": [7, 8], "what": [1, 1], "when": [2, 1], "split": ["test", "train"]}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    read = read_interactions(str(tmp_path / "log.parquet"), user="who", item="what", timestamp="when")
    assert read.user_ids.tolist() == [8, 7]
    assert read.split is not None
    assert read.split.tolist() == ["train", "test"]


def test_pairs_keep_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "order.txt.gz").write_bytes(gzip.compress(b"1 10\n1 4\n3 10\n"))
    read = read_interactions(str(tmp_path / "order.txt.gz"))
    assert read.timestamps is None
    assert read.user_ids[read.users].tolist() == [1, 1, 3]
    assert read.item_ids[read.items].tolist() == [10, 4, 10]


@pytest.mark.parametrize(
    "times",
    [
        ["1970-01-01T00:00:02Z", "1970-01-01T01:00:01+01:00"],
        [dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)],
        [2e6 + 0.9, 1e6 + 0.2],
    ],
)
def test_times_of_any_spelling_become_integers(tmp_path: Path, times: list[Any]) -> None:
    pq.write_table(table([("u", "a", times[0]), ("u", "b", times[1])]), tmp_path / "log.parquet")
    assert decoded(read_interactions(str(tmp_path / "log.parquet"))) == [("u", "b", 1_000_000), ("u", "a", 2_000_000)]


def test_an_id_that_looks_like_a_date_stays_a_string(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(json_lines([("2020-01-01", "a", 1)]))
    assert read_interactions(str(tmp_path / "log.jsonl")).user_ids.tolist() == ["2020-01-01"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("log.csv", b"1,2", "found .*log.csv; allowed are files, folders and globs of"),
        ("log.jsonl", b"", "has no interaction"),
        ("log.txt", b"\n", "has no interaction"),
        ("log.jsonl", b'{"user_id": "u", "item": "a"}', r"log.jsonl: has no column 'item_id', but 'user_id', 'item'"),
        ("log.jsonl", b"[1, 2]", "allowed are JSON objects"),
        ("log.jsonl", b'{"user_id": "u", "item_id": "a"}\n{"user_id"', "log.jsonl: cannot be read"),
        ("log.jsonl", b'{"user_id": "u", "item_id": "a"}\n{"user_id": 7, "item_id": "a"}', "changed from string"),
        ("log.jsonl", b'{"user_id": "u", "item_id": "a"}\n{"item_id": "b"}', "'user_id' is null in 1 of 2 rows"),
        ("log.jsonl", b'{"user_id": 1.5, "item_id": "a"}', "'user_id' is of type double; allowed are integers and st"),
        ("log.jsonl", b'{"user_id": "u", "item_id": "a", "timestamp": "noon"}', "'timestamp': .*noon.* RFC 3339"),
        ("log.jsonl", b'{"user_id": "u", "item_id": "a", "timestamp": true}', "'timestamp' is of type bool; allowed"),
        ("log.txt.gz", gzip.compress(b"1 2\n" * 99)[:-12], "cannot be read"),
        ("log.txt", b"1 2 3\n", "cannot be read.*Expected 2 columns"),
        ("log.parquet", b"no parquet", "log.parquet: cannot be read"),
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
    pq.write_table(table(), tmp_path / "a.parquet")
    pq.write_table(table([(1, 2, 3)]), tmp_path / "b.parquet")
    with pytest.raises(InteractionsError, match="files differ in the types of their columns"):
        read_interactions(str(tmp_path))
