"""``weir forget`` and ``weir verify --absent``, as a user types them."""

from pathlib import Path

import pytest

from tests.pipelines import redacting, support
from tests.weir.cli.interactions import refused, told, weir
from weir.contracts import CommitLog, LogState, Store
from weir.pipelines.open_rows import open_files_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    redacting.build(tmp_path, parts=2)
    return tmp_path


def test_it_forgets_and_proves_it(folder: Path) -> None:
    store = ("--store", folder / "store")
    file = folder / "users.txt"
    file.write_text("user-2\r\n\nnobody\n")
    shown = weir("forget", *store, "--user", "user-1", "--users", file)
    assert shown.exit_code == 0, shown.output
    assert "nothing held of nobody" in shown.stdout
    assert "forgot 2 of 3 users by commit 2" in shown.stdout
    assert "they go in 86,400 s, by the pipeline or the next `weir forget`" in shown.stdout
    assert weir("verify", *store).exit_code == 0
    seen = weir("verify", *store, "--absent", "user-1")
    assert seen.exit_code == 1
    assert "waits for its removal (pipeline.erasure_days)" in seen.stdout
    assert "present: windows/" in seen.stdout
    again = told(weir("forget", *store, "--user", "user-1", "--grace", "0s", "--json"))
    assert (again["held"], again["commit"], again["waiting"]) == ([], None, 0)
    assert again["removed"] > 3
    proof = weir("verify", *store, "--absent", "user-1", "--absent", "user-2")
    assert proof.exit_code == 0, proof.output
    assert "no file holds user-1, user-2" in proof.stdout
    other = weir("verify", *store, "--absent", "user-3", "--json")
    assert other.exit_code == 1
    assert '"present"' in other.stdout


def test_nothing_is_held(folder: Path) -> None:
    before = CommitLog(Store(str(folder / "store"))).newest()
    shown = weir("forget", "--store", folder / "store", "--user", "nobody")
    assert (shown.exit_code, shown.stdout) == (0, "nothing held of nobody\n")
    assert CommitLog(Store(str(folder / "store"))).newest() == before


def test_events_of_open_windows_are_told(folder: Path) -> None:
    store = Store(str(folder / "store"))
    redacting.arrive(folder, 2)
    support.run(store, redacting.settings(folder), flush=False, only_whole_lines=True)
    users = redacting.forgotten(folder, ["user-1"])
    assert open_files_of(store, users.keys) != []
    assert open_files_of(store, redacting.forgotten(folder, ["nobody"]).keys) == []
    shown = weir("forget", "--store", folder / "store", "--user", "user-1")
    assert "not forgotten: events in windows that are still open" in shown.stdout
    assert LogState.open(store).redaction >= 0


def test_it_says_what_it_needs(folder: Path, tmp_path: Path) -> None:
    store = ("--store", folder / "store")
    assert "name the users to forget: --user ID" in refused(weir("forget", *store), 2)
    assert "--user is empty" in refused(weir("forget", *store, "--user", ""), 2)
    (tmp_path / "none").write_text("\n")
    assert "name the users to forget" in refused(weir("forget", *store, "--users", tmp_path / "none"), 2)
    (tmp_path / "odd").write_bytes(b"\xff\n")
    assert "is not UTF-8" in refused(weir("forget", *store, "--users", tmp_path / "odd"), 2)
    assert "missing.txt" in refused(weir("forget", *store, "--users", tmp_path / "missing.txt"), 1)
    assert "--grace is 'soon', but must be" in refused(weir("forget", *store, "--user", "a", "--grace", "soon"), 2)
    assert "there is no such store" in refused(weir("forget", "--store", tmp_path / "no", "--user", "a"), 1)
