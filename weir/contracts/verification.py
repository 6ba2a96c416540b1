"""Verification: check every file of a store against the commit, manifest or checksum that covers it.

Also reports files that a document implies but that are missing (`weir.contracts.consistency`), and files that no
document lists.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.bundles.checkpoint import CHECKPOINT_MARK as CHECKPOINT
from weir.contracts.bundles.checkpoint import CheckpointRef, mark_path
from weir.contracts.bundles.manifest import COMPACTED, BundleRef
from weir.contracts.commits.commit import Commit, HistoryFiles
from weir.contracts.commits.commit_log import CommitLog, Cursor
from weir.contracts.commits.log_state import LogState
from weir.contracts.commits.retention_horizon import Horizon, RetiredError
from weir.contracts.commits.window import WindowManifest
from weir.contracts.consistency import Finding, Kind, disagreements, fault_of
from weir.contracts.served_lists import ServedFile, check_served
from weir.contracts.storage.artefacts import MANIFEST
from weir.contracts.storage.documents import Document, decode_document, read_document, unseal
from weir.contracts.storage.format import read_format
from weir.contracts.storage.store import FileEntry, FileStat, Store, checksum

__all__ = ["Finding", "Kind", "Report", "expected_files", "histories_of", "retired_files", "verify"]

_THREADS: Final = 8
"""Files that are read in parallel."""
_YOUNG_SECONDS: Final = 3600.0
"""A younger file that is not listed may belong to work in progress."""
_DOCUMENTS: Final = (
    "STORE.json",
    "SETTINGS.json",
    "CLOCK.json",
    "commits/*",
    "bundles/CURRENT",
    "bundles/PIN",
    "bundles/TRIAL.json",
    "bundles/*/*.json",
    "checkpoints/*/*.json",
    "evaluations/*",
    "monitor/*",
    "variants/CHAMPION.json",
    "variants/*/COMPARISON.json",
    "variants/*/bundles/CURRENT",
    "variants/*/bundles/PIN",
    "variants/*/bundles/TRIAL.json",
    "variants/*/bundles/*/*.json",
    "variants/*/checkpoints/*/*.json",
    "variants/*/evaluations/*",
)
"""Documents, which carry their own checksum."""
_SEALED: Final = ("state/item-keys", "state/popularity")
"""Sealed files, which carry their own checksum."""
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
"""Files of users, or of running processes: not checked."""


class _Listing(Document):
    """The common fields of manifests and checkpoint marks; `parent` is the checkpoint or bundle that it continues."""

    files: tuple[FileEntry, ...]
    parent: CheckpointRef | BundleRef | None = None


def expected_files(
    store: Store, there: dict[str, FileStat], state: HistoryFiles, findings: list[Finding], panes: dict[int, str]
) -> dict[str, FileEntry]:
    """Return name -> entry of the files that commits and manifests list.

    Adds a finding for each unreadable commit or manifest to `findings`, and sequence -> name of the panes in the log to
    `panes`. `there` is the listing of the store, `state` the history files in use.
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
    """Yield a finding if the `parent` that a checkpoint or bundle (document `name`) continues is missing or changed."""
    path = mark_path(parent.name) if isinstance(parent, CheckpointRef) else f"bundles/{parent.version}/{MANIFEST}"
    # A variant's line is a store within this one.
    path = "/".join([*(name.split("/")[:2] if name.startswith("variants/") else ()), path])
    try:
        found = checksum(store.read(path))
    except FileNotFoundError:
        folder = name.rpartition("/")[0]
        # Otherwise both have been removed since the listing, or the bundle is compacted and needs no parent.
        if store.exists(name) and not store.exists(f"{folder}/{COMPACTED}/{MANIFEST}"):
            yield Finding(Kind.MISSING, path, f"{name} continues it, but it is missing")
        return
    if found != parent.checksum:
        yield Finding(Kind.DAMAGED, path, f"has checksum {found}, {name} continues {parent.checksum}")


def _committed(
    store: Store, state: HistoryFiles, findings: list[Finding], panes: dict[int, str]
) -> dict[str, FileEntry]:
    """Return the files that commits list, without replaced files that are already removed."""
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
    # The commit that added a file in use may have retired.
    histories |= {file.name: file for file in state.files}
    # Replaced files are removed after a grace period; only a later commit says so.
    found |= histories
    may_be_gone = [name for name in found if name in replaced or name.rpartition("/")[0] in replaced]
    gone = {name for name in may_be_gone if not store.exists(name)}
    return {name: file for name, file in found.items() if name not in gone}


