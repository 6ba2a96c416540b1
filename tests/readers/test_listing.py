import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.readers.files import Event, write_gzip, write_lines, write_parquet
from weir.readers import Chunk, Partition, Reading, UnreadableError, chunks_of, discover, listing


def listed(folder: Path, **reading: Any) -> tuple[list[Chunk], int]:
    [partition] = discover(str(folder))
    return chunks_of(Reading(partition, **reading), 100)


@pytest.mark.parametrize(
    ("tail", "only_whole_lines", "stop", "limit"),
    [("", True, 10, 10), ("{}", False, 12, 12), ('{"a', False, 10, 13), ("{}", True, 10, 10)],
)
def test_where_reading_of_a_growing_file_stops(
    tmp_path: Path, tail: str, only_whole_lines: bool, stop: int, limit: int
) -> None:
    write_lines(tmp_path / "a.jsonl", ["x" * 9 + "\n", tail])
    chunks, found = listed(tmp_path, only_whole_lines=only_whole_lines)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, stop), (stop, limit)][: 1 + (stop < limit)]
    assert {chunk.limit for chunk in chunks} == {limit}
    assert found == stop


def test_chunks_run_from_the_start_to_the_next_multiple(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["x" * 49 + "\n"] * 7)
    chunks, _ = listed(tmp_path, start=150, latest_ms=17)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(150, 200), (200, 300), (300, 350)]
    assert {chunk.latest_ms for chunk in chunks} == {17}
    assert listed(tmp_path, start=350) == ([], 350)


def test_row_groups_below_the_start_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "a.parquet", [Event("u", f"i{number}", number) for number in range(10)])
    assert [(chunk.row_group, chunk.start, chunk.stop) for chunk in listed(tmp_path, start=6)[0]] == [(1, 4, 10)]
    monkeypatch.setattr(listing, "FEW_ROWS", 5)
    chunks, stop = listed(tmp_path, start=6)
    assert [(chunk.row_group, chunk.start, chunk.stop) for chunk in chunks] == [(1, 4, 8), (2, 8, 10)]
    assert stop == 10


def test_gzip_is_one_chunk_whose_end_nobody_knows(tmp_path: Path) -> None:
    write_gzip(tmp_path / "a.jsonl.gz", ["{}\n"] * 1000)
    [chunk], stop = listed(tmp_path, start=7)
    assert (chunk.start, chunk.skip, stop) == (7, 7, 0)


def test_an_empty_file_has_no_chunk(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    assert listed(tmp_path) == ([], 0)


def test_content_or_permission_that_does_not_fit_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Partition) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.path)

    (tmp_path / "a.parquet").write_bytes(b"no Parquet")
    with pytest.raises(UnreadableError, match=r"a\.parquet cannot be read as parquet: ArrowInvalid") as raised:
        listed(tmp_path)
    assert raised.value.fault.reason == "unreadable_file"
    monkeypatch.setattr(Partition, "open", refuse)
    with pytest.raises(UnreadableError, match=r"a\.parquet: .*Permission denied"):
        listed(tmp_path)


def test_what_the_file_system_raises_is_raised(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["x\n"])
    [partition] = discover(str(tmp_path))
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        chunks_of(Reading(partition), 100)
