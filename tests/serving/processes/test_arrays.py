import contextlib
import gc
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.serving.processes.arrays import MappedArrays, Package, SharedArrays, StoredFile

LARGE = 20_000
"""Numbers of 8 bytes that get a file of their own."""


def inodes(package: Package) -> set[int]:
    return {os.fstat(file.descriptor).st_ino for file in (package.pickle, *package.files)}


def open_inodes() -> set[int]:
    """The files in memory that this process has open or mapped; other threads may open and close files meanwhile."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(link.readlink()).startswith("/memfd:"):
                found.add(link.stat().st_ino)
    return found


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["f4", "i8", "u1", "?"]),
    st.lists(st.integers(0, 200), min_size=1, max_size=3),
    st.booleans(),
)
def test_a_thing_comes_back_as_it_was(kind: str, shape: list[int], columns_first: bool) -> None:
    random = np.random.default_rng(0)
    array = (200 * random.standard_normal(shape)).astype(kind)
    if columns_first:
        array = np.asfortranarray(array)
    thing = {"array": array, "part": array[::2], "text": "x", "objects": np.array(["a", "b"], object)}
    found = MappedArrays().open(SharedArrays().package(thing))
    assert found["text"] == "x"
    assert found["objects"].tolist() == ["a", "b"]
    for name in ("array", "part"):
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], thing[name])


def test_nothing_large_is_in_the_pickle_and_nothing_mapped_can_be_written_to() -> None:
    shared = SharedArrays()
    package = shared.package([np.arange(LARGE), np.arange(3)])
    assert package.pickle.shape[0] < 1000
    large, _ = MappedArrays().open(package)
    with pytest.raises(ValueError, match="read-only"):
        large[0] = 1


def test_one_array_at_two_places_is_one_array() -> None:
    array = np.arange(LARGE)
    one, other = MappedArrays().open(SharedArrays().package([array, array]))
    assert one is other


def test_what_versions_share_is_written_once_and_stays_the_same_object() -> None:
    shared, reader = SharedArrays(), MappedArrays()
    first = shared.package({"base": np.arange(LARGE), "late": np.zeros(LARGE)})
    mine, its = shared.mapped.open(first), reader.open(first)
    second = shared.package({"base": mine["base"], "late": np.ones(LARGE)})
    after = reader.open(second)
    assert after["base"] is its["base"]
    assert after["late"].sum() == LARGE
    assert its["late"].sum() == 0  # who has the version before can read it on
    assert len({file.number for file in first.files} & {file.number for file in second.files}) == 1


def test_files_that_no_version_needs_are_closed() -> None:
    shared, reader = SharedArrays(), MappedArrays()
    before: set[int] = set()
    for number in range(4):
        stored = shared.store(lambda path: Path(path).write_text("x"))
        package = shared.package([np.full(LARGE, number), stored])
        reader.open(package)
        gc.collect()
        assert inodes(package) <= open_inodes()
        assert not before & open_inodes()
        before |= inodes(package)


def test_a_stored_file_is_found_by_its_reader() -> None:
    shared = SharedArrays()
    package = shared.package({"index": shared.store(lambda path: Path(path).write_text("lists"))})
    found = MappedArrays().open(package)["index"]
    assert isinstance(found, StoredFile)
    assert Path(found.path).read_text() == "lists"


def test_a_package_that_cannot_be_made_leaves_the_one_before_readable() -> None:
    shared = SharedArrays()
    package = shared.package(np.arange(LARGE))
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        shared.package([np.ones(LARGE), lambda: None])
    np.testing.assert_array_equal(MappedArrays().open(package), np.arange(LARGE))
