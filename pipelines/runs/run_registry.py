"""Run registry: marks of unfinished runs, locks of the store, and commits without a run.

``state/runs/<run>/`` holds the mark, the pending rows and the outcome of a run. Uncommitted files in ``windows/``,
``dead-letters/`` and ``histories/`` belong to a run or merge whose mark still exists; so do their drafts, whose names
start with the file names.
"""

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from typing import Final

from weir.contracts import (
    Commit,
    CommitLog,
    CorruptArtefactError,
    Document,
    LogState,
    RetiredError,
    Store,
    check_fitness,
)
from weir.contracts.commits.commit import requirements
from weir.contracts.storage.documents import read_document, write_document
from weir.contracts.storage.local_files import is_draft
from weir.contracts.storage.locks import BusyStoreError, locked
from weir.pipelines.runs.run import Run

__all__ = [
    "GRACE_SECONDS",
    "BusyStoreError",
    "append",
    "check_writable",
    "discard",
    "forget",
    "is_marked",
    "is_redacting",
    "mark",
    "new_run",
    "only_driver",
    "only_redaction",
    "only_writer",
    "registered",
    "remove_drafts",
    "started_at",
    "sweep",
    "sweep_redactions",
    "unmark",
]

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 3600.0
"""Age (s) from which the files of an unfinished run are removed; longer than any run."""

_MARK: Final = "started.json"
_REDACTION: Final = "state/redaction.lock"


@contextlib.contextmanager
def _only(store: Store, lock: str, holder: str, advice: str) -> Iterator[None]:
    """Hold a lock of the store; raises `BusyStoreError` with its holder and what to do."""
    with locked(store, lock) as path:
        if path is not None:
            raise BusyStoreError(f"{holder} ({path} is locked): {advice}")
        yield


@contextlib.contextmanager
def only_writer(store: Store) -> Iterator[None]:
    """Lock the store for this process; the operating system releases the lock when the process ends.

    Object stores have no such lock: the slower of two pipelines finds its commit number taken and reads again. Raises
    `BusyStoreError`.
    """
    with _only(
        store, "state/ingest.lock", "another pipeline writes to this store", "end it first, or use another store"
    ):
        yield


@contextlib.contextmanager
def only_driver(store: Store) -> Iterator[None]:
    """Lock the store against other drivers, for a run or a stream; raises `BusyStoreError`.

    The workers of a stream take `only_writer` in turn, for one commit each. Object stores have no such lock.
    """
    with _only(store, "state/driver.lock", "another pipeline drives this store", "end it first, or use another store"):
        yield


@contextlib.contextmanager
def only_redaction(store: Store) -> Iterator[None]:
    """Lock the store against other redactions; raises `BusyStoreError`."""
    with _only(store, _REDACTION, "another `weir forget` is at work on this store", "wait for its end"):
        yield


def is_redacting(store: Store) -> bool:
    """Return whether a process on this machine is redacting the store; always False for object stores."""
    with locked(store, _REDACTION) as path:
        return path is not None


def check_writable(store: Store) -> None:
    """Refuse an object store on which commits are not safe; raises `UnfitStoreError`.

    Local disks need no check: a hard link either is exclusive or fails.
    """
    if store.local_path is None:
        check_fitness(store)


class _Mark(Document):
    """The mark of an unfinished run, merge or redaction in the store.

    `number` is the commit number that a run tries to take; -1 for a merge or redaction, which takes the next free one.
    `redacts` marks a redaction, which works beside the pipeline in a process of its own.
    """

    run: str
    number: int = -1
    redacts: bool = False


@contextlib.contextmanager
def registered(store: Store, run: Run) -> Iterator[None]:
    """Mark a run in the store while the block runs; if the block fails or is killed, the mark stays for `sweep`."""
    write_document(store, f"{run.folder}/{_MARK}", _Mark(run=run.id, number=run.base.cursor.number))
    yield
    store.remove(f"{run.folder}/{_MARK}")


def mark(store: Store, run: str, *, redacts: bool = False) -> None:
    """Mark a merge or redaction before it writes files; call `unmark` after its commit, or `forget` without one."""
    write_document(store, f"state/runs/{run}/{_MARK}", _Mark(run=run, redacts=redacts))


def is_marked(store: Store, run: str) -> bool:
    """Return whether the mark of a run id exists; false after `sweep` has taken slow work for killed."""
    return store.exists(f"state/runs/{run}/{_MARK}")


def unmark(store: Store, run: str) -> None:
    """Remove the mark of a run id, and leave its other files."""
    store.remove(f"state/runs/{run}")


def forget(store: Store, run: str) -> None:
    """Remove the uncommitted files and the mark of a run id, as `discard` does for a `Run`."""
    _remove_files(store, run)
    store.remove(f"state/runs/{run}")


def new_run() -> str:
    """Return a run id that starts with the time, so that ids sort by age."""
    return f"{int(1000 * time.time()):012x}{secrets.token_hex(4)}"


