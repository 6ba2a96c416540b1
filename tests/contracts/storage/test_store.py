import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weir.contracts import CorruptArtefactError, FileEntry, Store, checksum

URLS = ["local", "memory"]


@pytest.fixture(params=URLS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(data=st.binary(max_size=200))
def test_what_is_written_is_read(store: Store, data: bytes) -> None:
    entry = store.write("folder/file.bin", data, rows=3)
    assert entry == FileEntry(name="file.bin", size=len(data), checksum=checksum(data), rows=3)
    assert store.read("folder/file.bin") == data == store.read_verified("folder", entry)
    with store.local("folder", entry) as path:
        assert path.read_bytes() == data
    assert path.exists() == (store.local_path is not None)


def test_names_are_found_and_removed(store: Store) -> None:
    for name in ["a/2/M", "a/1/M", "a/1/other", "b/1/M"]:
        store.write(name, b"")
    assert store.glob("a/*/M") == ["a/1/M", "a/2/M"]
    store.remove("a/1")
    store.remove("never/there")
    assert store.glob("*/*/M") == ["a/2/M", "b/1/M"]
    assert not store.exists("a/1/other")


def test_a_store_travels_to_workers(store: Store) -> None:
    store.write("x", b"1")
    assert pickle.loads(pickle.dumps(store)).read("x") == b"1"  # noqa: S301


@pytest.mark.parametrize(
    ("damage", "problem"),
    [(b"0123", "has 4 bytes, the manifest says 5"), (b"01230", "has checksum"), (None, "it is missing")],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: bytes | None, problem: str) -> None:
    store = Store(str(tmp_path))
    entry = store.write("folder/file.bin", b"01234")
    (tmp_path / "folder/file.bin").unlink()
    if damage is not None:
        (tmp_path / "folder/file.bin").write_bytes(damage)
    with pytest.raises(CorruptArtefactError, match=problem), store.local("folder", entry):
        pass
    with pytest.raises(CorruptArtefactError, match=problem) as caught:
        store.read_verified("folder", entry)
    assert str(tmp_path / "folder/file.bin") in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    store.write("file", b"old")

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        store.write("file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert store.read("file") == b"old"


def test_a_reader_sees_a_file_whole_although_the_writer_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys; from weir.contracts import Store\n"
        "store, n = Store(sys.argv[1]), 0\n"
        "while True: n += 1; store.write('file', bytes([n % 256]) * 200_000)\n"
    )
    store = Store(str(tmp_path))
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
        while not store.exists("file"):
            time.sleep(0.01)
        for _ in range(50):
            data = store.read("file")
            assert len(data) == 200_000
            assert len(set(data)) == 1
        writer.send_signal(signal.SIGKILL)
        writer.wait()


def test_a_file_tells_when_it_was_written(tmp_path: Path) -> None:
    for store in (Store(str(tmp_path)), Store(f"memory://{tmp_path}")):
        before = time.time()
        store.write("folder/file", b"new")
        assert before - 2 < store.modified("folder/file") < time.time() + 2
        with pytest.raises(FileNotFoundError):
            store.modified("folder/none")
