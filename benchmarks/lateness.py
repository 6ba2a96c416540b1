"""What waiting for late events costs and buys: panes, order and recall by window length and allowed lateness.

    OMP_NUM_THREADS=1 python -m benchmarks.lateness                  # windows of 10 s, lateness 0 to 300 s
    OMP_NUM_THREADS=1 python -m benchmarks.lateness --window 60

A generated log is played at --rate events a second in four partitions. An event arrives after an exponential delay,
one in a hundred after a long one, and partition p is read p seconds late. Readers poll each half second, with the
watermark, the slices and the commits of `weir stream`; the trainer then tests on and learns each pane with its default
settings and a small tower. `follow` counts the panes that `weir ingest --follow` makes of the same arrivals, with a run
each second.
"""

import logging
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import typer

from benchmarks.harness import I64, command_line, cpu_of_call, head, row
from weir.contracts import CommitLog, Label, LogState, SourceSpan, Store, WindowLog
from weir.contracts.base import columns
from weir.demo.generator import GENERATED, GeneratorConfig, generate
from weir.pipelines.config import PipelineConfig
from weir.pipelines.histories.compaction import HistoryKeeper
from weir.pipelines.layout import open_layout
from weir.pipelines.runs.run_registry import append
from weir.pipelines.stream.committer import commit_window
from weir.pipelines.stream.reader import Batch
from weir.pipelines.stream.slices import Slice, slices_of
from weir.pipelines.stream.watermark import Watermark
from weir.readers import Block, BlockId, Lines, Validator
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.progress import Evaluation
from weir.trainer.train import train

app = command_line(__doc__)

PARTITIONS: Final = 4
LATENESS: Final = (0, 2, 5, 30, 60, 300)
_POLL_MS: Final = 500
_RUN_MS: Final = 1000
_HISTORY: Final = 20
_ORIGIN_MS: Final = 1_767_225_600_000
_END: Final = 1 << 60


