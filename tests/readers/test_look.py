"""The first look at a log, and the advice for each reason of refusal and kind of file."""

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.readers.files import ORIGIN, Event, write_delimited, write_gzip, write_lines, write_parquet
from weir.contracts import EventClock
from weir.readers import (
    HINTS,
    OF_READING,
    Chunk,
    LogConfig,
    Newest,
    Partition,
    Reading,
    Reason,
    chunks_of,
    discover,
    first_look,
    next_step,
    read_newest,
)

ROWS = [{"user_id": f"jürgen{n % 7}", "item_id": f"i{n % 5}", "timestamp": 1_764_000_000 + n} for n in range(60)]
LINES = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in ROWS)
CSV = "user_id,item_id,timestamp\n" + "".join(f"{','.join(map(str, row.values()))}\n" for row in ROWS)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_next_step_of_its_own(reason: Reason) -> None:
    assert next_step(reason) == HINTS[reason]
    assert [other for other in Reason if HINTS[other] == HINTS[reason]] == [reason]
    assert len(HINTS[reason]) > 20


def test_no_reason_about_values_is_one_of_reading() -> None:
    assert {Reason.MISSING_FIELD, Reason.WRONG_TYPE, Reason.AHEAD_OF_ARRIVAL, Reason.WEIGHT_TOO_LARGE}.isdisjoint(
        OF_READING
    )


def log_of(path: Path, content: bytes) -> Partition:
    path.write_bytes(content)
    [partition] = discover(str(path))
    return partition


def told(partition: Partition) -> str:
    """What the first look says, after it has refused the file."""
    look = first_look([partition], LogConfig())
    assert look.valid == 0
    assert look.advice in look.problem
    return look.advice


