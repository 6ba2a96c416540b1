"""An engine that does what real ones do: brings windows again, dies, is thought dead and goes on, beside others."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from secrets import token_hex

import numpy as np
import pyarrow as pa

from tests.readers.files import ORIGIN, Event
from weir.contracts import INTERACTION_SCHEMA, CommitLog, LogState, SourceSpan, Store
from weir.pipelines.config import PipelineConfig
from weir.pipelines.layout import open_layout
from weir.pipelines.runs.run_registry import append
from weir.pipelines.stream.committer import commit_window
from weir.pipelines.stream.reader import Batch
from weir.pipelines.stream.slices import Slice, slices_of
from weir.readers import DeadLetter, Fault, Reason

END_OF_TIME = 10**15


@dataclass
class Partition:
    """Rows by offset: an event, a string for what is refused, None for a message without a value; others are gaps."""

    key: str
    rows: dict[int, Event | str | None]

    @property
    def size(self) -> int:
        return max(self.rows, default=-1) + 1

    def batch(self, start: int, stop: int, watermark_ms: int, job: str = "job") -> Batch:
        inside = {at: row for at, row in self.rows.items() if start <= at < stop}
        letters = tuple(
            DeadLetter.of(self.key, at, Fault(Reason.MALFORMED_JSON, row), row.encode())
            for at, row in inside.items()
            if isinstance(row, str)
        )
        skipped = np.array([at for at, row in inside.items() if row is None], np.int64)
        rows = [_row(at, row) for at, row in inside.items() if isinstance(row, Event)]
        valid = pa.RecordBatch.from_pylist(rows, INTERACTION_SCHEMA)
        return Batch(self.key, job, start, stop, watermark_ms, self.size, valid, letters, skipped)


def _row(position: int, event: Event) -> dict[str, object]:
    label = {"click": 1, "skip": -1, "view": 0}[event.type]
    fields = {"user_id": event.user, "item_id": event.item, "timestamp": (ORIGIN + event.second) * 1000}
    return fields | {"event_id": event.event_id, "label": label, "weight": 1.0, "position": position}


def random_log(random: Random, events: int) -> list[Partition]:
    """Three partitions, one of them quiet; 5 % late, 5 % duplicates, 5 % refused, 5 % without a value, and gaps."""
    rows: list[dict[int, Event | str | None]] = [{}, {}, {}]
    ends, copies = [random.randrange(5) for _ in rows], list[Event]()
    for number in range(events):
        place = random.choices(range(3), [10, 10, 1])[0]
        second = number // 4 + random.randrange(4) - (random.randrange(60) if random.random() < 0.05 else 0)
        event_id = f"e{number}" if random.random() < 0.5 else None
        kind = random.choices(["click", "skip", "view"], [8, 1, 1])[0]
        event = Event(f"u{random.randrange(9)}", f"i{number}", max(0, second), kind, event_id)
        chance = random.random()
        row: Event | str | None = event
        if chance < 0.05 and copies:
            row = random.choice(copies)
        elif chance < 0.1:
            row = "no event"
        elif chance < 0.15:
            row = None
        elif event_id is not None:
            copies.append(event)
        rows[place][ends[place]] = row
        ends[place] += 1 + (random.randrange(4) if random.random() < 0.1 else 0)
    return [Partition(f"kafka/c/t/id/{number}", found) for number, found in enumerate(rows)]


@dataclass
class Job:
    """One job: readers of all partitions and the windows that they have not completed; its state dies with it."""

    store: Store
    config: PipelineConfig
    log: list[Partition]
    random: Random
    at: dict[str, int] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    windows: dict[int, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    brought: list[tuple[int, list[Slice]]] = field(default_factory=list)
    name: str = field(default_factory=lambda: token_hex(4))

    def __post_init__(self) -> None:
        state = LogState.open(self.store)
        newest = state.starts[-1] + self.config.window_ms if state.starts else 0
        self.at = {one.key: state.sources[one.key].resume for one in self.log}
        self.watermarks = dict.fromkeys(self.at, newest)

    @property
    def is_done(self) -> bool:
        return not self.windows

    def read(self, *, to_end: bool = False) -> None:
        """Read some of a partition."""
        for one in self.log if to_end else [self.random.choice(self.log)]:
            start = self.at[one.key]
            stop = one.size if to_end else min(one.size, start + self.random.randrange(1, 30))
            if stop > start:
                self._take(one.batch(start, stop, self.watermarks[one.key], self.name))
                self.at[one.key] = stop

    def _take(self, batch: Batch) -> None:
        for start_ms, one in slices_of(batch, self.config.window_ms, ""):
            self.windows[start_ms].append(one)
        times = batch.rows.column("timestamp").to_pylist()
        lateness = 1000 * self.random.choice([0, 2, 15])
        reached = max(times, default=0) - lateness
        self.watermarks[batch.partition] = max(self.watermarks[batch.partition], reached)

    def advance(self) -> None:
        """Let a partition that is quiet follow the others, as an answer of the broker allows."""
        for one in self.log:
            if self.at[one.key] >= one.size:
                self.watermarks[one.key] = max(self.watermarks.values())

    def due(self, *, to_end: bool = False) -> Iterator[int]:
        """Yield the windows that are complete, in order of time."""
        watermark = END_OF_TIME if to_end else min(self.watermarks.values())
        yield from sorted(at for at in self.windows if at + self.config.window_ms <= watermark)

    def commit(self, *, to_end: bool = False) -> None:
        """Bring what is complete to the committer; now and then what was brought before, again."""
        for start_ms in self.due(to_end=to_end):
            slices = self.windows[start_ms]
            self.random.shuffle(slices)
            commit_window(self.store, self.config, start_ms, slices)
            self.brought.append((start_ms, self.windows.pop(start_ms)))
        if self.brought and self.random.random() < 0.3:
            commit_window(self.store, self.config, *self.random.choice(self.brought))


def start(store: Store, config: PipelineConfig, log: list[Partition]) -> None:
    """Commit where partitions start, as the driver does."""
    open_layout(store, config)
    spans = {one.key: SourceSpan(start=0, stop=at, resume=at, size=0, first=at) for one in log for at in [0]}
    append(CommitLog(store), LogState.open(store), sources=spans)


def settings(folder: Path) -> PipelineConfig:
    return PipelineConfig(
        log=str(folder / "log"),
        event_types={"click": "positive", "skip": "negative", "view": "ignore"},
        window_seconds=10,
        history_length=3,
        late_items=2,
        user_shards=2,
        sketch={"width": 256, "depth": 2},
        metrics_port=0,
    )


def truth(log: list[Partition]) -> tuple[list[Event], dict[str, list[int]], dict[str, int]]:
    """Events in any order, positions of refused rows by partition, and messages without a value."""
    events = [row for one in log for row in one.rows.values() if isinstance(row, Event)]
    refused = {one.key: [at for at, row in one.rows.items() if isinstance(row, str)] for one in log}
    return events, refused, {one.key: Counter(one.rows.values())[None] for one in log}
