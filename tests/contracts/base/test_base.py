""""""

import copy
import errno
import pickle
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pydantic import ValidationError

from weir.contracts import PADDING_KEY, CorruptArtefactError, UserError, hash_id, hash_ids, hash_strings
from weir.contracts.base.arrays import Layers, Overlay, ascending
from weir.contracts.base.models import FrozenModel, StoredModel
from weir.contracts.base.string_arrays import Texts, in_scratch, naming_the_disk, zeros_in_scratch
from weir.contracts.storage.format import StoreFormatError
from weir.contracts.storage.store import UnfitStoreError


class HintedError(UserError):
    exit_status = 2
    hint = "do this"


def test_the_hint_follows_the_message() -> None:
    assert HintedError("broken").explain() == ["broken; do this"]
    assert HintedError("broken").exit_status == 2


def test_an_error_without_a_message_is_named() -> None:
    assert UserError().explain() == ["UserError"]
    assert UserError().exit_status == 1


@pytest.mark.parametrize("kind", [StoreFormatError, UnfitStoreError])
def test_errors_of_the_store_need_no_hint(kind: type[UserError]) -> None:
    assert kind("say what to do").explain() == ["say what to do"]


def test_a_damaged_file_is_named_with_a_way_out_after_copying_too() -> None:
    error = CorruptArtefactError("a/b", "has 3 bytes")
    for each in (error, copy.copy(error)):
        assert each.explain() == ["a/b: has 3 bytes; restore it from a copy; without one, start with another --store"]
        assert (each.path, each.problem, each.exit_status) == ("a/b", "has 3 bytes", 1)


class Settings(FrozenModel):
    k: int = 1


class Stored(StoredModel):
    k: int = 1


@pytest.mark.parametrize("model", [Settings(), Stored()])
def test_fields_cannot_be_set(model: Settings | Stored) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        model.k = 2  # type: ignore[misc]


def test_unknown_fields_are_refused_in_settings_and_ignored_in_what_is_stored() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Settings.model_validate({"k": 2, "later": 3})
    assert Stored.model_validate({"k": 2, "later": 3}) == Stored(k=2)


@given(st.lists(st.text()))
def test_an_array_hashes_as_its_ids_do(ids: list[str]) -> None:
    keys = hash_ids(pa.array(ids, pa.string()))
    assert keys.dtype == np.int64
    assert keys.tolist() == [hash_id(raw) for raw in ids]


@given(st.lists(st.text()), st.sampled_from(["", "0a" * 16]))
def test_a_few_strings_hash_as_each_of_them_does(ids: list[str], secret: str) -> None:
    keys = hash_strings(ids, secret)
    assert keys.dtype == np.int64
    assert keys.tolist() == [hash_id(raw, secret) for raw in ids]


@given(st.text())
def test_a_key_is_xxh3_64_of_the_utf8_id(raw: str) -> None:
    expected = np.frombuffer(xxhash.xxh3_64(raw.encode()).digest()[::-1], "<i8")[0]
    assert hash_id(raw) == expected != PADDING_KEY


def test_keys_are_the_same_on_every_platform() -> None:
    assert hash_id("") == 3244421341483603138
    assert hash_id("jazz-blue-042") == -7178648126831544657


def test_nulls_become_padding_and_chunks_do_not_matter() -> None:
    chunked = pa.chunked_array([["a", None], ["a", "b"]])
    assert hash_ids(chunked).tolist() == [hash_id("a"), PADDING_KEY, hash_id("a"), hash_id("b")]


def test_a_secret_makes_other_keys_and_the_same_ones_again() -> None:
    ids = [f"id-{number}" for number in range(500)]
    one, two = "0a" * 16, "0b" * 16
    keys = {secret: hash_ids(pa.array(ids), secret).tolist() for secret in ("", one, two)}
    assert keys[one] == [hash_id(raw, one) for raw in ids]
    assert len({key for found in keys.values() for key in found}) == 1500
    # RFC 7693: the keyed BLAKE2b of 8 bytes, little-endian.
    expected = int.from_bytes(blake2b(b"id-0", digest_size=8, key=bytes.fromhex(one)).digest(), "little", signed=True)
    assert keys[one][0] == expected


