"""Consistency of a store's documents: implied files exist, and positions in the log match the log.

Commits and manifests list their files (`weir.contracts.verification`). Other documents imply files without a list: a
promoted bundle its ``CURRENT``, a trained window its evaluation. docs/store.md names the files without such a check.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.base.models import CommitRef, StoredModel
from weir.contracts.bundles.bundle_log import BundleLog
from weir.contracts.bundles.checkpoint import CHECKPOINT_MARK, CheckpointMark
from weir.contracts.bundles.manifest import BundleManifest
from weir.contracts.bundles.variants import CHAMPION, MAIN, Champion, Comparison, log_of
from weir.contracts.commits.commit import Commit
from weir.contracts.commits.commit_log import HEAD, CommitLog, Cursor, Head, LogMismatchError
from weir.contracts.commits.retention_horizon import MonitorPlace, snapshot_name, snapshots
from weir.contracts.storage.artefacts import MANIFEST
from weir.contracts.storage.documents import Document, DocumentT, read_document
from weir.contracts.storage.format import read_format
from weir.contracts.storage.store import FileStat, Store

__all__ = ["Finding", "Kind", "disagreements", "fault_of"]

_PAUSE_SECONDS: Final = 1.0
"""Longer than the time between the manifest of the first bundle and its promotion."""


class Kind(StrEnum):
    """The fault of a file."""

    DAMAGED = "damaged"
    MISSING = "missing"
    FOREIGN = "foreign"


class Finding(NamedTuple):
    """A file at fault, by its name relative to the store."""

    kind: Kind
    name: str
    problem: str


def fault_of(store: Store, error: CorruptArtefactError) -> Finding:
    """Return the finding that reports an error of a file of the store."""
    kind = Kind.MISSING if error.problem.startswith("is missing") else Kind.DAMAGED
    return Finding(kind, error.path.removeprefix(store.path("") + "/"), error.problem)


def disagreements(store: Store, there: Mapping[str, FileStat], panes: Mapping[int, str]) -> Iterator[Finding]:
    """Yield a finding for each implied file that is missing, and each document of another commit log.

    `there` is the listing of the store, `panes` maps the sequence of a pane in the log to the pane's name. Damaged
    documents are skipped.
    """
    yield from _of_head(store)
    for number in snapshots(store):
        yield from _of_snapshot(store, snapshot_name(number))
    champion = _read(store, CHAMPION, Champion)
    for variant in (MAIN, *sorted({name.split("/")[1] for name in there if fnmatchcase(name, "variants/*/*")})):
        is_champion = champion is not None and champion.variant == variant
        yield from _Line(store, variant, there, panes).disagreements(is_champion=is_champion)
    yield from _of_monitor(store, there, panes)


class _Snapshot(Document):
    class State(StoredModel):
        cursor: Cursor

    state: State


class _Trial(Document):
    reference: str | None = None


class _Named(Document):
    """``bundles/CURRENT`` or ``bundles/PIN``."""

    version: str


def _read(store: Store, name: str, model: type[DocumentT]) -> DocumentT | None:
    """Return a document; None if it is missing or damaged, which other checks report."""
    with suppress(FileNotFoundError, CorruptArtefactError):
        return read_document(store, name, model)
    return None


def _of_head(store: Store) -> Iterator[Finding]:
    if (commit := _read(store, HEAD, Commit)) is not None:
        yield Finding(Kind.DAMAGED, HEAD, f"is commit {commit.number}: it was put in the place of another file")
    elif (head := _read(store, HEAD, Head)) is not None:
        newest = _read(store, CommitLog.name(head.number), Commit)
        if newest is not None and newest.sequence + len(newest.panes) != head.sequence:
            panes = newest.sequence + len(newest.panes)
            problem = f"says that {head.sequence} panes are committed with commit {head.number}, these are {panes}"
            yield Finding(Kind.DAMAGED, HEAD, problem)
        if (snapshot := head.newest_snapshot) is not None:
            yield from _missing(store, [snapshot_name(snapshot)], f"{HEAD} names it, but it is missing")


def _of_snapshot(store: Store, name: str) -> Iterator[Finding]:
    if (found := _read(store, name, _Snapshot)) is not None and (cursor := found.state.cursor).number:
        yield from _of_place(store, name, -1, CommitRef(number=cursor.number - 1, checksum=cursor.checksum))


def _of_place(store: Store, name: str, sequence: int, ref: CommitRef | None) -> Iterator[Finding]:
    """Check the reader's position in document `name` against the log; skipped in a copy of bundles without a log."""
    if read_format(store) is None:
        return
    try:
        CommitLog(store).require(name, sequence, ref)
    except LogMismatchError as error:
        yield Finding(Kind.FOREIGN, name, f"is of another commit log: {error.problem}")
    except CorruptArtefactError:
        pass  # a finding of its own


def _missing(store: Store, names: Iterable[str], problem: str) -> Iterator[Finding]:
    yield from (Finding(Kind.MISSING, name, problem) for name in names if not store.exists(name))


