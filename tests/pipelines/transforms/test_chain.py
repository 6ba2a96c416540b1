"""However a log is cut, ordered, read and read again, each event is committed once, with the right history."""

import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import LogState, Store
from weir.pipelines.batch.ingest import _Driver
from weir.pipelines.batch.run_once import run_once
from weir.pipelines.metrics import PipelineMetrics
from weir.pipelines.runs.run import Base
from weir.readers import Reading

FEATURES = {"categorical": ["genre"], "dense": ["price"]}


def with_features(event: Event) -> Event:
    number = len(event.user) + int(event.item[-1]) + event.second
    genres, prices = (None, (), ("jazz",), ("rock", "pop")), (None, 0.5, -2.0)
    return replace(event, genre=genres[number % 4], price=prices[number % 3])


events = st.builds(
    Event,
    user=st.sampled_from(["ann", "bob", "cyd", "Ürsel"]),
    item=st.sampled_from([f"item-{number}" for number in range(6)]),
    second=st.integers(0, 60),
    type=st.sampled_from(["click", "click", "skip", "view"]),
).map(with_features)
identified = events.flatmap(
    # The id tells all about the event, so that whichever copy is kept is the same.
    lambda event: st.just(replace(event, event_id=f"{event.user}/{event.item}/{event.second}/{event.type}"))
)
batches = st.lists(st.one_of(events, identified), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["a.jsonl", "b/c.json"]), batches),
        st.tuples(st.sampled_from(["gzip", "parquet"]), batches),
        st.tuples(st.just("run"), st.booleans()),
        st.tuples(st.just("run"), st.booleans()),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("again"), st.booleans()),
    ),
    min_size=1,
    max_size=9,
)


def driver(store: Store, config: Any) -> _Driver:
    """Start as a process does that knows nothing but the commits."""
    return _Driver(store, config, PipelineMetrics(CollectorRegistry()), None, threading.Event())


def from_zero(store: Store, config: Any, flush: bool) -> None:
    """Run as if no position were known."""
    plan = support.plan_of(store, config, flush=flush, only_whole_lines=True)
    readings = tuple(Reading(partition) for partition in support.discover(config.log))
    partitions = {reading.partition.key: reading.partition for reading in readings}
    base = Base.of(LogState.open(store), partitions)
    refused = {key: positions for key in partitions if len(positions := support.dead_positions(store, key))}
    run = replace(plan.run, base=base, partitions=partitions, refused=refused)
    run_once(store, config, replace(plan, readings=readings, run=run))


def add(log: Path, kind: str, number: int, batch: list[Event]) -> None:
    if kind == "gzip":
        support.write_gzip(log / f"{number:03d}.jsonl.gz", [event.line() for event in batch])
    elif kind == "parquet":
        support.write_parquet(log / f"{number:03d}.parquet", batch)
    else:
        support.write_lines(log / kind, [event.line() for event in batch])


# Another writer commits what this one keeps in hand, and this one has nothing to commit.
@example([("a.jsonl", [with_features(Event("ann", "item-0", 0))]), ("again", True), ("run", False)], 60, 0, "item")
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps, st.sampled_from([60, 200, 10_000]), st.integers(0, 2), st.sampled_from(["item", "user"]))
def test_any_cut_of_a_log_gives_the_events_and_histories_of_the_oracle(
    todo: list[Any], chunk_bytes: int, late_items: int, of: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, written = Path(name), list[Event]()
        (folder / "log").mkdir()
        named = {f"{of}_features": FEATURES}
        config = support.config(folder, chunk_bytes=chunk_bytes, late_items=late_items, **named)
        store = Store(str(folder / "store"))
        process = driver(store, config)
        for number, (kind, value) in enumerate(todo):
            if kind in {"run", "restart"}:
                # A process that goes on has rows in hand; one that starts reads them again.
                process = driver(store, config) if kind == "restart" else process
                process.catch_up(support.discover(config.log), flush=value, only_whole_lines=True)
            elif kind == "again":
                from_zero(store, config, value)
            else:
                add(folder / "log", kind, number, value)
                written += value
        process.catch_up(support.discover(config.log), flush=True, only_whole_lines=False)
        # Where another had been faster, the process has started over and is due once more.
        process.catch_up(support.discover(config.log), flush=True, only_whole_lines=False)
        assert support.stored_events(store) == support.expected_events(written)
        support.check_counts(store)
        (support.check_features if of == "item" else support.check_user_features)(store, written)
        support.check_histories(store, config.history_length, late_items=late_items)
        counts = [manifest.counts for manifest in support.committed(store)]
        assert sum(c.events + c.duplicates + c.ignored for c in counts) == len(written)
        assert all(span.is_done for span in LogState.open(store).sources.values())
        last = len(counts)
        from_zero(store, config, flush=True)
        assert len(support.committed(store)) == last


def test_what_was_heard_of_another_writer_between_runs_is_not_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    config, store = support.config(tmp_path), Store(str(tmp_path / "store"))
    events = [Event("ann", "item-0", 0), Event("ann", "item-1", 1)]
    process = driver(store, config)
    add(tmp_path / "log", "a.jsonl", 0, events[:1])
    process.catch_up(support.discover(config.log), flush=False, only_whole_lines=True)
    from_zero(store, config, flush=True)
    # As where a merge of histories is committed.
    process._state.catch_up(process._commits)
    add(tmp_path / "log", "a.jsonl", 1, events[1:])
    process.catch_up(support.discover(config.log), flush=True, only_whole_lines=True)
    assert support.stored_events(store) == support.expected_events(events)
    support.check_counts(store)
