from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from contracts import BundleLog, BundleManifest, CorruptArtefactError, IndexInfo, Store


@pytest.fixture
def log(tmp_path: Path) -> BundleLog:
    return BundleLog(Store(str(tmp_path)))


def write(log: BundleLog, version: str, **changes: Any) -> BundleManifest:
    fields: dict[str, Any] = {
        "version": version,
        "created_at": 1.8e9,
        "trained_sequence": 3,
        "trained_window": "w",
        "max_event_ms": 5,
        "items": 1,
        "dimension": 2,
        "metric": "cosine",
        "history_length": 4,
        "index": IndexInfo(type="Flat"),
        "promoted": True,
        "verdict": "first bundle",
        "software_version": "0.1.0",
        "files": (log.store.write(f"bundles/{version}/index.faiss", b"index"),),
    }
    manifest = BundleManifest(**fields | changes)
    log.commit(manifest)
    return manifest


def test_a_promoted_bundle_is_current(log: BundleLog) -> None:
    assert log.current() is None
    manifest = write(log, "0001")
    log.promote("0001")
    assert log.current() == "0001"
    assert log.manifest("0001") == manifest
    assert log.read(manifest, "index.faiss") == b"index"


def test_only_what_exists_is_promoted(log: BundleLog) -> None:
    with pytest.raises(FileNotFoundError):
        log.promote("0009")
    assert log.current() is None


def test_the_last_ones_and_the_promoted_one_are_kept(log: BundleLog) -> None:
    for version in ["0001", "0002", "0003", "0004", "0005"]:
        write(log, version)
    log.promote("0001")
    assert log.retire(keep=2) == ["0002", "0003"]
    assert log.versions() == ["0001", "0004", "0005"]
    assert not log.store.exists("bundles/0002")


def test_an_altered_file_is_named(log: BundleLog, tmp_path: Path) -> None:
    manifest = write(log, "0001")
    (tmp_path / "bundles/0001/index.faiss").write_bytes(b"iNdex")
    with pytest.raises(CorruptArtefactError, match=r"0001/index\.faiss: has checksum"):
        log.read(manifest, "index.faiss")
    with pytest.raises(CorruptArtefactError, match=r"does not list tower\.onnx"):
        log.read(manifest, "tower.onnx")


def test_a_version_cannot_leave_its_folder(log: BundleLog) -> None:
    with pytest.raises(ValidationError, match="version"):
        write(log, "../0001")
