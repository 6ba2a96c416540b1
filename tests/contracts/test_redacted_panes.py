import time
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.panes import a_pane, retire_before
from weir.contracts import CommitLog, CorruptArtefactError, HistoryFile, LetterFile, LogState, Store, WindowLog
from weir.contracts.commit import KNOWN
from weir.contracts.commits import Cursor
from weir.contracts.redaction import REDACTION, RedactedPane, RewrittenLetters
from weir.contracts.source_span import SourceSpan
from weir.contracts.verification import verify

FILE: Any = {"size": 3, "checksum": "0" * 32}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def log(store: Store) -> WindowLog:
    log = WindowLog(store)
    for sequence in range(4):
        log.commit(a_pane(sequence))
    return log


def redact(store: Store, *sequences: int, attempt: str = "new", **fields: Any) -> int:
    """Commit other files for some panes; return the number of the commit."""
    panes = WindowLog(store).committed()
    redacted = tuple(
        RedactedPane(pane=panes[at].model_copy(update={"attempt": attempt}), replaces=panes[at].folder)
        for at in sequences
    )
    changes = {"forgets": 1, "redacts": redacted, "requires": (REDACTION,)} | fields
    return WindowLog(store).commit(**changes).number


def attempts(panes: Any) -> list[str]:
    return [pane.attempt for pane in panes]


def test_whoever_starts_later_reads_other_files(store: Store, log: WindowLog) -> None:
    redact(store, 1, 3)
    expected = ["a0", "new", "a2", "new"]
    assert attempts(WindowLog(store)) == expected
    assert attempts(WindowLog(store).follow(after=2)) == ["new"]
    assert attempts(WindowLog(store).newest(2)) == ["a2", "new"]
    redact(store, 3, attempt="newer")
    assert attempts(WindowLog(store)) == ["a0", "new", "a2", "newer"]
    assert [pane.sequence for pane in WindowLog(store)] == [0, 1, 2, 3]


def test_a_follower_at_the_end_sees_no_pane_twice(store: Store, log: WindowLog) -> None:
    assert attempts(log.follow()) == ["a0", "a1", "a2", "a3"]
    redact(store, 2)
    assert log.next(3) == ()
    log.commit(a_pane(4))
    assert attempts(log.next(3)) == ["a4"]
    # What it has passed it knows, too.
    assert attempts(log.next(1)) == ["new"]


def test_a_follower_that_goes_back_knows_redactions_that_it_has_not_passed(store: Store, log: WindowLog) -> None:
    redact(store, 1)
    log.commit(a_pane(4))
    follower = WindowLog(store)
    assert attempts(follower.follow(after=3)) == ["a4"]
    redact(store, 2, attempt="newer")
    assert follower.next(4) == ()
    log.commit(a_pane(5))
    assert attempts(follower.follow(after=4)) == ["a5"]
    assert attempts(follower.follow()) == ["a0", "new", "newer", "a3", "a4", "a5"]


def test_a_follower_far_behind_looks_now_and_then(
    store: Store, log: WindowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attempts(log.next(-1)) == ["a0"]
    redact(store, 1, 2)
    assert attempts(log.next(0)) == ["a1"]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 601)
    assert attempts(log.next(1)) == ["new"]