def discard(store: Store, run: Run) -> None:
    """Remove the mark and all files of a run that has made no commit."""
    _remove_files(store, run.id)
    store.remove(run.folder)


def sweep(store: Store, grace_seconds: float = GRACE_SECONDS, *, by_age: bool = False) -> list[str]:
    """Remove the uncommitted files of killed runs; return the ids of the runs that had a mark.

    Committed files stay, even if the run was killed right after its commit. On local disk the caller holds the store
    lock, so every unfinished run counts as killed. On an object store, or with `by_age` (for a caller that may have a
    merge running), a run counts as killed `grace_seconds` after its start. A redaction that holds its lock stays.
    """
    removed = []
    for run, killed in _killed(store, grace_seconds, by_age=by_age):
        if killed is None:
            # The run was completed; its pending rows are useless without its process.
            store.remove(f"state/runs/{run}")
        elif not killed.redacts or not is_redacting(store):
            removed.append(_end(store, killed))
    if removed:
        # Listing the whole store is slow: do it only after a kill.
        remove_drafts(store, grace_seconds)
    return removed


def sweep_redactions(store: Store) -> list[str]:
    """Remove the uncommitted files of killed redactions; return their run ids. The caller holds `only_redaction`."""
    marks = [found for _, found in _killed(store, GRACE_SECONDS) if found is not None]
    return [_end(store, killed) for killed in marks if killed.redacts]


def _killed(store: Store, grace_seconds: float, *, by_age: bool = False) -> Iterator[tuple[str, _Mark | None]]:
    """Yield (run id, its mark) of runs that count as killed; the mark is None for a completed run."""
    grace = grace_seconds if by_age or store.local_path is None else 0.0
    for run in sorted({name.split("/")[2] for name in store.glob("state/runs/*/*")}):
        if time.time() - started_at(run) < grace:
            continue
        try:
            yield run, read_document(store, f"state/runs/{run}/{_MARK}", _Mark)
        except FileNotFoundError:
            yield run, None
        except CorruptArtefactError as error:
            logger.warning("%s; files of this run are left where they are", error)


def _end(store: Store, killed: _Mark) -> str:
    """Remove the mark of a killed run, and its files unless they are committed; return the run id."""
    if not (_has_redacted(store, killed.run) if killed.redacts else _is_committed(store, killed)):
        _remove_files(store, killed.run)
    store.remove(f"state/runs/{killed.run}")
    return killed.run


def remove_drafts(store: Store, grace_seconds: float = GRACE_SECONDS) -> None:
    """Remove drafts, the half-written files of killed writers, that are older than this; object stores have none."""
    if store.local_path is None:
        return
    for name, stat in store.find().items():
        if is_draft(name) and stat.written is not None and time.time() - stat.written >= grace_seconds:
            store.remove(name)


def started_at(run: str) -> float:
    """Return the start of a run from its id, seconds since 1970; 0 for a foreign id."""
    try:
        return int(run[:12], 16) / 1000
    except ValueError:
        return 0.0


def _is_committed(store: Store, killed: _Mark) -> bool:
    """Return whether the commit number that a run tried to take holds a commit of this run."""
    log = CommitLog(store)
    try:
        return 0 <= killed.number <= log.newest() and log.get(killed.number).writer == killed.run
    except RetiredError:
        # Its commit has retired or was another writer's: either way its files are useless.
        return False


def _has_redacted(store: Store, run: str) -> bool:
    """Return whether a redaction of this run id has a commit that has not retired."""
    log, state = CommitLog(store), LogState.open(store)
    number, first = state.redaction, state.horizon.number if state.horizon else 0
    while number >= first and (commit := log.get(number)).writer != run:
        number = commit.redaction
    return number >= first


def _remove_files(store: Store, run: str) -> None:
    """Remove the windows, dead letters and uncommitted user files that a run id has written."""
    names = {name.rpartition("/")[0] for name in store.glob(f"windows/*/{run}*/*")}
    names |= set(store.glob(f"dead-letters/**/*-{run}.jsonl*"))
    if histories := set(store.glob(f"histories/*/*{run}-*")):
        names |= histories - LogState.open(store).histories.names
    for name in sorted(names):
        store.remove(name)
    logger.info("removed %d files and folders of run %s, which has no commit", len(names), run)


def append(log: CommitLog, state: LogState, *requires: str, **fields: object) -> Commit:
    """Append a commit after `state`, bring `state` up to the commit, and return the commit.

    `requires` are the features that its readers need, `fields` further fields of `Commit`.
    Raises `CommitTakenError` if another writer commits first.
    """
    at = state.cursor
    required = {
        "number": at.number,
        "writer": new_run(),
        "predecessor": at.checksum,
        "committed_at": time.time(),
        "sequence": at.sequence,
        "redaction": state.redaction,
    }
    requires = requirements(*requires, redaction=state.redaction)
    commit = Commit.model_validate(required | fields | {"requires": requires})
    log.append(commit)
    state.catch_up(log)
    return commit
