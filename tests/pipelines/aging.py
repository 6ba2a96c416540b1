"""A steady stream of small windows with retention, and what kills it at a chosen change to its store."""

import random
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import weir.contracts.verification
from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import LogState, Store
from weir.contracts.verification import Finding, verify
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.maintenance.retention import Retention
from weir.readers import discover

WINDOW = 10
KEPT = 40
"""Seconds of event time of a window, and of retention."""


def settings(folder: Path, **changes: Any) -> Any:
    return support.config(folder, window_seconds=WINDOW, allowed_lateness_seconds=0, **changes)


def events_of(number: int) -> list[Event]:
    """The events of a window; users of both shards, and a third of the events twice."""
    rng = random.Random(number)
    return [
        Event(f"user-{user}", f"item-{rng.randrange(40)}", WINDOW * number + rng.randrange(WINDOW), "click",
              f"event-{number}-{user}")
        for user in range(20)
    ]  # fmt: skip


def part(folder: Path, number: int) -> Path:
    return folder / f"log/part-{number:04d}.jsonl"


def arrive(folder: Path, number: int, kept: int = KEPT // WINDOW) -> None:
    """Write the log file of a window, which also holds a line that is no JSON; the log keeps so many files."""
    lines = [event.line() for event in events_of(number)]
    support.write_lines(part(folder, number), [*lines, *lines[::3], "no json\n"])
    part(folder, number - kept).unlink(missing_ok=True)


def run(folder: Path) -> None:
    ingest(Store(str(folder / "store")), settings(folder), registry=CollectorRegistry())


def retention(store: Store) -> Retention:
    return Retention(store, KEPT, grace_seconds=0, pause_seconds=0)


def age(folder: Path, state: LogState | None = None) -> None:
    """Let retention act once."""
    store = Store(str(folder / "store"))
    in_log = {partition.key for partition in discover(settings(folder).log)}
    retention(store).step(state or LogState.open(store), in_log)


def retire_and_remove(folder: Path) -> None:
    """Let retention act twice: what retires at first is removed then."""
    for _ in range(2):
        age(folder)


def leftovers(store: Store) -> list[Finding]:
    """Verify a store; what nothing names is foreign at once, however young."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weir.contracts.verification, "_YOUNG_SECONDS", -1.0)
        return verify(store).findings