@dataclass(frozen=True)
class Arrivals:
    """Valid rows of each partition in order of arrival, with the time (ms) at which each arrives, (n,)."""

    rows: list[pa.RecordBatch]
    at: list[I64]

    @classmethod
    def of(cls, events: int, rate: float, delay: float, seed: int) -> "Arrivals":
        """Return a generated log of `events`, `rate` a second, delayed by `delay` seconds on average."""
        settings = GeneratorConfig(events=events, users=events // 40, items=400, days=1, late=0, duplicates=0)
        lines = [line for line in generate(settings).lines.split(b"\n") if line]
        content = Lines(lines, np.arange(len(lines)))
        checks = Validator(PipelineConfig(**GENERATED))
        rows = checks.validate(Block(BlockId("log", 0), content, (), len(lines)))[0].rows
        rows = rows.take(pa.array(np.argsort(rows[columns.TIMESTAMP].to_numpy(), kind="stable")))
        draw, count = np.random.default_rng(seed), len(rows)
        times = _ORIGIN_MS + (1000 * np.arange(count) / rate).astype(np.int64)
        mean = np.where(draw.random(count) < 0.01, 30 * delay, delay)
        place = np.array([hash(user) % PARTITIONS for user in np.unique(rows[columns.USER_ID], return_inverse=True)[1]])
        arrival = times + (1000 * draw.exponential(mean)).astype(np.int64) + 1000 * place
        rows = rows.set_column(rows.schema.get_field_index(columns.TIMESTAMP), columns.TIMESTAMP, pa.array(times))
        parts, at = [], []
        for partition in range(PARTITIONS):
            mine = np.flatnonzero(place == partition)
            mine = mine[np.argsort(arrival[mine], kind="stable")]
            part = rows.take(pa.array(mine))
            where = part.schema.get_field_index(columns.POSITION)
            parts.append(part.set_column(where, columns.POSITION, pa.array(np.arange(len(mine)))))
            at.append(arrival[mine])
        return cls(parts, at)

    def times(self) -> I64:
        """Return the event time of every row."""
        return np.concatenate([part[columns.TIMESTAMP].to_numpy() for part in self.rows])


@app.command()
def run(
    *,
    window: Annotated[int, typer.Option(min=1, help="length of a window, seconds")] = 10,
    lateness: Annotated[list[int] | None, typer.Option(help="allowed lateness, seconds; may be repeated")] = None,
    events: Annotated[int, typer.Option(min=1000)] = 6_000,
    rate: Annotated[float, typer.Option(help="events a second")] = 10.0,
    delay: Annotated[float, typer.Option(help="mean delay of an event, seconds")] = 2.0,
    seed: int = 0,
) -> None:
    """Print a row for each lateness."""
    logging.disable(logging.WARNING)
    arrivals = Arrivals.of(events, rate, delay, seed)
    head(
        *("window", "lateness", "late events", "panes a window", "panes, follow", "end to commit p50", "p95"),
        *("wrong histories", "without", "recall@20", "popularity", "commits CPU s", "trainer CPU s"),
    )
    for allowed in lateness or LATENESS:
        with tempfile.TemporaryDirectory() as name:
            row(window, allowed, *_measured(arrivals, Path(name), window, allowed))


def _measured(arrivals: Arrivals, folder: Path, window: int, allowed: int) -> list[str]:
    store, config = Store(str(folder / "store")), _settings(window, allowed)
    started = time.process_time()
    waits = play(store, config, arrivals)
    committing = time.process_time() - started
    panes, times = WindowLog(store).committed(), arrivals.times()
    first = len({pane.start_ms for pane in panes})
    assert sum(pane.counts.events for pane in panes) == len(times)  # noqa: S101 - or something else was measured
    wrong, without, positives = _histories(store)
    settings = TrainerConfig(tower={"dimension": 32, "history_length": _HISTORY}, metrics_port=0)
    recalls: list[Evaluation] = []
    learning = cpu_of_call(lambda: train(store, settings, report=lambda one: _note(recalls, one.evaluation)))
    # The first third is a cold start.
    tested = [one for one in recalls if one.recall and one.sequence >= len(panes) // 3]
    cases = sum(one.events for one in tested)
    return [
        f"{sum(pane.counts.late for pane in panes) / len(times):.2%}",
        f"{len(panes) / first:.2f}",
        f"{_followed(arrivals, 1000 * window, 1000 * allowed) / first:.2f}",
        *(f"{np.quantile(waits, share):.1f}" for share in (0.5, 0.95)),
        f"{wrong / positives:.2%}",
        f"{without / positives:.2%}",
        f"{sum(one.recall[20] * one.events for one in tested) / cases:.4f}",
        f"{sum(one.popularity_recall[20] * one.events for one in tested) / cases:.4f}",
        f"{committing:.1f}",
        f"{learning:.1f}",
    ]


def _settings(window: int, allowed: int) -> PipelineConfig:
    ways: dict[str, Any] = {"history_length": _HISTORY, "user_shards": 2, "metrics_port": 0, "log": "topic"}
    return PipelineConfig(window_seconds=window, allowed_lateness_seconds=allowed, **ways, **GENERATED)


def _note(recalls: list[Evaluation], one: Evaluation | None) -> None:
    if one is not None and (not recalls or recalls[-1].sequence < one.sequence):
        recalls.append(one)


def play(store: Store, config: PipelineConfig, arrivals: Arrivals) -> list[float]:
    """Commit the arrivals as readers and committer of a stream do; return the seconds from end to commit of windows."""
    open_layout(store, config)
    keys = [f"kafka/c/t/id/{number}" for number in range(PARTITIONS)]
    append(
        CommitLog(store),
        LogState.open(store),
        sources={key: SourceSpan(start=0, stop=0, resume=0, size=0) for key in keys},
    )
    keeper = HistoryKeeper(store, config, LogState.open(store))
    marks = [Watermark(0, 1000 * config.allowed_lateness_seconds, 0) for _ in keys]
    windows, read, waits = defaultdict[int, list[Slice]](list), [0] * PARTITIONS, list[float]()
    last = max(int(at[-1]) for at in arrivals.at)
    for now in range(_ORIGIN_MS, last + 2 * _POLL_MS, _POLL_MS):
        for place, key in enumerate(keys):
            stop = int(np.searchsorted(arrivals.at[place], now, side="right"))
            if stop > read[place]:
                rows = arrivals.rows[place].slice(read[place], stop - read[place])
                batch = Batch(*(key, "job", read[place], stop, marks[place].ms, stop, rows, (), np.empty(0, np.int64)))
                for start_ms, one in slices_of(batch, config.window_ms, ""):
                    windows[start_ms].append(one)
                marks[place].read(int(rows[columns.TIMESTAMP].to_numpy().max()), None, now)
                read[place] = stop
        reached = min(mark.ms for mark in marks) if now <= last else _END
        for start_ms in sorted(at for at in windows if at + config.window_ms <= reached):
            commit_window(store, config, start_ms, windows.pop(start_ms))
            if start_ms >= _ORIGIN_MS and reached < _END:
                waits.append((now - start_ms - config.window_ms) / 1000)
        keeper.state.catch_up(CommitLog(store))
        keeper.settle()
    keeper.end()
    return waits or [float("nan")]


def _followed(arrivals: Arrivals, window_ms: int, lateness_ms: int) -> int:
    """Return the panes of runs each second that close windows by the newest event of all partitions."""
    times, at = arrivals.times(), np.concatenate(arrivals.at)
    waiting, newest, panes = np.empty(0, np.int64), 0, 0
    runs = (at - _ORIGIN_MS) // _RUN_MS
    for run in range(int(runs.max()) + 1):
        fresh = times[runs == run]
        waiting = np.concatenate([waiting, fresh])
        newest = max(newest, int(fresh.max(initial=0)))
        closed = waiting // window_ms * window_ms + window_ms <= newest - lateness_ms
        panes += len(np.unique(waiting[closed] // window_ms))
        waiting = waiting[~closed]
    return panes + len(np.unique(waiting // window_ms))


def _histories(store: Store) -> tuple[int, int, int]:
    """Count positives whose history is not the complete one, those without any although there was one, and all."""
    log = WindowLog(store)
    wanted = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.HISTORY, columns.LABEL]
    rows = pa.concat_tables([log.all_examples(pane, wanted) for pane in log.committed()])
    rows = rows.filter(pa.array(rows[columns.LABEL].to_numpy() == Label.POSITIVE))
    users, items, times = (rows[name].to_numpy() for name in (columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP))
    stored = rows[columns.HISTORY].combine_chunks().flatten().to_numpy().reshape(len(rows), -1)
    order, wrong, without = np.lexsort((times, users)), 0, 0
    known: list[int] = []
    for number, at in enumerate(order):
        known = known if number and users[order[number - 1]] == users[at] else []
        found = stored[at][stored[at] != 0].tolist()
        wrong += found != known[-stored.shape[1] :]
        without += bool(known) and not found
        known.append(int(items[at]))
    return wrong, without, len(rows)


if __name__ == "__main__":
    app()
