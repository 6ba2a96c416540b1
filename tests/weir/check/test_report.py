import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.pipelines.support import dead_letters
from weir.check import report, sample
from weir.check.report import check_log, with_settings
from weir.contracts import Store
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.readers import LogColumns, LogConfig
from weir.readers import reading as listing

DAY = 86_400
SHOP = [
    "Order No;Customer No;Article;Ordered At",
    *(f"{n};c{n % 7};a{n % 5};2025-01-{n % 28 + 1:02} 10:00:00" for n in range(56)),
]

FIELDS: dict[str, list[Any]] = {
    "user_id": ["u", "", 7, 1.5, True, None, ["u"], "x" * 2000],
    "item_id": ["i", " ", 2**70, -1, {}],
    "timestamp": [1_700_000_000, "2023-11-14T22:13:20Z", "2023-11-14", "soon", 4_000_000_000, 0, -1, 1e300, None],
    "event_type": ["play", "skip", 5, None],
    "weight": [1, 0, -1, 1000, "1", float("nan")],
    "event_id": ["e", 3, [], None],
}
GOOD = {"user_id": "u", "item_id": 1, "timestamp": 1_700_000_000, "event_type": "play"}
OBJECT = json.dumps(GOOD).encode()
BROKEN = [
    b"",
    b" ",
    b"{broken",
    b"[]",
    b"3",
    b'{"user_id": "\xff"}',
    b'{"user_id": 1, "user_id": 2}',
    OBJECT[:-1],
    OBJECT,
]
OBJECTS = st.sampled_from(BROKEN) | st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(values) for name, values in FIELDS.items()}
).map(lambda row: json.dumps(GOOD | row).encode())
ROW = b"u,1,1700000000,play,,"
ROWS = st.sampled_from([b"", b" ", b"u,1", b"u,\xff,1700000000,play,,", b'"u,1,1700000000,play,,', ROW]) | st.tuples(
    *(st.sampled_from(values) for values in FIELDS.values())
).map(lambda row: ",".join("" if value is None else str(value) for value in row).encode())


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_rows(path: Path, rows: list[bytes]) -> None:
    data = b"".join(row + b"\n" for row in rows)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    # The arrival of a file bounds its times, and is told with them.
    os.utime(path, (1_800_000_000, 1_800_000_000))


