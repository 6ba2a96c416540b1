"""The oracle of the pipeline: what was written to the log, against what the store holds."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

import pytest

import weir.contracts.verification
from tests.campaigns.ingest_lives import WINDOW_SECONDS, events_of
from tests.pipelines import support
from weir.contracts import CommitLog, LogState, Store
from weir.contracts.verification import Finding, verify
from weir.pipelines.runs.run_registry import sweep


def check(store: Store, parts: Iterable[int], history_length: int) -> None:
    """Every event is committed once, every dead letter counted once, histories are right, and no file is left over."""
    parts = list(parts)
    written = [event for part in parts for event in events_of(part)]
    dead = sum(part % 3 == 1 for part in parts)
    state = LogState.open(store)
    assert support.stored_events(store) == support.expected_events(written, window_seconds=WINDOW_SECONDS)
    assert state.counts.events == len(written)
    support.check_counts(store)
    support.check_histories(store, history_length)
    assert len(support.dead_letters(store)) == state.dead == dead
    check_commits(store)
    sweep(store, grace_seconds=0)
    assert leftovers(store) == []


def check_commits(store: Store) -> list[str]:
    """Commits have no gap and each its own writer; returns the writers."""
    log = CommitLog(store)
    writers = [log.get(number).writer for number in range(log.newest() + 1)]
    assert len(set(writers)) == len(writers)
    return writers


def leftovers(store: Store) -> list[Finding]:
    """Verify a store; what nothing names is foreign at once, however young.

    But for the hidden temporary file of the very write that a kill interrupted: no reader sees it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weir.contracts.verification, "_YOUNG_SECONDS", -1.0)
        found = verify(store).findings
    return [finding for finding in found if not fnmatchcase(finding.name.rpartition("/")[2], ".*.tmp")]
