""""""

import errno
import gzip
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.readers.files import ORIGIN, Event, write_delimited, write_gzip, write_lines, write_parquet
from weir.readers import (
    Block,
    Chunk,
    Lines,
    LogConfig,
    Partition,
    Reading,
    UnreadableError,
    chunks_of,
    discover,
    identified,
    lines,
    read_chunk,
    read_log,
)
from weir.readers import reading as listing
from weir.readers.reading import _was_rewritten
from weir.readers.sources import LogFile


def listed(folder: Path, **reading: Any) -> list[Chunk]:
    [partition] = discover(str(folder))
    return chunks_of(Reading(partition, **reading), 100)[0]


def blocks_of(chunks: list[Chunk]) -> list[Block]:
    return [block for chunk in chunks for block in read_chunk(chunk, LogConfig(), 2, 100)]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet", "csv", "tsv.gz"])
def test_no_row_below_the_start_is_read(tmp_path: Path, suffix: str) -> None:
    events = [Event("u", f"i{number}", number) for number in range(10)]
    path = tmp_path / f"a.{suffix}"
    write = {"jsonl": write_lines, "jsonl.gz": write_gzip}.get(suffix)
    if "sv" in suffix:
        write_delimited(path, events)
    elif write:
        write(path, [event.line() for event in events])
    else:
        write_parquet(path, events)
    everything = np.concatenate([block.content.positions for block in blocks_of(listed(tmp_path)) if block.content])
    for start in everything.tolist():
        chunks = listed(tmp_path, start=start, latest_ms=17)
        blocks = [block for block in blocks_of(chunks) if block.content and len(block.content.positions)]
        found = [block.content.positions for block in blocks if block.content]
        assert np.concatenate(found).tolist() == [place for place in everything if place >= start]
        assert [block.id.start for block in blocks] == [positions[0] for positions in found]
        assert {block.latest_ms for block in blocks} == {17}


class Failing:
    closed = False

    def read(self, size: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def seek(self, offset: int, whence: int) -> int:
        return offset

    def close(self) -> None:
        pass


def test_what_a_file_system_raises_while_reading_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "a.jsonl", ["x\n"])
    [chunk] = listed(tmp_path)
    monkeypatch.setattr(Partition, "open", lambda _: LogFile(Failing()))
    with pytest.raises(OSError, match="Input/output error"):
        blocks_of([chunk])
    with pytest.raises(OSError, match="Input/output error"):
        chunks_of(Reading(chunk.partition), 100)


def test_whatever_else_is_raised_is_a_fault_of_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: bytes) -> list[bytes]:
        if b"poison" in data:
            raise ZeroDivisionError("division by zero")
        return whole(data)

    whole = lines._split
    monkeypatch.setattr(lines, "_split", fail)
    write_lines(tmp_path / "a.jsonl", ["x" * 99 + "\n", "poison".ljust(99) + "\n", "y" * 99 + "\n"])
    first, second, third = blocks_of(listed(tmp_path))
    assert isinstance(first.content, Lines)
    assert isinstance(third.content, Lines)
    [(position, fault, _)] = second.faults
    assert (position, fault.reason) == (100, "unreadable_block")
    assert "ZeroDivisionError: division by zero" in fault.detail


def test_a_file_that_is_rewritten_while_it_is_read_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["x" * 99 + "\n"] * 2)
    chunks = listed(tmp_path)
    partition = identified(chunks[0].partition, {})
    assert partition is not None
    chunks = [replace(chunk, partition=partition) for chunk in chunks]
    assert [bool(block.content) for block in blocks_of(chunks)] == [True, True]
    write_lines(tmp_path / "a.jsonl", ["y" * 99 + "\n"] * 2, "w")
    blocks = blocks_of(chunks)
    assert [fault.reason for block in blocks for _, fault, _ in block.faults] == ["rewritten_file"] * 2
    assert not any(block.content for block in blocks)
    (tmp_path / "a.jsonl").unlink()
    assert not _was_rewritten(partition)


def whole_log(folder: Path, **settings: Any) -> tuple[list[tuple[Any, ...]], list[tuple[str, int, str]]]:
    """Return (user, item, time) of the valid rows, and (partition, position, reason) of the dead letters."""
    rows, dead = list[tuple[Any, ...]](), list[tuple[str, int, str]]()
    for block, letters in read_log(discover(str(folder)), LogConfig(**settings)):
        rows += [(row["user_id"], row["item_id"], row["timestamp"]) for row in block.rows.to_pylist()]
        dead += [(one.partition, one.position, one.reason) for one in letters.letters]
    return rows, dead