def test_a_damaged_newest_commit_is_told_when_its_turn_comes(store: Store, log: WindowLog) -> None:
    number = redact(store, 1)
    log.commit(a_pane(4))
    store.write(CommitLog.name(number + 1), b"nonsense")
    panes = WindowLog(store).follow()
    assert [next(panes).sequence for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(CorruptArtefactError, match=rf"{number + 1:010d}\.json"):
        next(panes)


def test_all_later_commits_require_it(store: Store, log: WindowLog) -> None:
    assert REDACTION in KNOWN
    number = redact(store, 1)
    later = log.commit(a_pane(4))
    assert (later.redaction, later.newest_redaction, later.requires) == (number, number, (REDACTION,))
    assert CommitLog(store).get(number).redaction == -1
    assert CommitLog(store).get(number).newest_redaction == number
    assert log.commit(a_pane(5), requires=("histories",)).requires == ("histories", REDACTION)


def test_the_state_says_what_waits_for_its_removal(store: Store, log: WindowLog) -> None:
    kept, other = "dead-letters/p/0-a-run.jsonl", "dead-letters/p/9-b-run.jsonl"
    span = SourceSpan(start=0, stop=9, resume=0, size=9, dead=2, letters={kept: 3, other: 5},
                      letter_checksums={kept: "k", other: "o"})  # fmt: skip
    letters = tuple(LetterFile(**FILE, name=name, rows=1, partition="p", reasons={"r": 1}) for name in (kept, other))
    log.commit(sources={"p": span}, letters=letters)
    new = RewrittenLetters(**FILE, name="dead-letters/p/0-c-run.jsonl", rows=1, partition="p", reasons={"r": 1},
                           replaces=kept)  # fmt: skip
    number = redact(store, 1, rewritten=(new,))
    folder = a_pane(1).folder
    state = LogState.open(store)
    assert (state.redaction, state.redacted) == (number, {1: number})
    assert state.erasing.keys() == {folder, kept}
    assert state.dead == 2
    assert state.sources["p"].letters == {new.name: 3, other: 5}
    assert state.sources["p"].letter_checksums == {new.name: FILE["checksum"], other: "o"}
    log.commit(dropped=(folder,))
    assert LogState.open(store).erasing.keys() == {kept}
    retire_before(store, 3, 30)
    assert LogState.open(store).redacted == {}
    assert attempts(WindowLog(store)) == ["a3"]


def test_a_file_of_users_may_go_without_another_in_its_place(store: Store) -> None:
    files = [HistoryFile(**FILE, name=f"histories/0/{name}", rows=1, shard=0, length=1) for name in "abc"]
    WindowLog(store).commit(histories=tuple(files), requires=("histories",))
    WindowLog(store).commit(forgets=1, removed=(files[1].name,), requires=(REDACTION,))
    state = LogState.open(store)
    assert [file.name for file in state.histories.shards[0]] == [files[0].name, files[2].name]
    assert state.histories.replaced.keys() == {files[1].name}
    WindowLog(store).commit(forgets=1, removed=(files[0].name, files[2].name), requires=(REDACTION,))
    assert LogState.open(store).histories.shards == {}


def test_replaced_files_may_be_there_or_not(store: Store) -> None:
    log, old, new = WindowLog(store), a_pane(0), a_pane(0, attempt="new")
    entry = store.write(f"{old.folder}/items.parquet", b"old")
    other = store.write(f"{new.folder}/items.parquet", b"new")
    log.commit(old.model_copy(update={"files": (entry,)}))
    redacted = RedactedPane(pane=new.model_copy(update={"files": (other,)}), replaces=old.folder)
    log.commit(forgets=1, redacts=(redacted,), requires=(REDACTION,))
    assert verify(store).findings == []
    store.write(f"{old.folder}/items.parquet", b"odd")
    assert [finding.kind for finding in verify(store).findings] == ["damaged"]
    store.remove(old.folder)
    assert verify(store).findings == []
    store.remove(new.folder)
    assert [(finding.kind, finding.name) for finding in verify(store).findings] == [
        ("missing", f"{new.folder}/items.parquet")
    ]


def test_an_older_version_stops(store: Store, log: WindowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    number = redact(store, 1)
    monkeypatch.setattr("weir.contracts.commits.KNOWN", KNOWN - {REDACTION})
    commits = CommitLog(store)
    with pytest.raises(CorruptArtefactError, match="needs redaction, unknown to this version"):
        commits.next(commits.at(number))
    assert commits.next(Cursor()) is not None
