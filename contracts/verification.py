"""Verification: every file of a store against the commit, the manifest or the checksum that covers it."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from contracts.artefacts import MANIFEST
from contracts.bundle_manifest import BundleRef
from contracts.checkpoint import CHECKPOINT_MARK as CHECKPOINT
from contracts.checkpoint import CheckpointRef, mark_path
from contracts.commits import Commit, CommitLog, Cursor
from contracts.documents import Document, decode_document, read_document, unseal
from contracts.errors import CorruptArtefactError
from contracts.format import read_format
from contracts.history_files import HistoryFiles
from contracts.horizon import RetiredError
from contracts.log_state import LogState
from contracts.storage import FileEntry, FileStat, Store, checksum

__all__ = ["Finding", "Kind", "Report", "verify"]

_YOUNG_SECONDS: Final = 3600.0
"""A file that nothing names yet may belong to work in progress for so long."""

_DOCUMENTS: Final = (
    "STORE.json",
    "CLOCK.json",
    "commits/*",
    "bundles/CURRENT",
    "bundles/PIN",
    "bundles/TRIAL.json",
    "bundles/*/*.json",
    "checkpoints/*/*.json",
    "evaluations/*",
    "monitor/*",
)
"""Files that carry their own checksum as documents."""

_SEALED: Final = ("state/histories/*", "state/item-keys", "state/popularity")
"""Files that carry their own checksum as sealed data."""

_UNCHECKED: Final = (
    "weir.yaml",
    "generated.jsonl",
    "log/*",
    "logs/*",
    "state/demo",
    "state/settings.json",
    "state/replay.json",
    "state/replay-of",
    "state/*.lock",
    "state/runs/*",
)
"""Files that people put there, or that processes need while they run: they are not checked."""


class Kind(StrEnum):
    """What is wrong with a file."""

    DAMAGED = "damaged"
    MISSING = "missing"
    FOREIGN = "foreign"


class Finding(NamedTuple):
    """One file at fault, its name relative to the store."""

    kind: Kind
    name: str
    problem: str


@dataclass
class Report:
    """What `verify` has found; `unchecked` files are other people's or work in progress."""

    files: int = 0
    bytes: int = 0
    unchecked: int = 0
    findings: list[Finding] = field(default_factory=list)


class _Listing(Document):
    """What all manifests have in common, and what a checkpoint continues, or the bundle that one changes."""

    files: tuple[FileEntry, ...]
    parent: CheckpointRef | BundleRef | None = None