def test_a_shops_export_is_read_with_the_settings_that_are_proposed(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text("\n".join(SHOP))
    found = check_log(LogConfig(log=str(path)))
    assert found.settings == [
        "pipeline.columns.user_id=Customer No",
        "pipeline.columns.item_id=Article",
        "pipeline.columns.timestamp=Ordered At",
        "pipeline.time_zone=UTC",
    ]
    assert (found.rows, found.valid, found.valid_before, found.is_complete) == (56, 56, 0, True)
    assert (found.users, found.items, found.formats) == (7, 5, ["CSV"])
    assert found.window_seconds == 12 * 3600
    assert {column.name: column.kind for column in found.columns} == {
        "Order No": "integer",
        "Customer No": "text",
        "Article": "text",
        "Ordered At": "time",
    }
    assert not found.is_readable
    again = check_log(with_settings(LogConfig(log=str(path)), found.settings))
    assert (again.settings, again.valid_before, again.first_bad) == ([], 56, None)


def test_parquet_and_json_lines_with_odd_names(tmp_path: Path) -> None:
    times = [1_700_000_000 + 3600 * n for n in range(50)]
    pq.write_table(
        pa.table({"listener": range(50), "recording": ["r"] * 50, "played_at": times}), tmp_path / "p.parquet"
    )
    found = check_log(LogConfig(log=str(tmp_path / "p.parquet")))
    assert [setting.rpartition("=")[2] for setting in found.settings] == ["listener", "recording", "played_at"]
    rows = [
        {"visitorId": n, "contentRef": "c", "ts": str(1000 * time), "action": "view"} for n, time in enumerate(times)
    ]
    (tmp_path / "odd.jsonl").write_text(lines(*rows))
    found = check_log(LogConfig(log=str(tmp_path / "odd.jsonl")))
    assert [setting.rpartition("=")[2] for setting in found.settings] == ["visitorId", "contentRef", "ts", "action"]
    assert found.event_types == {"view": 50}
    assert found.start_ms == 1000 * times[0]


def test_names_that_are_right_already_are_kept(tmp_path: Path) -> None:
    row = {
        "user_id": 1,
        "item_id": 2,
        "timestamp": 1_700_000_000,
        "customer": 3,
        "product": 4,
        "created_at": 1_600_000_000,
    }
    (tmp_path / "log.jsonl").write_text(lines(row))
    found = check_log(LogConfig(log=str(tmp_path / "log.jsonl")))
    assert (found.settings, found.valid) == ([], 1)


def test_the_first_bad_row_is_named_as_an_editor_does(tmp_path: Path) -> None:
    good = lines({"user_id": "u", "item_id": "i", "timestamp": 1_700_000_000})
    for name, write in (
        ("a.jsonl", Path.write_bytes),
        ("a.jsonl.gz", lambda path, data: path.write_bytes(gzip.compress(data))),
    ):
        path = tmp_path / name
        write(path, (good * 3 + "\n" + '{"user_id": 1.5}\n' + good).encode())  # type: ignore[operator]
        bad = check_log(LogConfig(log=str(path))).first_bad
        assert bad is not None
        assert (bad.file, bad.place, bad.reason, bad.raw) == (name, "line 5", "missing_field", '{"user_id": 1.5}')


@pytest.mark.parametrize(
    ("name", "first", "odd"),
    [
        ("log.jsonl", [OBJECT], OBJECTS),
        ("log.jsonl.gz", [OBJECT], OBJECTS),
        ("log.csv", [",".join(FIELDS).encode(), ROW], ROWS),
    ],
    ids=["lines", "gzip", "csv"],
)
@settings(max_examples=6)
@given(st.data())
def test_check_and_ingest_agree_about_every_line(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    first: list[bytes],
    odd: st.SearchStrategy[bytes],
    data: st.DataObject,
) -> None:
    """The first bad row is emptied, and the log checked again, until `weir check` finds no other."""
    folder = tmp_path_factory.mktemp("log")
    config = PipelineConfig(log=str(folder / name), event_types={"play": "positive"}, metrics_port=0)
    rows, store = [*first, *data.draw(st.lists(odd, min_size=1, max_size=20))], Store(str(folder / "store"))
    write_rows(folder / name, rows)
    found = check_log(config)
    summary = ingest(store, config, registry=CollectorRegistry())
    assert (found.valid_before, found.rows - found.valid_before) == (summary.valid + summary.duplicates, summary.dead)
    letters = sorted(dead_letters(store), key=lambda letter: letter.position)
    seen = []
    while (bad := check_log(config).first_bad_before) is not None:
        seen.append((bad.reason, bad.detail, bad.raw))
        number = int(bad.place.removeprefix("line ")) - 1
        assert rows[number].strip()
        # A row whose quotes do not close takes the lines up to the place where they do.
        stop = number + 1 + b"\n".join(rows[number:])[: letters[len(seen) - 1].size].count(b"\n")
        rows[number:stop] = [b""] * len(rows[number:stop])
        write_rows(folder / name, rows)
    assert seen == [(letter.reason, letter.detail, letter.raw[:160]) for letter in letters]


def test_a_large_log_is_sampled_from_its_start_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(sample, "_PIECE_ROWS", 10)
    monkeypatch.setattr(listing, "FEW_ROWS", 0)
    times = [1_700_000_000 + 60 * n for n in range(5000)]
    path = tmp_path / "log.jsonl"
    path.write_text(lines(*({"user_id": n % 9, "item_id": 1, "timestamp": time} for n, time in enumerate(times))))
    pq.write_table(
        pa.table({"user_id": [1] * 5000, "item_id": [1] * 5000, "timestamp": times}), tmp_path / "log.parquet"
    )
    for name in ("log.jsonl", "log.parquet"):
        found = check_log(LogConfig(log=str(tmp_path / name)))
        assert not found.is_complete
        assert found.rows < 1000
        assert found.all_rows == pytest.approx(5000, rel=0.1)
        assert (found.start_ms, found.end_ms) == (1000 * times[0], 1000 * times[-1])


def test_the_rows_of_parquet_are_counted_however_its_row_groups_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_PIECE_ROWS", 10)
    monkeypatch.setattr(listing, "FEW_ROWS", 0)
    rows = pa.table({"user_id": [1] * 5000, "item_id": [1] * 5000, "timestamp": [1_700_000_000] * 5000})
    for group in (5000, 33, 101, 10, 7):
        pq.write_table(rows, tmp_path / "log.parquet", row_group_size=group)
        found = check_log(LogConfig(log=str(tmp_path / "log.parquet")))
        assert (found.is_complete, found.all_rows) == (False, 5000)


def test_only_the_last_row_group_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_PIECE_ROWS", 10)
    monkeypatch.setattr(listing, "FEW_ROWS", 0)
    rows = pa.table({"user_id": [1] * 5000, "item_id": [1] * 5000, "timestamp": [1_700_000_000] * 5000})
    pq.write_table(rows, tmp_path / "log.parquet", row_group_size=1000)
    pieces = sample.take_sample(LogConfig(log=str(tmp_path / "log.parquet"))).pieces
    assert [piece.numbers for piece in pieces] == [(0, 1, 2, 3)] * 4 + [(0, 33, 66, 99)]


def test_many_files_and_files_that_cannot_be_read(tmp_path: Path) -> None:
    row = {"user_id": "u", "item_id": "i", "timestamp": 1_700_000_000}
    for number in range(20):
        (tmp_path / f"{number:02}.jsonl").write_text(lines(row))
    (tmp_path / "99.parquet").write_bytes(random.Random(0).randbytes(50))
    found = check_log(LogConfig(log=str(tmp_path)))
    assert (found.files, found.formats) == (21, ["JSON Lines", "Parquet"])
    assert found.valid == 7
    assert found.reasons == {"unreadable_file": 1}
    assert found.first_bad is not None
    assert found.first_bad.place == "the whole file"


def test_nothing_to_read(tmp_path: Path) -> None:
    assert check_log(LogConfig(log=str(tmp_path))).rows == 0
    with pytest.raises(FileNotFoundError):
        check_log(LogConfig(log=str(tmp_path / "missing")))


def test_times_before_1990_are_read_once_min_time_allows_them(tmp_path: Path) -> None:
    rows = [{"user": "u", "item": "i", "time": n} for n in range(1, 20)]
    (tmp_path / "order.jsonl").write_text(lines(*rows))
    found = check_log(LogConfig(log=str(tmp_path / "order.jsonl")))
    assert found.settings[-1] == "pipeline.min_time=1970-01-01"
    assert found.valid == 19


def test_the_report_is_json(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("{}\n")
    found = check_log(LogConfig(log=str(tmp_path / "log.jsonl")))
    assert report.LogReport.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("above", [0, 1, 2, 40, 100])
@pytest.mark.parametrize("name", ["weight", "none"])
def test_weights_that_many_rows_exceed_are_left_out(above: int, name: str, tmp_path: Path) -> None:
    """Play counts and prices are no weights; one weight in 200 may be a mistake."""
    path = tmp_path / "plays.csv"
    lines = (f"u{n % 9},i{n % 7},{1_764_000_000 + n},{101 if n < 2 * above else 1},x\n" for n in range(200))
    path.write_text(f"user_id,item_id,timestamp,{name},none1\n" + "".join(lines))
    found = check_log(LogConfig(log=str(path), columns=LogColumns(weight=name)))
    assert found.valid_before == 200 - 2 * above
    assert found.settings == (["pipeline.columns.weight=" + ("none" if name == "weight" else "none2")] if above else [])
    assert found.valid == 200
    assert check_log(with_settings(LogConfig(log=str(path)), found.settings)).valid_before == 200


@given(hours=st.integers(0, 30), name=st.sampled_from(["log.csv", "log.csv.gz", "log.parquet"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
def test_a_tolerance_is_proposed_for_files_whose_time_is_some_hours_off(hours: int, name: str, tmp_path: Path) -> None:
    path, last = tmp_path / name, 1_764_000_000
    rows = [{"user_id": "u", "item_id": f"i{n}", "timestamp": last - 600 * n} for n in range(100)]
    text = "user_id,item_id,timestamp\n" + "".join(f"{','.join(map(str, row.values()))}\n" for row in reversed(rows))
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    os.utime(path, (last - 3600 * hours, last - 3600 * hours))
    found = check_log(LogConfig(log=str(path)))
    proposed = [one for one in found.settings if "clock_tolerance" in one]
    assert bool(proposed) is (0 < hours <= 24)
    assert found.valid == (100 if hours <= 24 else found.valid_before)
    assert check_log(with_settings(LogConfig(log=str(path)), found.settings)).valid_before == found.valid
