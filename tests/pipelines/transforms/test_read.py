""""""

import errno
import os
import re
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.coders.typecoders import registry
from apache_beam.typehints import Tuple
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import CorruptArtefactError, SourceSpan, Store, checksum
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.progress import WHOLE_FILE, LettersWritten, Progress
from weir.pipelines.runs.run import END_OF_TIME, Base, Run
from weir.pipelines.stream.reader import Batch
from weir.pipelines.stream.slices import Slice
from weir.pipelines.transforms.deduplicate import ShardWindow
from weir.pipelines.transforms.read import (
    ElementCoder,
    ListChunks,
    WriteDeadLetters,
    file_name,
    read_dead_letters,
    start_of,
)
from weir.pipelines.transforms.split import Keyed, ShardSlice
from weir.readers import Block, BlockId, Chunk, DeadLetter, Fault, Letters, Lines, Partition, Reading, Reason, discover

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


@pytest.mark.parametrize("kind", [Batch, Block, Keyed, ShardSlice, ShardWindow, Slice])
def test_beam_uses_it_for_all_that_holds_rows(kind: type) -> None:
    assert isinstance(registry.get_coder(kind), ElementCoder)
    assert isinstance(registry.get_coder(Tuple[int, kind]).coders()[1], ElementCoder)


@given(st.lists(st.text(max_size=20), max_size=50))
def test_what_is_encoded_comes_back_and_its_size_is_known_before(ids: list[str]) -> None:
    piece = ShardSlice("a", 10_000, pa.RecordBatch.from_pydict({"item_id": pa.array(ids, pa.string())}))
    encoded = ElementCoder().encode(piece)
    assert ElementCoder().decode(encoded) == piece
    assert 0 <= len(encoded) - piece.nbytes < 1000


def test_a_block_is_as_large_as_its_lines() -> None:
    lines = Lines([b"{}", b"[1]"], np.arange(2))
    assert [Block(BlockId("a", 0), content).nbytes for content in (lines, None)] == [5, 0]


def test_to_say_how_large_an_element_is_does_not_encode_it() -> None:
    """A function cannot be pickled, so encoding would fail."""
    piece = ShardSlice(lambda: None, 0, pa.RecordBatch.from_pydict({"item_id": ["one"]}))  # type: ignore[arg-type]
    assert beam.coders.TupleCoder([beam.coders.VarIntCoder(), ElementCoder()]).estimate_size((1, piece)) > 0
    with pytest.raises(Exception, match="pickle"):
        ElementCoder().encode(piece)


BLOCK = BlockId("eu/[1].jsonl", 4096)


def letter(position: int) -> DeadLetter:
    return DeadLetter.of(BLOCK.partition, position, Fault(Reason.WRONG_TYPE, "a sentence"), b"raw\xff")


def run(refused: list[int] | None = None, name: str = "one") -> Run:
    known = {BLOCK.partition: np.array(refused, np.int64)} if refused else {}
    return Run(name, Base(), {}, 1000, 0, flush=True, refused=known)


def write(store: Store, run: Run, *letters: DeadLetter, block: BlockId = BLOCK) -> list[LettersWritten]:
    return list(WriteDeadLetters(store, run).process(Letters(block, letters)))


def test_letters_are_written_once_by_each_attempt(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    [first] = write(store, run(), letter(1), letter(2))
    [second] = write(store, run(name="two"), letter(2))
    assert read_dead_letters(store, first.file.name) == [letter(1), letter(2)]
    assert read_dead_letters(store, second.file.name) == [letter(2)]
    assert (first.file.rows, first.file.reasons, first.last) == (2, {"wrong_type": 2}, 2)
    assert first.file.checksum == checksum(store.read(first.file.name))
    assert write(store, run()) == []


def test_a_letter_that_a_commit_records_is_not_written_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    [found] = write(store, run([1, 3]), letter(1), letter(2), letter(3))
    assert read_dead_letters(store, found.file.name) == [letter(2)]
    assert write(store, run([1]), letter(1)) == []
    whole = BlockId(BLOCK.partition, WHOLE_FILE)
    assert write(store, run([WHOLE_FILE]), letter(0), block=whole) == []
    [found] = write(store, run([0]), letter(0), block=whole)
    assert found.last == END_OF_TIME


def test_a_row_that_was_valid_before_is_refused_unless_it_has_counted(tmp_path: Path) -> None:
    """Positions 10 to 49 are read again; of window 1000 all below 40 is counted, of window 2000 all below 20."""
    span = SourceSpan(start=0, stop=50, resume=10, size=50)
    base = Base(sources={BLOCK.partition: span}, counted={BLOCK.partition: {1000: 40, 2000: 20}})
    again = Run("one", base, {}, 1000, 0, flush=True)
    times = {12: 1500, 15: 2999, 19: 3000, 25: 2000, 30: 1000, 45: 1999, 47: None, 50: None, 60: 1500}
    letters = [msgspec.structs.replace(letter(at), event_ms=time) for at, time in times.items()]
    [found] = write(Store(str(tmp_path)), again, *letters)
    left = read_dead_letters(Store(str(tmp_path)), found.file.name)
    assert [(one.position, one.may_have_counted) for one in left] == [
        *((at, False) for at in (19, 25, 45)),
        (47, True),
        *((at, False) for at in (50, 60)),
    ]


def test_the_file_is_named_by_partition_block_and_attempt() -> None:
    assert re.fullmatch(r"dead-letters/eu/\[1\].jsonl/000000000004096-[0-9a-f]{8}-f0.jsonl", file_name(BLOCK, "f0"))
    assert re.fullmatch(r"dead-letters/a.parquet/file-[0-9a-f]{8}-f0.jsonl", file_name(BlockId("a.parquet", -1), "f0"))
    assert (start_of(file_name(BLOCK, "f0")), start_of(file_name(BlockId("a.parquet", -1), "f0"))) == (4096, 0)


@pytest.mark.parametrize("place", [3, 14, -2])
def test_damaged_letters_are_refused_by_name(tmp_path: Path, place: int) -> None:
    """They say which rows were refused already: a position that reads otherwise would drop or repeat a row."""
    store = Store(str(tmp_path))
    [written] = write(store, run(), letter(1), letter(2))
    data = bytearray(store.read(written.file.name))
    data[place] ^= 1
    store.write(written.file.name, bytes(data))
    with pytest.raises(CorruptArtefactError, match=re.escape(written.file.name)):
        read_dead_letters(store, written.file.name, written.file.checksum)
    store.write(written.file.name, b"not json")
    with pytest.raises(CorruptArtefactError, match=re.escape(written.file.name)):
        read_dead_letters(store, written.file.name)