WRONG: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "array": ("a log.json", lambda: json.dumps(ROWS, ensure_ascii=False).encode(), "JSON array"),
    "indented array": ("log.json", lambda: json.dumps(ROWS, indent=1).encode(), "JSON array"),
    "array in gzip": ("log.json.gz", lambda: gzip.compress(json.dumps(ROWS).encode()), "JSON array"),
    "objects over lines": (
        "log.jsonl",
        lambda: "\n".join(json.dumps(r, indent=2) for r in ROWS).encode(),
        "several lines",
    ),
    "latin-1 csv": ("log.csv", lambda: CSV.encode("latin-1"), "Latin-1"),
    "latin-1 header": ("log.csv", lambda: CSV.replace("\n", ",ü\n").encode("latin-1"), "Latin-1"),
    "latin-1 json": ("log.jsonl", lambda: LINES.encode("latin-1"), "Latin-1"),
    "windows-1252": ("log.csv", lambda: CSV.replace("ü", "€").encode("cp1252"), "Windows-1252"),
    "latin-1 in gzip": ("log.csv.gz", lambda: gzip.compress(CSV.encode("latin-1")), "Latin-1"),
    "utf-16 csv": ("it's.csv", lambda: CSV.encode("utf-16"), "UTF-16"),
    "utf-16 json": ("log.jsonl", lambda: LINES.encode("utf-16"), "UTF-16"),
    "utf-16 without a mark": ("log.csv", lambda: CSV.encode("utf-16-le"), "UTF-16LE"),
    "big endian": ("log.jsonl", lambda: LINES.encode("utf-16-be"), "UTF-16BE"),
    "gzip as csv": ("log.csv", lambda: gzip.compress(CSV.encode()), "gzipped: name it log.csv.gz"),
    "gzip as json": ("a/log.jsonl", lambda: gzip.compress(LINES.encode()), "gzipped: name it log.jsonl.gz"),
    "csv as gzip": ("log.csv.gz", CSV.encode, "not gzipped: name it log.csv"),
    "json as csv": ("log.csv", LINES.encode, "holds JSON: name it log.jsonl"),
    "zip": ("log.csv", lambda: b"PK\x03\x04" + bytes(range(256)) * 9, "spreadsheet"),
    "html": ("log.json", lambda: b"<!doctype html>\n<html>", "HTML"),
    "csv as json": ("log.jsonl", CSV.encode, ".csv"),
    "separator row": ("log.csv", lambda: b"\xef\xbb\xbfsep=;\r\n" + CSV.replace(",", ";").encode(), "separator"),
    "two colons": ("log.csv", lambda: CSV.replace(",", "::").encode(), "write commas"),
    "rows alone": ("log.csv", CSV.partition("\n")[2].encode, "seems to be a row"),
    "no parquet": ("log.parquet", CSV.encode, HINTS[Reason.UNREADABLE_FILE]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_something_else_is_told_what_it_is(name: str, tmp_path: Path) -> None:
    file, content, part = WRONG[name]
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    assert part in told(log_of(path, content()))


@pytest.mark.parametrize(
    "name", [name for name in WRONG if any(part in name for part in ("array", "lines", "1", "end", "row", "colons"))]
)
def test_the_command_that_is_told_makes_a_log_of_it(name: str, tmp_path: Path) -> None:
    file, content, _ = WRONG[name]
    command = told(log_of(tmp_path / file, content())).rpartition(": ")[2]
    tool = next(tool for tool in ("jq", "iconv", "tail", "sed") if f"{tool} " in command)
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    subprocess.run(["sh", "-ec", command], check=True, cwd=tmp_path)
    (tmp_path / file).unlink()
    look = first_look(discover(str(tmp_path)), LogConfig(), most=1)
    assert look.valid == look.rows > 0


def test_parquet_of_another_name_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert told(discover(str(path))[0]) == "the file is Parquet: name it log.parquet"


def test_an_array_on_each_line_is_no_array_of_objects(tmp_path: Path) -> None:
    partition = log_of(tmp_path / "log.jsonl", b'["u", "i", 1]\n' * 9)
    assert "JSON array" not in told(partition)


def test_a_sound_file_leaves_it_to_the_reason(tmp_path: Path) -> None:
    for path, content in ((tmp_path / "a.jsonl", LINES), (tmp_path / "b.csv", CSV)):
        partition = log_of(path, content.encode())
        for reason in (Reason.AHEAD_OF_ARRIVAL, Reason.MISSING_FIELD, Reason.WEIGHT_TOO_LARGE):
            assert next_step(reason, partition) == HINTS[reason]


def test_a_file_without_permission_is_told_so(tmp_path: Path) -> None:
    partition = log_of(tmp_path / "log.csv", CSV.encode())
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (tmp_path / "log.csv").chmod(0)
    assert "chmod" in told(partition)


def test_it_ends_at_the_first_valid_row(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["{broken\n", Event("u", "i", 0).line()])
    write_lines(tmp_path / "b.jsonl", ["{broken\n"] * 50)
    look = first_look(discover(str(tmp_path)), LogConfig())
    assert (look.rows, look.valid) == (2, 1)


def test_it_says_what_is_wrong_with_most_rows_and_what_mends_it(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "a.jsonl", ["{broken\n", *['{"user_id": "u", "item_id": "i", "timestamp": "2024-01-01"}\n'] * 9]
    )
    look = first_look(discover(str(tmp_path)), LogConfig())
    assert (look.rows, look.valid, look.reasons["unparsable_timestamp"]) == (10, 0, 9)
    assert look.problem.startswith("unparsable_timestamp in 9 of 10 rows; the first: ")
    assert "pipeline.time_zone" in look.problem


def test_one_letter_for_all_rows_of_a_table_counts_as_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("customer,sku\n" + "1,2\n" * 30)
    look = first_look(discover(str(tmp_path)), LogConfig(), most=20)
    assert look.rows == look.reasons["missing_field"] == 30


def test_a_large_csv_is_looked_at_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f'u{number},i,soon,"said\nu,i,1700000000,\n"\n' for number in range(200)]
    (tmp_path / "a.csv").write_text("".join(["user_id,item_id,timestamp,comment\n", *rows, "u,i,1700000000,\n"]))
    seen: list[int] = []

    def listed(reading: Reading, size: int) -> tuple[list[Chunk], int]:
        seen.append(reading.partition.size)
        return chunks_of(reading, size)

    monkeypatch.setitem(first_look.__globals__, "_REACH", 100)
    monkeypatch.setitem(first_look.__globals__, "chunks_of", listed)
    look = first_look(discover(str(tmp_path)), LogConfig(), most=20)
    assert (look.valid, look.reasons) == (0, {"unparsable_timestamp": look.rows})
    assert 20 <= look.rows < 30
    assert seen == [100, 800]
    look = first_look(discover(str(tmp_path)), LogConfig())
    assert (look.rows, look.valid) == (201, 1)


