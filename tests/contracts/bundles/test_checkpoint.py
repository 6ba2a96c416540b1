import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import CorruptArtefactError, FileEntry, Store
from weir.contracts.bundles.checkpoint import (
    CheckpointFormatError,
    CheckpointMark,
    CheckpointRef,
    TensorEntry,
    checkpoint_names,
    mark_path,
    read_checkpoint_chain,
    read_checkpoint_mark,
)
from weir.contracts.storage.documents import Document, write_document
from weir.contracts.verification import Kind, verify

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


def test_later_minor_formats_are_read(store: Store) -> None:
    class Later(CheckpointMark):
        note: str = "a field of a later version"

    write_document(store, PATH, Later.model_validate(MARK.model_dump()))
    assert read_checkpoint_mark(store, NAME) == MARK


@pytest.mark.parametrize(("number", "remedy"), [(5, "remove checkpoints/"), (8, "upgrade weir")])
def test_another_format_is_refused_by_its_number(store: Store, number: int, remedy: str) -> None:
    class Other(Document):
        format: int

    write_document(store, PATH, Other(format=number))
    with pytest.raises(CheckpointFormatError, match=f"has format {number}, this version reads 6 and 7: {remedy}"):
        read_checkpoint_mark(store, NAME)


def chain(store: Store) -> list[CheckpointRef]:
    """Write a whole checkpoint and two that continue it, one after the other."""
    found: list[CheckpointRef] = []
    for name in ("0000000001-0", "0000000002-0", "0000000003-0"):
        file = store.write(f"checkpoints/{name}/tensors-00000.bin", name.encode() + bytes(28))
        mark = MARK.model_copy(update={"files": (file,), "parent": found[-1] if found else None})
        found.append(CheckpointRef(name=name, checksum=write_document(store, mark_path(name), mark).checksum))
    return found


def test_a_chain_is_read_from_the_whole_checkpoint_on(store: Store) -> None:
    written = chain(store)
    assert [ref for ref, _ in read_checkpoint_chain(store, written[-1].name)] == written
    assert [ref for ref, _ in read_checkpoint_chain(store, written[0].name)] == written[:1]
    assert verify(store).findings == []


def test_a_chain_without_its_beginning_is_refused_by_name(store: Store) -> None:
    whole, middle, newest = chain(store)
    store.remove(f"checkpoints/{whole.name}")
    with pytest.raises(CorruptArtefactError, match=f"is missing, but checkpoints/{middle.name} continues it") as lost:
        read_checkpoint_chain(store, newest.name)
    assert lost.value.path == store.path(mark_path(whole.name))
    problem = f"{mark_path(middle.name)} continues it, but it is missing"
    assert verify(store).findings == [(Kind.MISSING, mark_path(whole.name), problem)]


def test_a_checkpoint_in_the_place_of_another_is_refused_by_name(store: Store) -> None:
    whole, middle, newest = chain(store)
    mark = read_checkpoint_mark(store, whole.name).model_copy(update={"batch": 5})
    write_document(store, mark_path(whole.name), mark)
    with pytest.raises(CorruptArtefactError, match=f"is not what checkpoints/{middle.name} continues") as other:
        read_checkpoint_chain(store, newest.name)
    assert other.value.path == store.path(mark_path(whole.name))
    [finding] = verify(store).findings
    assert finding[:2] == (Kind.DAMAGED, mark_path(whole.name))
    assert finding.problem.endswith(f"{mark_path(middle.name)} continues {whole.checksum}")
