from pathlib import Path

import pytest

from weir.contracts.storage.local_files import create_local, is_draft, new_draft, synced, write_local


def test_a_draft_is_hidden_beside_its_target_and_others_may_read_it(tmp_path: Path) -> None:
    target = tmp_path / "folder/file.bin"
    drafts = [new_draft(target), new_draft(target)]
    assert {draft.parent for draft in drafts} == {target.parent}
    assert len({draft.name for draft in drafts}) == 2
    assert all(draft.name.startswith(".file.bin.") and draft.stat().st_mode & 0o777 == 0o644 for draft in drafts)
    assert all(is_draft(str(draft)) for draft in drafts)
    assert not any(is_draft(f"folder/{name}") for name in ("vectors.npy", ".hidden", "a.tmp", ".tmp/vectors.npy"))


def test_a_draft_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        synced(tmp_path / "file.bin", lambda file: file.write(b"half") and 1 / 0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_when_written_and_kept_when_created(tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    assert create_local(target, b"first")
    assert not create_local(target, b"second")
    assert target.read_bytes() == b"first"
    write_local(target, b"third")
    assert target.read_bytes() == b"third"
    assert list(tmp_path.iterdir()) == [target]
