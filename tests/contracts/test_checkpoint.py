import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import CorruptArtefactError, FileEntry, Store
from contracts.checkpoint import (
    CheckpointMark,
    FirstFormatError,
    TensorEntry,
    checkpoint_names,
    read_checkpoint_mark,
)
from contracts.documents import write_document

PATH = "checkpoints/0000000003-00000001-00000000/CHECKPOINT.json"
NAME = PATH.split("/")[1]
MARK = CheckpointMark(
    step=3,
    sequence=1,
    batch=0,
    trained_window="a window",
    settings={"seed": 0, "tower.kind": "sasrec"},
    tensors={"weight": TensorEntry(dtype="float32", shape=(4, 2)), "seen": TensorEntry(dtype="int64", shape=(1,))},
    files=(FileEntry(name="tensors-00000.bin", size=40, checksum="0" * 32),),
)


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("store")))


def test_a_mark_is_read_as_it_was_written(store: Store) -> None:
    write_document(store, PATH, MARK)
    assert checkpoint_names(store) == [NAME]
    assert read_checkpoint_mark(store, NAME) == MARK


@given(bit=st.integers(0, 8 * 600))
def test_one_flipped_bit_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, bit: int) -> None:
    store = Store(str(tmp_path_factory.mktemp("store")))
    write_document(store, PATH, MARK)
    data = bytearray(store.read(PATH))
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    store.write(PATH, bytes(data))
    with pytest.raises(CorruptArtefactError) as refusal:
        read_checkpoint_mark(store, NAME)
    assert refusal.value.path == store.path(PATH)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("size", [39, 41])
def test_files_that_do_not_hold_the_tensors_are_refused(size: int) -> None:
    fields = MARK.model_dump(mode="json")
    fields["files"][0]["size"] = size
    with pytest.raises(ValueError, match=f"its tensors take 40 bytes, its files hold {size}"):
        CheckpointMark.model_validate(fields)


def test_later_minor_formats_are_read_and_another_format_is_not(store: Store) -> None:
    class Later(CheckpointMark):
        note: str = "a field of a later version"

    write_document(store, PATH, Later.model_validate(MARK.model_dump()))
    assert read_checkpoint_mark(store, NAME) == MARK
    write_document(store, PATH, MARK.model_copy(update={"format": 3}))
    with pytest.raises(CorruptArtefactError, match="format: Input should be 2"):
        read_checkpoint_mark(store, NAME)


def test_the_first_format_is_told_apart(store: Store) -> None:
    fields = {"step": 1, "sequence": 0, "batch": 1, "learnt": "", "settings": {}, "tensors": {}}
    store.write(PATH, json.dumps(fields, indent=2).encode())
    with pytest.raises(FirstFormatError, match="remove checkpoints/"):
        read_checkpoint_mark(store, NAME)
