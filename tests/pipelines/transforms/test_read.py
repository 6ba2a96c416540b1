from pathlib import Path
from typing import Any

import pytest

from pipelines.blocks import Letters, Progress
from pipelines.config import PipelineConfig
from pipelines.readers import Chunk
from pipelines.sources import discover
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
    [chunk], [whole], [progress] = listed(tmp_path, only_whole_lines=only_whole_lines)
    assert (chunk.start, chunk.stop, chunk.limit) == (0, limit, limit)
    assert progress.partitions["a.jsonl"].stop == stop
    assert whole.letters == ()


def test_chunks_lie_on_the_grid(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "a.jsonl", ["x" * 49 + "\n"] * 7)
    chunks, _, _ = listed(tmp_path, start=150)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(100, 200), (200, 300), (300, 350)]


def test_row_groups_below_the_start_are_not_read(tmp_path: Path) -> None:
    support.write_parquet(tmp_path / "a.parquet", [Event("u", f"i{number}", number) for number in range(10)])
    chunks, _, [progress] = listed(tmp_path, start=6)
    assert [(chunk.row_group, chunk.start, chunk.stop) for chunk in chunks] == [(1, 4, 8), (2, 8, 10)]
    assert progress.partitions["a.parquet"].stop == 10
    blocks = [block for chunk in chunks for block in ReadChunk(CONFIG).process(chunk)]
    assert [block.id.start for block in blocks] == [6, 8]


def test_a_file_that_has_gone_is_a_letter_and_no_progress(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "a.jsonl", ["x\n"])
    [partition] = discover(str(tmp_path))
    (tmp_path / "a.jsonl").unlink()
    [element] = ListChunks(CONFIG).process(Reading(partition))
    [letter] = element.value.letters
    assert letter.reason == "unreadable_file"
    assert "a.jsonl" in letter.detail
