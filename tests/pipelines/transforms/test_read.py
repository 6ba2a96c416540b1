import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines import readers
from pipelines.blocks import Block, Letters, Lines, Progress
from pipelines.config import PipelineConfig
from pipelines.generations import fingerprint_of
from pipelines.log_file import LogFile
from pipelines.readers import Chunk
from pipelines.sources import Partition, discover
from pipelines.transforms import read
from pipelines.transforms.read import ListChunks, ReadChunk, Reading
from tests.pipelines import support
from tests.pipelines.support import Event

CONFIG = PipelineConfig(chunk_bytes=100, chunk_rows=2)


def listed(folder: Path, **reading: Any) -> tuple[list[Chunk], list[Letters], list[Progress]]:
    [partition] = discover(str(folder))
    chunks, letters, progress = [], [], []
    for element in ListChunks(CONFIG).process(Reading(partition, **reading)):
        value = getattr(element, "value", element)
        {Chunk: chunks, Letters: letters, Progress: progress}[type(value)].append(value)
    return chunks, letters, progress


@pytest.mark.parametrize(
    ("tail", "only_whole_lines", "stop", "limit"),
    [("", True, 10, 10), ("{}", False, 12, 12), ('{"a', False, 10, 13), ("{}", True, 10, 10)],
)
def test_where_reading_of_a_growing_file_stops(
    tmp_path: Path, tail: str, only_whole_lines: bool, stop: int, limit: int
) -> None:
    support.write_lines(tmp_path / "a.jsonl", ["x" * 9 + "\n", tail])
    chunks, [whole], [progress] = listed(tmp_path, only_whole_lines=only_whole_lines)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, stop), (stop, limit)][: 1 + (stop < limit)]
    assert {chunk.limit for chunk in chunks} == {limit}
    assert progress.partitions["a.jsonl"].stop == stop
    assert whole.letters == ()


def test_chunks_run_from_the_start_to_the_next_multiple(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "a.jsonl", ["x" * 49 + "\n"] * 7)
    chunks, _, _ = listed(tmp_path, start=150)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(150, 200), (200, 300), (300, 350)]
    chunks, _, [progress] = listed(tmp_path, start=350)
    assert (chunks, progress.partitions["a.jsonl"].stop) == ([], 350)


def blocks_of(chunks: list[Chunk]) -> list[Block]:
    return [block for chunk in chunks for block in ReadChunk(CONFIG).process(chunk)]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_no_row_below_the_start_is_read(tmp_path: Path, suffix: str) -> None:
    events = [Event("u", f"i{number}", number) for number in range(10)]
    path = tmp_path / f"a.{suffix}"
    write = {"jsonl": support.write_lines, "jsonl.gz": support.write_gzip}.get(suffix)
    if write:
        write(path, [event.line() for event in events])
    else:
        support.write_parquet(path, events)
    chunks, _, _ = listed(tmp_path)
    everything = np.concatenate([block.content.positions for block in blocks_of(chunks) if block.content])
    for start in everything.tolist():
        chunks, _, _ = listed(tmp_path, start=start, latest_ms=17)
        blocks = [block for block in blocks_of(chunks) if block.content and len(block.content.positions)]
        found = [block.content.positions for block in blocks if block.content]
        assert np.concatenate(found).tolist() == [place for place in everything if place >= start]
        assert [block.id.start for block in blocks] == [positions[0] for positions in found]
        assert {block.latest_ms for block in blocks} == {17}


def test_row_groups_below_the_start_are_not_opened(tmp_path: Path) -> None:
    support.write_parquet(tmp_path / "a.parquet", [Event("u", f"i{number}", number) for number in range(10)])
    chunks, _, [progress] = listed(tmp_path, start=6)
    assert [(chunk.row_group, chunk.start, chunk.stop) for chunk in chunks] == [(1, 4, 8), (2, 8, 10)]
    assert progress.partitions["a.parquet"].stop == 10


def test_a_file_that_has_gone_is_told_and_left_to_the_next_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    support.write_lines(tmp_path / "a.jsonl", ["x\n"])
    [partition] = discover(str(tmp_path))
    (tmp_path / "a.jsonl").unlink()
    assert list(ListChunks(CONFIG).process(Reading(partition))) == []
    assert "a.jsonl cannot be read now, the next run tries again: [Errno 2]" in caplog.text


def test_a_file_that_may_not_be_read_is_a_letter_and_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Partition) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.path)

    support.write_lines(tmp_path / "a.jsonl", ["x\n"])
    monkeypatch.setattr(Partition, "open", refuse)
    chunks, [letters], progress = listed(tmp_path)
    assert (chunks, progress, letters.letters[0].reason) == ([], [], "unreadable_file")
    assert "Permission denied" in letters.letters[0].detail


def test_a_damaged_footer_is_a_letter_and_no_progress(tmp_path: Path) -> None:
    support.write_parquet(tmp_path / "a.parquet", [Event("u", "i", 1)])
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[-30:-8] = b"\xff" * 22
    (tmp_path / "a.parquet").write_bytes(data)
    chunks, [letters], progress = listed(tmp_path)
    assert (chunks, progress, letters.letters[0].reason) == ([], [], "unreadable_file")


def test_what_a_file_system_raises_while_reading_goes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        closed = False

        def read(self, size: int) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def seek(self, offset: int, whence: int) -> int:
            return offset

        def close(self) -> None:
            pass

    support.write_lines(tmp_path / "a.jsonl", ["x\n"])
    [chunk], _, _ = listed(tmp_path)
    monkeypatch.setattr(Partition, "open", lambda _: LogFile(Failing()))
    with pytest.raises(OSError, match="Input/output error"):
        list(ReadChunk(CONFIG).process(chunk))
    assert list(ListChunks(CONFIG).process(Reading(chunk.partition))) == []


def test_whatever_else_is_raised_is_a_letter_of_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: bytes) -> list[bytes]:
        if b"poison" in data:
            raise ZeroDivisionError("division by zero")
        return whole(data)

    whole = readers._split
    monkeypatch.setattr(readers, "_split", fail)
    support.write_lines(tmp_path / "a.jsonl", ["x" * 99 + "\n", "poison".ljust(99) + "\n", "y" * 99 + "\n"])
    chunks, _, _ = listed(tmp_path)
    first, second, third = blocks_of(chunks)
    assert isinstance(first.content, Lines)
    assert isinstance(third.content, Lines)
    [(position, fault, _)] = second.faults
    assert (position, fault.reason) == (100, "unreadable_block")
    assert "ZeroDivisionError: division by zero" in fault.detail


def test_a_file_that_is_rewritten_while_it_is_read_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "a.jsonl", ["x" * 99 + "\n"] * 2)
    chunks, _, _ = listed(tmp_path)
    partition = replace(chunks[0].partition, fingerprint=fingerprint_of(chunks[0].partition))
    chunks = [replace(chunk, partition=partition) for chunk in chunks]
    assert [bool(block.content) for block in blocks_of(chunks)] == [True, True]
    support.write_lines(tmp_path / "a.jsonl", ["y" * 99 + "\n"] * 2, "w")
    blocks = blocks_of(chunks)
    assert [fault.reason for block in blocks for _, fault, _ in block.faults] == ["rewritten_file"] * 2
    assert not any(block.content for block in blocks)
    (tmp_path / "a.jsonl").unlink()
    assert not read._was_rewritten(partition)