def _of_monitor(store: Store, there: Mapping[str, FileStat], panes: Mapping[int, str]) -> Iterator[Finding]:
    place = None
    with suppress(CorruptArtefactError):
        place = MonitorPlace.read(store)
    if place is not None:
        yield from _of_place(store, "monitor/PLACE.json", place.measured, place.commit)
        measured = (f"monitor/{pane}.json" for sequence, pane in panes.items() if sequence <= place.measured)
        problem = "monitor/PLACE.json says that the window is measured, but the result is missing"
        yield from _missing(store, (name for name in measured if name not in there), problem)
    for name in there:
        if fnmatchcase(name, "variants/*/COMPARISON.json") and (found := _read(store, name, Comparison)) is not None:
            yield from _of_place(store, name, found.sequence, found.commit)


class _Line:
    """Checks the checkpoints, evaluations and bundles of one variant, which may be `MAIN`."""

    def __init__(self, store: Store, variant: str, there: Mapping[str, FileStat], panes: Mapping[int, str]) -> None:
        self.store, self.there, self.panes = store, there, panes
        self.log: BundleLog = log_of(store, variant)
        self.prefix = "" if variant == MAIN else f"variants/{variant}/"
        self.manifests = self._documents(f"bundles/*/{MANIFEST}", BundleManifest)
        self.marks = self._documents(f"checkpoints/*/{CHECKPOINT_MARK}", CheckpointMark)

    def _documents(self, pattern: str, model: type[DocumentT]) -> dict[str, DocumentT]:
        depth = (self.prefix + pattern).count("/")
        names = (name for name in self.there if name.count("/") == depth and fnmatchcase(name, self.prefix + pattern))
        return {name: found for name in names if (found := _read(self.store, name, model)) is not None}

    def disagreements(self, *, is_champion: bool) -> Iterator[Finding]:
        """Yield the findings of the variant; the champion must have a ``CURRENT``."""
        for name, mark in self.marks.items():
            yield from _of_place(self.store, name, mark.sequence - 1, mark.trained_commit)
        for name, manifest in self.manifests.items():
            yield from _of_place(self.store, name, manifest.trained_sequence, manifest.trained_commit)
        yield from self._of_evaluations()
        yield from self._of_promotion(is_champion=is_champion)
        yield from self._of_trial()

    @property
    def _evaluated(self) -> dict[int, str]:
        """Sequence of a pane -> name of its evaluation, for the panes that the newest checkpoint was trained on."""
        last = max((mark.sequence if mark.batch else mark.sequence - 1 for mark in self.marks.values()), default=-1)
        return {
            sequence: f"{self.prefix}evaluations/{pane}.json"
            for sequence, pane in self.panes.items()
            if sequence <= last
        }

    def _of_evaluations(self) -> Iterator[Finding]:
        names = (name for name in self._evaluated.values() if name not in self.there)
        yield from _missing(self.store, names, "a checkpoint has been trained on the window, but it is missing")

    def _of_promotion(self, *, is_champion: bool) -> Iterator[Finding]:
        current = f"{self.prefix}bundles/CURRENT"
        if (lost := self._lost()) is not None:
            yield Finding(Kind.MISSING, current, lost.problem)
        elif is_champion:
            yield from _missing(self.store, [current], f"{CHAMPION} names its line, but it is missing")
        for name in (current, f"{self.prefix}bundles/PIN"):
            if (named := _read(self.store, name, _Named)) is not None:
                yield from self._of_bundle(named.version, name)

    def _lost(self) -> CorruptArtefactError | None:
        if (lost := self.log.lost()) is None:
            return None
        time.sleep(_PAUSE_SECONDS)
        return lost and self.log.lost()

    def _of_bundle(self, version: str, name: str) -> Iterator[Finding]:
        manifest = f"{self.prefix}bundles/{version}/{MANIFEST}"
        if not self.store.exists(manifest) and self.store.exists(name):
            yield Finding(Kind.MISSING, manifest, f"{name} names the bundle, but it is missing")

    def _of_trial(self) -> Iterator[Finding]:
        name = f"{self.prefix}bundles/TRIAL.json"
        if (trial := _read(self.store, name, _Trial)) is not None:
            if trial.reference is not None:
                yield from self._of_bundle(trial.reference, name)
        elif not self.store.exists(name) and any(map(self._was_tested, self.manifests)):
            yield Finding(
                Kind.MISSING, name, "the promoted bundle was tested, but it is missing: the next window starts it again"
            )

    def _was_tested(self, name: str) -> bool:
        """Return whether a window was evaluated after the bundle's promotion, going by file times."""
        manifest, written = self.manifests[name], self.there[name].written
        later = (self.there.get(one) for at, one in self._evaluated.items() if at > manifest.trained_sequence)
        times = [stat.written for stat in later if stat is not None and stat.written is not None]
        return manifest.promoted and written is not None and any(time > written for time in times)
