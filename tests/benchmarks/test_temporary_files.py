"""What is in temporary files: open, mapped, with a name or without, each file once."""

import mmap
import tempfile
from pathlib import Path

import pytest

from benchmarks.temporary_files import PeakFiles, bytes_in_files

PAGE = mmap.PAGESIZE


def test_files_count_however_the_process_has_them(tmp_path: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    store.mkdir()
    (store / "bundle").write_bytes(b"x" * PAGE)
    other.write_bytes(b"x" * 3 * PAGE)

    def found() -> int:
        return bytes_in_files(str(tmp_path), str(store))

    assert found() == 0
    with (store / "bundle").open("rb"), other.open("rb") as named:
        assert found() == 3 * PAGE
        with mmap.mmap(named.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert found() == 3 * PAGE
            named.close()
            other.unlink()
            assert found() == 3 * PAGE
            assert mapped[0] == ord("x")
        with tempfile.TemporaryFile(dir=tmp_path) as nameless:
            nameless.truncate(5)
            assert found() == 5
    assert found() == 0


def test_the_most_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with PeakFiles(str(tmp_path / "store")) as peak:
        with tempfile.TemporaryFile() as nameless:
            nameless.truncate(1000)
            while not peak.most:
                pass
        assert peak.most == 1000
    assert peak.most == 1000
