"""Which files a store should have: those that commits and manifests list, with size and checksum."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from weir.contracts.artefacts import MANIFEST
from weir.contracts.bundle_manifest import COMPACTED, BundleRef
from weir.contracts.checkpoint import CHECKPOINT_MARK as CHECKPOINT
from weir.contracts.checkpoint import CheckpointRef, mark_path
from weir.contracts.commit import Commit
from weir.contracts.commits import CommitLog, Cursor
from weir.contracts.documents import Document, read_document
from weir.contracts.errors import CorruptArtefactError
from weir.contracts.findings import Finding, Kind, fault_of
from weir.contracts.history_files import HistoryFiles
from weir.contracts.horizon import Horizon, RetiredError
from weir.contracts.log_state import LogState
from weir.contracts.storage import FileEntry, FileStat, Store, checksum
from weir.contracts.window import WindowManifest

__all__ = ["expected_files", "histories_of", "retired_files"]


class _Listing(Document):
    """What all manifests have in common, and what a checkpoint continues, or the bundle that one changes."""

    files: tuple[FileEntry, ...]
    parent: CheckpointRef | BundleRef | None = None


def expected_files(
    store: Store, there: dict[str, FileStat], state: HistoryFiles, findings: list[Finding], panes: dict[int, str]
) -> dict[str, FileEntry]:
    """Return the files that commits and manifests list, by name; unreadable commits and manifests are findings.

    `panes` gets the names of the windows in the log, by sequence.
    """
    expected = _committed(store, state, findings, panes)
    for name in there:
        folder, _, last = name.rpartition("/")
        if last in {MANIFEST, CHECKPOINT}:
            try:
                listing = read_document(store, name, _Listing)
            except FileNotFoundError:
                continue  # retired since the listing
            except CorruptArtefactError as error:
                findings.append(Finding(Kind.DAMAGED, name, error.problem))
                continue
            expected |= {f"{folder}/{entry.name}": entry for entry in listing.files}
            if listing.parent is not None:
                findings += _broken(store, name, listing.parent)
    return expected


def _broken(store: Store, name: str, parent: CheckpointRef | BundleRef) -> Iterator[Finding]:
    """Return what is wrong with the checkpoint or bundle that the one of this mark or manifest continues."""
    path = mark_path(parent.name) if isinstance(parent, CheckpointRef) else f"bundles/{parent.version}/{MANIFEST}"
    # The line of a variant is a store within this one.
    path = "/".join([*(name.split("/")[:2] if name.startswith("variants/") else ()), path])
    try:
        found = checksum(store.read(path))
    except FileNotFoundError:
        folder = name.rpartition("/")[0]
        # Else both are retired since the listing, or the bundle has been compacted and needs no parent.
        if store.exists(name) and not store.exists(f"{folder}/{COMPACTED}/{MANIFEST}"):
            yield Finding(Kind.MISSING, path, f"{name} continues it, but it is missing")
        return
    if found != parent.checksum:
        yield Finding(Kind.DAMAGED, path, f"has checksum {found}, {name} continues {parent.checksum}")


def _committed(
    store: Store, state: HistoryFiles, findings: list[Finding], panes: dict[int, str]
) -> dict[str, FileEntry]:
    """Return what commits list; of files that have been replaced those that are still there."""
    found, histories, replaced = dict[str, FileEntry](), dict[str, FileEntry](), set[str]()
    horizon = CommitLog(store).horizon()
    for commit in _commits(store, findings):
        left = _left(horizon, (*commit.panes, *(one.pane for one in commit.redacts)))
        found |= _listed_by(commit, left)
        panes |= {pane.sequence: str(pane.name) for pane in _left(horizon, commit.panes)}
        histories |= {file.name: file for file in commit.histories}
        replaced |= {name for file in commit.histories for name in file.replaces}
        replaced |= {*commit.removed, *commit.replaced_by_redaction}
        for name in commit.dropped:
            histories.pop(name, None)
    # Commits that named a file in use may have retired.
    histories |= {file.name: file for file in state.files}
    # Replaced files go after a time of grace, and only a later commit says so.
    found |= histories
    may_be_gone = [name for name in found if name in replaced or name.rpartition("/")[0] in replaced]
    gone = {name for name in may_be_gone if not store.exists(name)}
    return {name: file for name, file in found.items() if name not in gone}


def retired_files(store: Store, there: dict[str, FileStat], findings: list[Finding]) -> dict[str, FileEntry]:
    """Return the files of retired panes and commits that have not been removed: any of them may be missing."""
    log = CommitLog(store)
    if (horizon := log.horizon()) is None:
        return {}
    found = dict[str, FileEntry]()
    for name in there:
        if not fnmatchcase(name, "commits/" + "[0-9]" * 10 + ".json"):
            continue
        try:
            commit = log.get(int(name[8:18]))
            panes = (*commit.panes, *(one.pane for one in commit.redacts))
            if commit.number < horizon.number:
                found |= _listed_by(commit, panes)
            else:
                gone = [pane for pane in panes if horizon.has_retired(pane.sequence, pane.start_ms)]
                found |= _files_of(gone)
        except CorruptArtefactError as error:
            findings.append(fault_of(store, error))
        except RetiredError:
            pass  # removed since the listing
    return found


def _left(horizon: Horizon | None, panes: Iterable[WindowManifest]) -> list[WindowManifest]:
    return [pane for pane in panes if horizon is None or not horizon.has_retired(pane.sequence, pane.start_ms)]


def _listed_by(commit: Commit, panes: Iterable[WindowManifest]) -> dict[str, FileEntry]:
    """Return the files of some of a commit's panes, and those of its dead letters."""
    return _files_of(panes) | {entry.name: entry for entry in (*commit.letters, *commit.rewritten)}


def _files_of(panes: Iterable[WindowManifest]) -> dict[str, FileEntry]:
    return {f"{pane.folder}/{entry.name}": entry for pane in panes for entry in pane.files}


def histories_of(store: Store) -> HistoryFiles:
    """Return the history files as of the newest commit; none where the log is damaged, which is a finding by itself."""
    try:
        return LogState.open(store).histories
    except CorruptArtefactError:
        return HistoryFiles()


def _commits(store: Store, findings: list[Finding]) -> Iterator[Commit]:
    log = CommitLog(store)
    try:
        newest = log.newest()
    except CorruptArtefactError as error:
        findings.append(fault_of(store, error))
        newest = max((int(name[8:18]) for name in store.glob("commits/" + "[0-9]" * 10 + ".json")), default=-1)
    before: Cursor | None = (first := log.first())
    for number in range(first.number, newest + 1):
        try:
            # Where the one before is damaged or missing, checking resumes after it.
            step = log.next(before or log.at(number))
        except CorruptArtefactError as error:
            findings.append(fault_of(store, error))
            before = None
            continue
        if step is None:
            break
        commit, before = step
        yield commit