def test_a_whole_log_of_every_format_is_read_by_one_rule(tmp_path: Path) -> None:
    events = [Event("u", f"i{number}", number) for number in range(5)]
    write_lines(tmp_path / "a.jsonl", ["{broken\n", *(event.line() for event in events)])
    write_gzip(tmp_path / "b.jsonl.gz", [event.line() for event in events] + ['{"user_id": 7}\n'])
    write_parquet(tmp_path / "c.parquet", events)
    rows, dead = whole_log(tmp_path)
    assert rows == 3 * [(event.user, event.item, 1000 * (ORIGIN + event.second)) for event in events]
    assert dead == [("a.jsonl", 0, "malformed_json"), ("b.jsonl.gz", 5, "missing_field")]


def test_rows_of_a_whole_log_may_lack_a_time_but_not_have_a_wrong_one(tmp_path: Path) -> None:
    kept = ['{"user_id": "u", "item_id": "a"}\n', '{"user_id": "u", "item_id": "b", "timestamp": null}\n']
    refused = [f'{{"user_id": "u", "item_id": "c", "timestamp": {time}}}\n' for time in ('"noon"', "5", "true")]
    write_lines(tmp_path / "a.jsonl", [*kept, *refused])
    rows, dead = whole_log(tmp_path)
    assert rows == [("u", "a", None), ("u", "b", None)]
    assert [reason for *_, reason in dead] == ["unparsable_timestamp", "timestamp_out_of_range", "wrong_type"]


def test_a_file_that_cannot_be_opened_is_a_dead_letter_and_spares_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no Parquet")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(Event("u", "i", 1).line().encode()))
    rows, dead = whole_log(tmp_path)
    assert rows == [("u", "i", 1000 * (ORIGIN + 1))]
    assert dead == [("a.parquet", 0, "unreadable_file")]


def chunks_and_stop(folder: Path, **reading: Any) -> tuple[list[Chunk], int]:
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
    chunks, found = chunks_and_stop(tmp_path, only_whole_lines=only_whole_lines)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, stop), (stop, limit)][: 1 + (stop < limit)]
    assert {chunk.limit for chunk in chunks} == {limit}
    assert found == stop


def test_chunks_run_from_the_start_to_the_next_multiple(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["x" * 49 + "\n"] * 7)
    chunks, _ = chunks_and_stop(tmp_path, start=150, latest_ms=17)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(150, 200), (200, 300), (300, 350)]
    assert {chunk.latest_ms for chunk in chunks} == {17}
    assert chunks_and_stop(tmp_path, start=350) == ([], 350)


def test_row_groups_below_the_start_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "a.parquet", [Event("u", f"i{number}", number) for number in range(10)])
    assert [(chunk.row_group, chunk.start, chunk.stop) for chunk in chunks_and_stop(tmp_path, start=6)[0]] == [
        (1, 4, 10)
    ]
    monkeypatch.setattr(listing, "FEW_ROWS", 5)
    chunks, stop = chunks_and_stop(tmp_path, start=6)
    assert [(chunk.row_group, chunk.start, chunk.stop) for chunk in chunks] == [(1, 4, 8), (2, 8, 10)]
    assert stop == 10


def test_gzip_is_one_chunk_whose_end_nobody_knows(tmp_path: Path) -> None:
    write_gzip(tmp_path / "a.jsonl.gz", ["{}\n"] * 1000)
    [chunk], stop = chunks_and_stop(tmp_path, start=7)
    assert (chunk.start, chunk.skip, stop) == (7, 7, 0)


def test_an_empty_file_has_no_chunk(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    assert chunks_and_stop(tmp_path) == ([], 0)


def test_content_or_permission_that_does_not_fit_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Partition) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.path)

    (tmp_path / "a.parquet").write_bytes(b"no Parquet")
    with pytest.raises(UnreadableError, match=r"a\.parquet cannot be read as parquet: ArrowInvalid") as raised:
        chunks_and_stop(tmp_path)
    assert raised.value.fault.reason == "unreadable_file"
    monkeypatch.setattr(Partition, "open", refuse)
    with pytest.raises(UnreadableError, match=r"a\.parquet: .*Permission denied"):
        chunks_and_stop(tmp_path)


def test_what_the_file_system_raises_is_raised(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["x\n"])
    [partition] = discover(str(tmp_path))
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        chunks_of(Reading(partition), 100)
