from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import CorruptArtefactError, Store
from weir.trainer.items.ids import pack_ids, unpack_ids
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import RowSharding
from weir.trainer.items.shard_reader import OwnPlaces, OwnRowSharding, own_table
from weir.trainer.state import tensor_files
from weir.trainer.state.tensor_files import describe, read_tensors, write_tensors

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


@given(ranks=st.integers(1, 4), width=st.integers(1, 3), file_bytes=st.integers(1, 200), by_place=st.booleans())
def test_a_rank_takes_its_lines_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, width: int, file_bytes: int, by_place: bool
) -> None:
    store = Store(str(tmp_path_factory.mktemp("store")))
    every = torch.arange(16)
    lines = torch.arange(16.0 * width).view(16, width)
    stored = lines[Places(16).rows(every)] if by_place else lines
    wanted = {"before": torch.arange(5), "lines": stored, "after": torch.arange(3)}
    files = write_tensors(store, "folder", wanted, file_bytes)
    for rank in range(ranks):
        places = Places(16, rank, ranks)
        own = {"lines": OwnPlaces(places, by_place)}
        found = read_tensors(store, "folder", describe(wanted), files, own)
        assert torch.equal(found["lines"], lines[places.rows_at(torch.arange(len(places.here)))])
        assert torch.equal(found["before"], wanted["before"])
        assert torch.equal(found["after"], wanted["after"])


IDS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=20)


@given(ids=IDS, ranks=st.integers(1, 4), file_bytes=st.integers(1, 200), at_once=st.integers(1, 30))
def test_a_rank_takes_its_items_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str | None], ranks: int, file_bytes: int, at_once: int
) -> None:
    store, keys = Store(str(tmp_path_factory.mktemp("store"))), np.arange(len(ids))
    sizes, data = pack_ids(np.array(ids, object))
    arrays = {"keys": keys, "seen_ms": keys * 7, "id_sizes": sizes, "id_bytes": data}
    wanted = {name: torch.from_numpy(one) for name, one in arrays.items()}
    files = write_tensors(store, "folder", wanted, file_bytes)
    for rank in range(ranks):
        with patch.object(tensor_files, "_AT_ONCE", at_once):
            own = own_table(OwnRowSharding(RowSharding(rank, ranks), len(ids)))
            found = read_tensors(store, "folder", describe(wanted), files, own)
        assert torch.equal(found["keys"], wanted["keys"][rank::ranks])
        assert torch.equal(found["seen_ms"], wanted["seen_ms"][rank::ranks])
        assert unpack_ids(found["id_sizes"].numpy(), found["id_bytes"].numpy()).tolist() == ids[rank::ranks]


def test_a_rank_reads_only_the_files_that_hold_its_lines(store: Store) -> None:
    wanted = {"lines": torch.arange(64.0)}
    files = write_tensors(store, "folder", wanted, 16)
    store.remove(f"folder/{files[0].name}")
    first, second = ({"lines": OwnPlaces(Places(64, rank, 2), by_place=True)} for rank in (0, 1))
    read_tensors(store, "folder", describe(wanted), files, second)
    with pytest.raises(CorruptArtefactError, match="tensors-00000"):
        read_tensors(store, "folder", describe(wanted), files, first)
