import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from weir.contracts import CorruptArtefactError, SourceSpan, Store, checksum
from weir.pipelines.positions import END_OF_TIME, WHOLE_FILE, Base, Run
from weir.pipelines.progress import LettersWritten
from weir.pipelines.transforms.dead_letters import WriteDeadLetters, file_name, read_dead_letters, start_of
from weir.readers import BlockId, DeadLetter, Fault, Letters, Reason

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