@given(st.lists(st.integers(-5, 5), max_size=12))
def test_each_number_is_there_once_in_ascending_order(values: list[int]) -> None:
    given_ones = np.array(values, np.int64)
    assert ascending(given_ones).tolist() == sorted(set(values))
    assert given_ones.tolist() == values


@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(0, 4))
def test_rows_are_those_of_a_dictionary_and_no_version_changes(seed: int, count: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    layers = Layers.of(rng.normal(size=(count, 3)))
    wanted = dict(enumerate(layers.base))
    versions = [(layers, wanted, count)]
    for _ in range(changes):
        layers, wanted, size = versions[-1]
        live = rng.permutation(sorted(wanted))
        gone, moved = np.split(live, [len(live) // 3])
        rows = np.concatenate([moved[: len(moved) // 2], size + np.arange(rng.integers(0, 3))]).astype(np.int64)
        values = rng.normal(size=(len(rows), 3))
        kept = {row: value for row, value in wanted.items() if row not in gone}
        later = layers.replaced(rows, values, gone.astype(np.int64))
        size = max(size, int(rows.max(initial=-1)) + 1)
        versions.append((later, kept | dict(zip(rows.tolist(), values, strict=True)), size))
    for layers, wanted, size in versions:
        rows = np.array(sorted(wanted), np.int64)
        assert len(layers) == size
        np.testing.assert_array_equal(layers[rows], np.array([wanted[row] for row in rows]).reshape(-1, 3))
        np.testing.assert_array_equal(layers[np.stack([rows, rows[::-1]])][1], layers[rows[::-1]])
        np.testing.assert_array_equal(layers.merged(0.0)[rows], layers[rows])
        assert not layers.merged(0.0)[np.setdiff1d(np.arange(size), rows)].any()
        with patch("weir.contracts.base.arrays._BLOCK", 2):
            pieces = [np.empty((0, 3)), *layers.pieces(0.0)]
        np.testing.assert_array_equal(np.concatenate(pieces), layers.merged(0.0))
        for row in rows:
            np.testing.assert_array_equal(layers[row], wanted[row])


keys = st.lists(st.integers(-5, 20), unique=True, max_size=8)


@given(st.lists(st.tuples(keys, keys), max_size=5))
def test_it_holds_what_a_dictionary_holds_and_no_version_changes(changes: list[tuple[list[int], list[int]]]) -> None:
    overlay, wanted = Overlay.empty(np.empty((0, 2))), dict[int, tuple[float, float]]()
    versions = [(overlay, wanted)]
    for number, (came, gone) in enumerate(changes):
        values = np.array([[key, number] for key in came], np.float64).reshape(-1, 2)
        overlay = overlay.without(np.array(gone, np.int64)).replaced(np.array(came, np.int64), values)
        wanted = {key: value for key, value in wanted.items() if key not in gone}
        wanted |= {key: (float(key), float(number)) for key in came}
        versions.append((overlay, wanted))
    for overlay, wanted in versions:
        assert overlay.keys.tolist() == sorted(wanted)
        assert [tuple(value) for value in overlay.values.tolist()] == [wanted[key] for key in sorted(wanted)]
        asked = np.arange(-6, 22).reshape(4, 7)
        places, here = overlay.find(asked)
        assert here.tolist() == [[key in wanted for key in some] for some in asked.tolist()]
        assert overlay.keys[places[here]].tolist() == asked[here].tolist()


def is_mapped(array: np.ndarray) -> bool:
    return isinstance(array.base, np.memmap)


@given(arrays(st.sampled_from([np.int32, np.float64]), array_shapes(min_dims=1, max_dims=2, min_side=0)))
def test_a_mapped_array_is_the_same_and_may_be_changed(array: np.ndarray) -> None:
    for given_ in (array, array[::2]):
        found = in_scratch(given_)
        assert found.dtype == given_.dtype
        assert np.array_equal(found, given_, equal_nan=found.dtype.kind == "f")
        assert is_mapped(found) == bool(given_.size)
        found[:] = 1
        assert (found == 1).all()


@pytest.mark.parametrize("count", [0, 1, 1 << 16, 200_000])
def test_zeros_may_be_changed_and_leave_no_file(tmp_path: Path, count: int) -> None:
    with patch.object(tempfile, "tempdir", str(tmp_path)):
        found = zeros_in_scratch(count, np.int64)
    assert (found.shape, found.dtype, found.any()) == ((count,), np.int64, False)
    assert is_mapped(found) == bool(count)
    found[-1:] = 7
    assert found.sum() == (7 if count else 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("made", [lambda: zeros_in_scratch(1 << 17, np.int64), lambda: in_scratch(np.ones(3))])
def test_a_full_disk_is_named_before_anything_is_mapped(made: Callable[[], object]) -> None:
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - closed by what writes
    named = pytest.raises(OSError, match=r"No space left on device: .*TMPDIR names another")
    with patch.object(tempfile, "TemporaryFile", return_value=full), named:
        made()


def test_an_error_of_the_disk_names_it() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=rf"No space left on device: '{tempfile.gettempdir()}, where .*TMPDIR"):  # noqa: SIM117
        with naming_the_disk():
            raise full


some_texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=20)


@given(some_texts, st.data())
def test_it_is_read_as_an_array_of_strings_is(texts: list[str], data: st.DataObject) -> None:
    array = np.array(texts, object)
    column = pickle.loads(pickle.dumps(Texts.of(array)))  # noqa: S301 - it was written here
    rows = np.array(data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=12)), np.int64)
    assert len(column) == len(texts)
    assert column.shape == array.shape
    assert column.dtype == array.dtype
    assert column[rows].tolist() == array[rows].tolist()
    assert column[rows].dtype == object
    pairs = np.stack([rows, rows])
    assert column[pairs].tolist() == array[pairs].tolist()
    assert column[1 : len(texts)].tolist() == texts[1:]
    assert column[len(texts) - 1] == texts[-1]
    assert np.asarray(column).tolist() == texts


def test_an_empty_column_has_nothing() -> None:
    column = Texts.of(np.array([], object))
    assert len(column) == 0
    assert column[np.array([], np.int64)].tolist() == []


@given(st.lists(some_texts, max_size=4), st.integers(0, 3))
def test_pieces_are_joined_in_their_order(pieces: list[list[str]], passed: int) -> None:
    """Pieces of arrays of either kind, which need not begin where their array does."""
    kinds = (pa.string(), pa.large_string())
    arrays = [pa.array(["left out"] * passed + one, kinds[n % 2])[passed:] for n, one in enumerate(pieces)]
    every = [text for one in pieces for text in one]
    for join in (Texts.joined, Texts.spooled):
        assert np.asarray(join(iter(arrays), len(every))).tolist() == every


@given(some_texts, st.data())
def test_between_rows_that_strings_are_spread_to_others_are_empty(texts: list[str], data: st.DataObject) -> None:
    count = len(texts) + data.draw(st.integers(0, 5))
    rows = np.array(sorted(data.draw(st.permutations(range(count)))[: len(texts)]), np.int32)
    wanted = [""] * count
    for row, text in zip(rows.tolist(), texts, strict=True):
        wanted[row] = text
    found = Texts.of(np.array(texts, object)).spread(rows, count)
    assert np.asarray(found).tolist() == wanted
    assert found[rows].tolist() == texts


def test_rows_lie_on_it_as_on_an_array() -> None:
    array = np.array([f"item-{number}" for number in range(6)], object)
    late = (np.array([1, 6]), np.array(["new-1", "new-6"], object), np.array([3]))
    its = Layers.of(array)
    mine = Layers(cast("Any", Texts.of(array)), its.over, its.gone, its.count).replaced(*late)
    its = its.replaced(*late)
    rows = np.array([0, 1, 2, 4, 6])
    assert mine[rows].tolist() == its[rows].tolist()
    assert mine.merged("").tolist() == its.merged("").tolist()
