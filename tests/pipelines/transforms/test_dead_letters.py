from pathlib import Path

from contracts import Store
from pipelines.blocks import BlockId, Letters
from pipelines.faults import DeadLetter, Fault, Reason
from pipelines.transforms.dead_letters import WriteDeadLetters, read_dead_letters

BLOCK = BlockId("eu/[1].jsonl", 4096)


def letter(position: int) -> DeadLetter:
    return DeadLetter.of(BLOCK.partition, position, Fault(Reason.WRONG_TYPE, "a sentence"), b"raw\xff")


def test_letters_are_written_read_replaced_and_removed(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for letters in ((letter(1), letter(2)), (letter(2),), (), ()):
        list(WriteDeadLetters(store).process(Letters(BLOCK, letters)))
        assert read_dead_letters(store, BLOCK.dead_letters) == list(letters)
        assert store.exists(BLOCK.dead_letters) == bool(letters)


def test_the_file_is_named_by_partition_and_block() -> None:
    assert BLOCK.dead_letters == "dead-letters/eu/[1].jsonl/000000000004096.jsonl"
    assert BlockId("a.parquet", -1).dead_letters == "dead-letters/a.parquet/file.jsonl"
