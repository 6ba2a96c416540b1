import gzip
from pathlib import Path

import pytest

from weir.readers import LOG_SUFFIXES, PAIR_SUFFIXES, Letters, LogConfig, ValidatedBlock, discover, read_log


def read(path: Path) -> list[tuple[ValidatedBlock, Letters]]:
    return list(read_log(discover(str(path), PAIR_SUFFIXES), LogConfig()))


@pytest.mark.parametrize("name", ["order.txt", "order.txt.gz"])
def test_pairs_are_rows_without_times_and_ids_stay_as_they_are_spelt(tmp_path: Path, name: str) -> None:
    data = b"007 10\nanna 4\n7 10\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    [(block, letters)] = read(tmp_path / name)
    assert block.rows["user_id"].to_pylist() == ["007", "anna", "7"]
    assert block.rows["item_id"].to_pylist() == ["10", "4", "10"]
    assert block.rows["timestamp"].null_count == 3
    assert block.rows["position"].to_pylist() == [0, 1, 2]
    assert not letters.letters


def test_blank_texts_have_no_pairs(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(b"\n")
    assert read(tmp_path / "order.txt") == []


@pytest.mark.parametrize(
    ("name", "data", "detail"),
    [
        ("order.txt", b"1 2 3\n", "Expected 2 columns, got 3"),
        ("order.txt.gz", gzip.compress(b"1 2\n" * 99, mtime=0)[:-12], "EOFError"),
    ],
)
def test_a_text_that_does_not_hold_pairs_is_a_dead_letter(tmp_path: Path, name: str, data: bytes, detail: str) -> None:
    (tmp_path / name).write_bytes(data)
    [(block, letters)] = read(tmp_path / name)
    assert len(block.rows) == 0
    [letter] = letters.letters
    assert letter.reason == "unreadable_block"
    assert detail in letter.detail


def test_an_empty_id_is_refused_as_in_any_log(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(b"1 2\n3 \n")
    [(block, letters)] = read(tmp_path / "order.txt")
    assert block.rows["item_id"].to_pylist() == ["2"]
    assert [(letter.position, letter.reason) for letter in letters.letters] == [(1, "empty_id")]


def test_pipelines_do_not_read_pairs(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(b"1 2\n")
    assert discover(str(tmp_path)) == []
    assert not LOG_SUFFIXES.keys() & PAIR_SUFFIXES.keys()
