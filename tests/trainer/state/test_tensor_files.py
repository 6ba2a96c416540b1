import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts import CorruptArtefactError, Store
from trainer.state.tensor_files import describe, read_tensors, write_tensors

DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
SHAPES = st.lists(st.integers(0, 5), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    found = {}
    for number, (name, shape) in enumerate(draw(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES)))):
        values = torch.from_numpy(np.random.default_rng(number).standard_normal(shape))
        found[f"{number}.{name}"] = torch.as_tensor(values).to(DTYPES[name])
    return found


@given(wanted=tensors(), file_bytes=st.integers(1, 200))
def test_what_is_written_is_read_bit_for_bit_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, torch.Tensor], file_bytes: int
) -> None:
    store = Store(str(tmp_path_factory.mktemp("store")))
    files = write_tensors(store, "folder", wanted, file_bytes)
    assert all(file.size == file_bytes for file in files[:-1])
    found = read_tensors(store, "folder", describe(wanted), files)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_files_hold_plain_little_endian_numbers(store: Store) -> None:
    wanted = {"one": torch.tensor([1.5, -2.0]), "two": torch.tensor([[7], [-1]])}
    write_tensors(store, "folder", wanted)
    data = store.read("folder/tensors-00000.bin")
    assert np.frombuffer(data[:8], "<f4").tolist() == [1.5, -2.0]
    assert np.frombuffer(data[8:], "<i8").tolist() == [7, -1]


def test_what_is_not_contiguous_is_written_in_c_order(store: Store) -> None:
    wanted = {"turned": torch.arange(6).view(2, 3).T}
    found = read_tensors(store, "folder", describe(wanted), write_tensors(store, "folder", wanted))
    assert torch.equal(found["turned"], wanted["turned"])


def test_a_damaged_file_is_named(store: Store) -> None:
    wanted = {"one": torch.arange(100)}
    files = write_tensors(store, "folder", wanted, 256)
    store.write("folder/tensors-00002.bin", bytes(256))
    with pytest.raises(CorruptArtefactError, match="tensors-00002"):
        read_tensors(store, "folder", describe(wanted), files)
