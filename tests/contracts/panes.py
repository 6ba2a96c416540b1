"""Panes without files, and commits of them, for tests of what lists them."""

import threading
from typing import Any

from weir.contracts import (
    Commit,
    CommitLog,
    CommitTakenError,
    LogState,
    Retirement,
    Store,
    WindowCounts,
    WindowLog,
    WindowManifest,
)
from weir.contracts.commits.commit_log import Cursor


def a_pane(sequence: int, **changes: Any) -> WindowManifest:
    fields: dict[str, Any] = {
        "sequence": sequence,
        "start_ms": 10 * sequence,
        "end_ms": 10 * sequence + 10,
        "pane": 0,
        "attempt": f"a{sequence}",
        "min_event_ms": 10 * sequence,
        "max_event_ms": 10 * sequence + 9,
        "committed_at": 1.0,
        "counts": WindowCounts(events=2, positives=2),
        "history_length": 2,
        "sketch": {"kind": "exact"},
        "files": (),
    }
    return WindowManifest(**fields | changes)


def a_commit(at: Cursor, writer: str = "me", panes: int = 1) -> Commit:
    return Commit(
        number=at.number,
        writer=writer,
        predecessor=at.checksum,
        committed_at=1.0,
        sequence=at.sequence,
        panes=tuple(a_pane(at.sequence + place) for place in range(panes)),
    )


def retire_before(store: Store, number: int, ms: int) -> Retirement:
    """Retire the commits before a number and all events before a time, and remove these commits."""
    log = CommitLog(store)
    first = log.at(number)
    retired = Retirement(ms=ms, number=number, sequence=first.sequence, checksum=first.checksum)
    WindowLog(store).commit(retires=retired, requires=("retention",))
    LogState.open(store).save(log)
    for gone in range(number):
        store.remove(CommitLog.name(gone))
    return retired


def race(url: str, writers: int, commits: int) -> list[tuple[int, str]]:
    """Let writers make so many commits together; return (number, who was told that it made it)."""
    made: list[tuple[int, str]] = []

    def write(name: str) -> None:
        log, at = CommitLog(Store(url)), Cursor()
        while at.number < commits:
            try:
                at = log.append(a_commit(at, name))
                made.append((at.number - 1, name))
            except CommitTakenError:
                step = log.next(at)
                assert step is not None
                at = step[1]

    threads = [threading.Thread(target=write, args=(f"w{number}",)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made