def test_a_file_that_cannot_be_opened_is_a_row_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"broken")
    look = first_look(discover(str(tmp_path)), LogConfig())
    assert (look.rows, look.valid, dict(look.reasons)) == (1, 0, {"unreadable_file": 1})


def test_the_first_letter_is_one_of_the_commonest_reason(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["{broken\n", *['{"user_id": "u", "item_id": "i", "timestamp": "2024"}\n'] * 9])
    letter = first_look(discover(str(tmp_path)), LogConfig()).commonest
    assert letter is not None
    assert (letter.reason, letter.position) == ("timestamp_out_of_range", 8)


@given(hours=st.integers(-48, 48), tolerance=st.integers(0, 48))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_rows_are_held_against_the_arrival_of_their_file_as_in_a_run(
    hours: int, tolerance: int, tmp_path: Path
) -> None:
    path, at = tmp_path / "a.jsonl", ORIGIN
    path.unlink(missing_ok=True)
    write_lines(path, [Event("u", "i", 0).line()] * 3)
    os.utime(path, (at + 3600 * hours, at + 3600 * hours))
    config = LogConfig(clock_tolerance_minutes=60 * tolerance)
    judged = first_look(discover(str(path)), config, clock=EventClock())
    assert (judged.valid > 0) is (hours + tolerance >= 0)
    assert first_look(discover(str(path)), config).valid > 0


EVENTS = [Event(f"u{number % 3}", f"i{number:02}", number) for number in range(20)]
NAMES = [event.item for event in EVENTS]


def write(path: Path, events: list[Event]) -> None:
    if "sv" in path.name:
        write_delimited(path, events)
    elif path.suffix == ".parquet":
        write_parquet(path, events)
    else:
        {".gz": write_gzip}.get(path.suffix, write_lines)(path, [event.line() for event in events])


def read(folder: Path, rows: int, **limits: Any) -> tuple[list[str], Newest]:
    found = read_newest(discover(str(folder)), LogConfig(), rows, **{"block_rows": 3, "block_bytes": 300, **limits})
    return [item for block, _ in found.blocks for item in block.rows["item_id"].to_pylist()], found


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("rows", [1, 4, 7, 10, 19, 20, 100])
def test_the_last_rows_are_read_in_their_order(tmp_path: Path, suffix: str, rows: int) -> None:
    write(tmp_path / f"a.{suffix}", EVENTS[:8])
    write(tmp_path / f"b.{suffix}", EVENTS[8:])
    items, found = read(tmp_path, rows)
    assert items == NAMES[len(NAMES) - len(items) :]
    assert found.rows == len(items)
    # At most a block more: 300 bytes, and a line of CSV has 30.
    assert min(rows, 20) <= len(items) < rows + 10
    assert found.is_whole == (len(items) == 20)


def test_rows_of_a_row_group_are_counted_exactly(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", EVENTS, row_group=20)
    for rows in range(1, 21):
        items, found = read(tmp_path, rows)
        assert items == NAMES[20 - rows :]
        assert found.is_whole == (rows == 20)


@pytest.mark.parametrize("suffix", ["jsonl.gz", "csv.gz"])
def test_of_a_gzip_file_the_first_rows_are_read(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"a.{suffix}", EVENTS)
    items, found = read(tmp_path, 7)
    assert items == NAMES[: len(items)]
    assert 7 <= len(items) < 10
    assert not found.is_whole
    assert read(tmp_path, 20)[0] == NAMES
    assert read(tmp_path, 21)[1].is_whole


def test_what_cannot_be_read_is_a_dead_letter(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", EVENTS[:2])
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    write_lines(tmp_path / "c.jsonl", ["broken\n", EVENTS[2].line()])
    items, found = read(tmp_path, 100)
    assert items == NAMES[:3]
    reasons = [letter.reason for _, letters in found.blocks for letter in letters.letters]
    assert sorted(reasons) == ["malformed_json", "unreadable_file"]
