from pathlib import Path
from typing import Any

import pytest

from tests.readers.files import Event, write_delimited, write_gzip, write_lines, write_parquet
from weir.readers import LogConfig, Newest, discover, read_newest

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
