"""What the monitor makes of its measurements of a window, and where it goes on after a restart."""

import logging
import time

from weir.contracts import BundleManifest, CommitLog, CorruptArtefactError, Store, WindowManifest
from weir.contracts.commit import CommitRef
from weir.contracts.commits import LogMismatchError
from weir.contracts.places import MonitorPlace
from weir.contracts.variants import log_of_version
from weir.serving.monitor.recall import Tally
from weir.serving.monitor.results import Examples, WindowRecall, load, recorded

__all__ = ["is_of_log", "is_recorded", "manifest_of", "place_in", "result_of", "summary_of"]

logger = logging.getLogger(__name__)


def place_in(store: Store) -> MonitorPlace:
    """Return how far a monitor has got; by all of its results where it has left no place, or a damaged one."""
    try:
        if (place := MonitorPlace.read(store)) is not None:
            return place
    except CorruptArtefactError as error:
        logger.warning("all results are read instead: %s", error)
    results = recorded(store)
    return MonitorPlace(
        measured=max((result.sequence for result in results), default=-1),
        reported=max((result.sequence for result in results if result.freshness), default=-1),
    )


def is_recorded(store: Store, manifest: WindowManifest) -> bool:
    """Say whether a window has a result: of a monitor that was killed before it noted its place."""
    try:
        return load(store, manifest) is not None
    except CorruptArtefactError:
        return False


def manifest_of(store: Store, version: str) -> BundleManifest | None:
    """Return the manifest of a bundle that answered; None where it is gone."""
    try:
        return log_of_version(store, version).manifest(version)
    except FileNotFoundError:
        return None


def is_of_log(log: CommitLog, version: str, sequence: int, commit: CommitRef | None) -> bool:
    """Return whether a bundle was trained on the windows of this log, up to the pane `sequence` of a commit."""
    try:
        log.require(f"bundle {version}", sequence, commit)
    except LogMismatchError as error:
        logger.warning("its answers do not count: %s", error)
        return False
    return True


def result_of(manifest: WindowManifest, tally: Tally, sampled: int) -> WindowRecall:
    """Return what is kept of a window's measurements; so many events were sampled."""
    return WindowRecall(
        sequence=manifest.sequence,
        window=str(manifest.name),
        measured_at=time.time(),
        bundle_versions=tuple(sorted(tally.versions)),
        examples=Examples(
            sampled=sampled,
            model=tally.count("model"),
            served=tally.count("served"),
            popularity=tally.count("popularity"),
            skipped=dict(tally.skipped),
        ),
        index=tally.mean("index"),
        model=tally.mean("model"),
        served=tally.mean("served"),
        committed=tally.mean("committed"),
        popularity=tally.mean("popularity"),
    )


def summary_of(result: WindowRecall) -> tuple[str, ...]:
    """Return the window and three of its recalls, for the log."""

    def short(values: dict[int, float]) -> str:
        return " ".join(f"@{k}={value:.3f}" for k, value in values.items()) or "-"

    return result.window, short(result.model), short(result.served), short(result.popularity)
