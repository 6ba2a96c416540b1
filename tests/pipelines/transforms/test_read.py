import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.pipelines.config import PipelineConfig
from weir.pipelines.progress import Progress
from weir.pipelines.transforms.read import ListChunks
from weir.readers import Chunk, Letters, Partition, Reading, discover

CONFIG = PipelineConfig(chunk_bytes=100, chunk_rows=2)


def listed(folder: Path, **reading: Any) -> tuple[list[Chunk], list[Letters], list[Progress]]:
    [partition] = discover(str(folder))
    chunks, letters, progress = [], [], []
    for element in ListChunks(CONFIG).process(Reading(partition, **reading)):
        value = getattr(element, "value", element)
        {Chunk: chunks, Letters: letters, Progress: progress}[type(value)].append(value)
    return chunks, letters, progress


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
