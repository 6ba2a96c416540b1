"""Verification: every file of a store against the commit, the manifest or the checksum that covers it.

And documents against each other: what one of them implies, such as the bundle that is promoted, is there.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from weir.contracts.artefacts import MANIFEST
from weir.contracts.checkpoint import CHECKPOINT_MARK as CHECKPOINT
from weir.contracts.consistency import disagreements
from weir.contracts.documents import Document, decode_document, unseal
from weir.contracts.errors import CorruptArtefactError
from weir.contracts.findings import Finding, Kind
from weir.contracts.format import read_format
from weir.contracts.listed_files import expected_files, histories_of, retired_files
from weir.contracts.served import ServedFile, check_served
from weir.contracts.storage import FileEntry, FileStat, Store

__all__ = ["Finding", "Kind", "Report", "verify"]

_THREADS: Final = 8
"""Files that are read at once."""

_YOUNG_SECONDS: Final = 3600.0
"""A file that nothing names yet may belong to work in progress for so long."""

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
"""Files that carry their own checksum as documents."""

_SEALED: Final = ("state/item-keys", "state/popularity")
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


@dataclass
class Report:
    """What `verify` has found; `unchecked` files are other people's or work in progress."""

    files: int = 0
    bytes: int = 0
    unchecked: int = 0
    findings: list[Finding] = field(default_factory=list)


def verify(store: Store, *, quick: bool = False, progress: Callable[[int, int], None] | None = None) -> Report:
    """Check every file of a store; with `quick` files of known size are not read.

    Parameters
    ----------
    store
        Processes may write to it meanwhile: what they have in progress is no finding.
    progress
        Called with the files checked so far and in all.

    Raises
    ------
    StoreFormatError
        If the store has a format that this version cannot read.
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
    # Files of a retired commit go before it does; replaced histories stay for a time of grace.
    foreign = {name for name in strange if name not in histories.replaced and store.exists(name)}
    report.unchecked = len(others) - len(foreign)
    report.findings += [Finding(Kind.FOREIGN, name, "no commit or manifest names it") for name in foreign]
    report.findings = sorted(set(report.findings), key=lambda finding: (finding.name, finding.problem))
    return report


def _missing(store: Store, expected: dict[str, FileEntry], there: dict[str, FileStat]) -> list[Finding]:
    """Check again for files that the listing did not show: they may have been written since, or retired."""
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