def verify(
    store: Store, *, quick: bool = False, threads: int = 8, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Check every file of a store; with `quick` files of known size are not read.

    Parameters
    ----------
    store
        Processes may write to it meanwhile: what they have in progress is no finding.
    threads
        Files that are read at once.
    progress
        Called with the files checked so far and in all.

    Raises
    ------
    StoreFormatError
        If the store has a format that this version cannot read.
    """
    there = store.find()
    if read_format(store) is None and not there:
        return Report()
    report = Report()
    retired = _retired(store, there, report.findings)
    histories = _histories(store)
    needed = _expected(store, there, histories, report.findings)
    report.findings += _missing(store, needed, there)
    expected = retired | needed
    todo = [name for name in there if name in expected or _matches(name, _DOCUMENTS) or _matches(name, _SEALED)]
    with ThreadPoolExecutor(threads) as pool:
        checks = [pool.submit(_check, store, name, there[name], expected.get(name), quick=quick) for name in todo]
        for done, check in enumerate(as_completed(checks), start=1):
            report.findings += check.result()
            if progress is not None:
                progress(done, len(checks))
    report.files, report.bytes = len(todo), sum(there[name].size for name in todo)
    others = there.keys() - set(todo)
    unlisted = _unlisted(report.findings)
    strange = {name for name in others if _is_foreign(name, there[name]) and not name.startswith(unlisted)}
    # Files of a retired commit go before it does; replaced histories stay for a time of grace.
    foreign = {name for name in strange if name not in histories.replaced and store.exists(name)}
    report.unchecked = len(others) - len(foreign)
    report.findings += [Finding(Kind.FOREIGN, name, "no commit or manifest names it") for name in foreign]
    report.findings = sorted(set(report.findings), key=lambda finding: finding.name)
    return report


def _retired(store: Store, there: dict[str, FileStat], findings: list[Finding]) -> dict[str, FileEntry]:
    """Return the files of retired commits that have not been removed: any of them may be missing."""
    log = CommitLog(store)
    first, found = log.first().number, dict[str, FileEntry]()
    for name in there:
        if not fnmatchcase(name, "commits/" + "[0-9]" * 10 + ".json") or int(name[8:18]) >= first:
            continue
        try:
            found |= _listed_by(log.get(int(name[8:18])))
        except CorruptArtefactError as error:
            findings.append(_fault(store, error))
        except RetiredError:
            pass  # removed since the listing
    return found


def _listed_by(commit: Commit) -> dict[str, FileEntry]:
    listed = (*commit.panes, *(one.pane for one in commit.redacts))
    panes = {f"{pane.folder}/{entry.name}": entry for pane in listed for entry in pane.files}
    return panes | {entry.name: entry for entry in (*commit.letters, *commit.rewritten)}


def _expected(
    store: Store, there: dict[str, FileStat], state: HistoryFiles, findings: list[Finding]
) -> dict[str, FileEntry]:
    """Return the files that commits and manifests list, by name; those that cannot be read are findings."""
    expected = _committed(store, state, findings)
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
    try:
        found = checksum(store.read(path))
    except FileNotFoundError:
        if store.exists(name):  # else both are retired since the listing
            yield Finding(Kind.MISSING, path, f"{name} continues it, but it is missing")
        return
    if found != parent.checksum:
        yield Finding(Kind.DAMAGED, path, f"has checksum {found}, {name} continues {parent.checksum}")


def _committed(store: Store, state: HistoryFiles, findings: list[Finding]) -> dict[str, FileEntry]:
    """Return what commits list; of files that have been replaced those that are still there."""
    found, histories, replaced = dict[str, FileEntry](), dict[str, FileEntry](), set[str]()
    first = CommitLog(store).first().sequence
    for commit in _commits(store, findings):
        found |= _listed_by(commit)
        histories |= {file.name: file for file in commit.histories}
        replaced |= {name for file in commit.histories for name in file.replaces}
        replaced |= {*commit.removed, *commit.replaced_by_redaction}
        # Redacted files of a pane go when the pane does: its own commit has retired.
        replaced |= {one.pane.folder for one in commit.redacts if one.pane.sequence < first}
        for name in commit.dropped:
            histories.pop(name, None)
    # Commits that named a file in use may have retired.
    histories |= {file.name: file for file in state.files}
    # Replaced files go after a time of grace, and only a later commit says so.
    found |= histories
    may_be_gone = [name for name in found if name in replaced or name.rpartition("/")[0] in replaced]
    gone = {name for name in may_be_gone if not store.exists(name)}
    return {name: file for name, file in found.items() if name not in gone}


def _histories(store: Store) -> HistoryFiles:
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
        findings.append(_fault(store, error))
        newest = max((int(name[8:18]) for name in store.glob("commits/" + "[0-9]" * 10 + ".json")), default=-1)
    before: Cursor | None = (first := log.first())
    for number in range(first.number, newest + 1):
        try:
            # Where the one before is damaged or missing, checking resumes after it.
            step = log.next(before or log.at(number))
        except CorruptArtefactError as error:
            findings.append(_fault(store, error))
            before = None
            continue
        if step is None:
            break
        commit, before = step
        yield commit


def _fault(store: Store, error: CorruptArtefactError) -> Finding:
    kind = Kind.MISSING if error.problem.startswith("is missing") else Kind.DAMAGED
    return Finding(kind, error.path.removeprefix(store.path("") + "/"), error.problem)


def _missing(store: Store, expected: dict[str, FileEntry], there: dict[str, FileStat]) -> list[Finding]:
    """Check again for files that the listing did not show: they may have been written since, or retired."""
    found = []
    for name in expected.keys() - there.keys():
        folder = name.rpartition("/")[0]
        retires = folder.startswith(("bundles/", "checkpoints/"))
        gone = retires and not (store.exists(f"{folder}/{MANIFEST}") or store.exists(f"{folder}/{CHECKPOINT}"))
        if not gone and not store.exists(name):
            found.append(Finding(Kind.MISSING, name, "a commit or manifest lists it, but it is missing"))
    return found


def _check(store: Store, name: str, stat: FileStat, entry: FileEntry | None, *, quick: bool) -> list[Finding]:
    if entry is not None and stat.size != entry.size:
        return [Finding(Kind.DAMAGED, name, f"has {stat.size} bytes, {entry.size} are listed")]
    if entry is not None and quick:
        return []
    try:
        if entry is not None and (found := store.digest(name)) != entry.checksum:
            return [Finding(Kind.DAMAGED, name, f"has checksum {found}, {entry.checksum} is listed")]
        if entry is None:
            _check_itself(store.path(name), name, store.read(name))
    except CorruptArtefactError as error:
        return [Finding(Kind.DAMAGED, name, error.problem)]
    except FileNotFoundError:
        pass  # retired or replaced since the listing
    return []


def _check_itself(path: str, name: str, data: bytes) -> None:
    if _matches(name, _SEALED):
        unseal(path, data)
    else:
        decode_document(path, data, Document)


def _unlisted(findings: list[Finding]) -> tuple[str, ...]:
    """Return the folders whose files may be foreign or not: the document that lists them is damaged or lost."""
    found: set[str] = set()
    for finding in findings:
        folder, _, last = finding.name.rpartition("/")
        if folder == "commits":
            found |= {"windows/", "dead-letters/", "histories/"}
        elif last in {MANIFEST, CHECKPOINT}:
            found.add(f"{folder}/")
    return tuple(found)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    hidden = name.rpartition("/")[2].startswith(".")
    return not hidden and any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_foreign(name: str, stat: FileStat) -> bool:
    young = stat.written is not None and time.time() - stat.written < _YOUNG_SECONDS
    return not young and not any(fnmatchcase(name, pattern) for pattern in _UNCHECKED)