def retired_files(store: Store, there: dict[str, FileStat], findings: list[Finding]) -> dict[str, FileEntry]:
    """Return name -> entry of the files of retired panes and commits whose commits still exist.

    Any of the files may be removed already. Adds a finding for each damaged commit to `findings`.
    """
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
    """Return the files of the given panes, and of a commit's dead letters."""
    return _files_of(panes) | {entry.name: entry for entry in (*commit.letters, *commit.rewritten)}


def _files_of(panes: Iterable[WindowManifest]) -> dict[str, FileEntry]:
    return {f"{pane.folder}/{entry.name}": entry for pane in panes for entry in pane.files}


def histories_of(store: Store) -> HistoryFiles:
    """Return the history files as of the newest commit; none if the log is damaged, which another finding reports."""
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
            # After a damaged or missing commit, checking resumes at the next one.
            step = log.next(before or log.at(number))
        except CorruptArtefactError as error:
            findings.append(fault_of(store, error))
            before = None
            continue
        if step is None:
            break
        commit, before = step
        yield commit


@dataclass
class Report:
    """Result of `verify`; `unchecked` counts files of users and of work in progress."""

    files: int = 0
    bytes: int = 0
    unchecked: int = 0
    findings: list[Finding] = field(default_factory=list)


def verify(store: Store, *, quick: bool = False, progress: Callable[[int, int], None] | None = None) -> Report:
    """Check every file of a store; with `quick`, listed files are not read, only their sizes are compared.

    Processes may write to the store meanwhile: their work in progress is not a finding. `progress` is called with the
    number of files checked so far and in all. Raises `StoreFormatError` if this version cannot read the store's format.
    """
    there = store.find()
    form = read_format(store)
    if form is None and not there:
        return Report()
    report = Report()
    if form is not None and form.has_settings and "SETTINGS.json" not in there and "commits/HEAD" in there:
        report.findings.append(Finding(Kind.MISSING, "SETTINGS.json", "STORE.json says that it is there"))
    retired = retired_files(store, there, report.findings)
    histories = histories_of(store)
    panes = dict[int, str]()
    needed = expected_files(store, there, histories, report.findings, panes)
    report.findings += _missing(store, needed, there)
    report.findings += disagreements(store, there, panes)
    expected = retired | needed
    todo = [name for name in there if name in expected or _carries_checksum(name)]
    with ThreadPoolExecutor(_THREADS) as pool:
        checks = [pool.submit(_check, store, name, there[name], expected.get(name), quick=quick) for name in todo]
        for done, check in enumerate(as_completed(checks), start=1):
            report.findings += check.result()
            if progress is not None:
                progress(done, len(checks))
    report.files, report.bytes = len(todo), sum(there[name].size for name in todo)
    others = there.keys() - set(todo)
    unlisted = _unlisted(report.findings)
    strange = {name for name in others if _is_foreign(name, there[name]) and not name.startswith(unlisted)}
    # Files of a retired commit are removed before it; replaced histories stay for a grace period.
    foreign = {name for name in strange if name not in histories.replaced and store.exists(name)}
    report.unchecked = len(others) - len(foreign)
    report.findings += [Finding(Kind.FOREIGN, name, "no commit or manifest names it") for name in foreign]
    report.findings = sorted(set(report.findings), key=lambda finding: (finding.name, finding.problem))
    return report


def _missing(store: Store, expected: dict[str, FileEntry], there: dict[str, FileStat]) -> list[Finding]:
    """Return findings for listed files that are missing; files written or retired since the listing are left out."""
    found = []
    for name in expected.keys() - there.keys():
        folder = name.rpartition("/")[0]
        retires = folder.startswith(("bundles/", "checkpoints/", "variants/"))
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


def _carries_checksum(name: str) -> bool:
    return _matches(name, _DOCUMENTS) or _matches(name, _SEALED) or ServedFile.of(name) is not None


def _check_itself(path: str, name: str, data: bytes) -> None:
    if ServedFile.of(name) is not None:
        check_served(path, data)
    elif _matches(name, _SEALED):
        unseal(path, data)
    else:
        decode_document(path, data, Document)


def _unlisted(findings: list[Finding]) -> tuple[str, ...]:
    """Return the folders whose unlisted files are not findings, because the listing document is damaged or lost."""
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
