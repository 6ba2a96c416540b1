"""Refused rows that are read again: each counts once, however often that is tried or killed."""

import os
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.campaigns import size
from tests.kills import KilledError, killed_at
from tests.pipelines import aging, support
from tests.pipelines.support import ORIGIN, Event
from tests.readers.files import write_delimited
from weir.contracts import LogState, Store
from weir.pipelines.config import PipelineConfig
from weir.pipelines.ingest import ingest
from weir.pipelines.retry import retry

WRONG: list[dict[str, Any]] = [
    {"max_time": f"{2023}-11-14T22:13:40Z"},
    {"missing_ids": ["item-1", "item-2"]},
    {"event_types": {"click": "positive"}},
    {"max_weight": 0.5},
    {"clock_tolerance_minutes": 0},
    {"columns": {"timestamp": "when"}},
]
"""Settings under which rows are refused that are valid: the files of the log are as old as second 10 of its events."""

FORMATS = ["jsonl", "jsonl.gz", "csv", "tsv.gz", "parquet"]

events = st.builds(
    Event,
    user=st.sampled_from(["ann", "bob", "cyd", "Ürsel"]),
    item=st.sampled_from([f"item-{number}" for number in range(5)]),
    second=st.integers(0, 60),
    type=st.sampled_from(["click", "click", "skip", "view"]),
)
identified = events.map(lambda one: replace(one, event_id=f"{one.user}/{one.item}/{one.second}/{one.type}"))
batches = st.lists(st.one_of(events, identified), min_size=1, max_size=12)


def write(folder: Path, name: str, batch: list[Event]) -> None:
    """Add a file to the log; rows are spelled so that all columns have their names."""
    path = folder / "log" / name
    if name.endswith(".parquet"):
        support.write_parquet(path, batch)
    elif ".jsonl" in name:
        (support.write_gzip if name.endswith(".gz") else support.write_lines)(path, [one.line() for one in batch])
    else:
        write_delimited(path, batch)
    os.utime(path, (ORIGIN + 10, ORIGIN + 10))


def store_of(folder: Path) -> Store:
    return Store(str(folder / "store"))


def bring_in(folder: Path, **changes: Any) -> PipelineConfig:
    config = support.config(folder, **{"clock_tolerance_minutes": 5} | changes)
    ingest(store_of(folder), config, registry=CollectorRegistry())
    return config


def letters_left(store: Store) -> Counter[str]:
    """How many letters by reason no retry has read; by the names that commits give, not by the code of a retry."""
    read = {key for key, span in LogState.open(store).sources.items() if span.is_done}
    log, found = support.CommitLog(store), Counter[str]()
    for number in range(log.newest() + 1):
        for file in log.get(number).letters:
            found += Counter({reason: n for reason, n in file.reasons.items() if f"{file.name}#{reason}" not in read})
    return found


@settings(
    max_examples=size.of(8, 200), deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(
    first=batches,
    parts=st.lists(st.tuples(st.sampled_from(FORMATS), batches, st.sampled_from(WRONG)), min_size=1, max_size=3),
    tries=st.lists(st.tuples(st.sampled_from([{}, *WRONG]), st.integers(0, 40)), max_size=3),
    run_bytes=st.sampled_from([300, 1 << 30]),
)
def test_rows_refused_under_wrong_settings_count_once_under_the_right_ones(
    first: list[Event],
    parts: list[tuple[str, list[Event], dict[str, Any]]],
    tries: list[tuple[dict[str, Any], int]],
    run_bytes: int,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, written = Path(name), list(first)
        write(folder, "first.jsonl", first)
        bring_in(folder)
        for number, (kind, batch, wrong) in enumerate(parts):
            write(folder, f"part-{number}.{kind}", batch)
            written += batch
            bring_in(folder, **wrong)
        right, store = support.config(folder, run_bytes=run_bytes, clock_tolerance_minutes=5), store_of(folder)
        # A refused column of CSV and Parquet is one letter for all rows, whose text it does not have.
        whole = not any(kind not in {"jsonl", "jsonl.gz"} and "columns" in wrong for kind, _, wrong in parts)
        for wrong, change in tries:
            open_letters = letters_left(store).total()
            # Beam wraps what a transform raises.
            with suppress(KilledError, RuntimeError), killed_at(change):
                retry(store, support.config(folder, **{"run_bytes": run_bytes} | wrong))
            assert letters_left(store).total() <= open_letters
        last = retry(store, right)
        assert aging.leftovers(store) == []
        assert set(last.left) <= (set() if whole else {"without_row"})
        assert not last.refused
        support.check_counts(store)
        if len({(one.user, one.item, one.second) for one in written}) == len(written):
            # The oracle takes equal events for one.
            support.check_histories(store, right.history_length)
        if whole:
            assert support.stored_events(store) == support.expected_events(written)
            counts = [manifest.counts for manifest in support.committed(store)]
            assert sum(c.events + c.duplicates + c.ignored for c in counts) == len(written)
            assert not letters_left(store)
        before = LogState.open(store).number
        again = retry(store, right)
        assert (again.letters, again.valid) == (sum(again.left.values()), 0)
        assert LogState.open(store).number == before
        assert all(span.is_done for span in LogState.open(store).sources.values())
        # The log itself has nothing more to say.
        bring_in(folder)
        assert LogState.open(store).number == before
