"""Speed and precision of the frequency estimators, peers side by side in one run.

    python -m benchmarks.sketches speed       # updates per second, against Apache DataSketches
    python -m benchmarks.sketches accuracy    # error of log Q on Zipf streams, in equal memory
    python -m benchmarks.sketches drift       # changing popularity: the bank against single half-lives
    python -m benchmarks.sketches windows     # the same stream in windows: the trainer's view of recent frequencies
    python -m benchmarks.sketches monitor     # the estimated error against the true one, also merged (WEIR_DATA)
    python -m benchmarks.sketches sizing      # what `sized_for` promises and what is reached (WEIR_DATA)

The error W is the mean of |estimated log Q - true log Q| over occurrences. The peer needs ``pip install datasketches``.
Every command takes seconds to a minute on one core; set OMP_NUM_THREADS=1.
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks.harness import DATA, F64, I64, Data, command_line, head, row, zipf_ranks
from weir.contracts import hash_ids
from weir.sketches import (
    CountMinSketch,
    DistinctCounter,
    ExactCounter,
    FrequencyBank,
    FrequencyView,
    GapEstimator,
)
from weir.sketches import log_q_error as estimated_error
from weir.sketches.protocol import log_probability

app = command_line(__doc__)
BATCH = 65_536
MIB = 1 << 20
Events = Annotated[int, typer.Option(help="events in the stream")]
Items = Annotated[int, typer.Option(help="items in the catalogue")]


class Peer:
    """`count_min_sketch` of Apache DataSketches, fed by distinct keys and weights, which is its fastest way."""

    def __init__(self, width: int, depth: int) -> None:
        import datasketches  # noqa: PLC0415  only this benchmark needs it

        self._sketch = datasketches.count_min_sketch(depth, width)

    def update(self, keys: I64) -> None:
        """Count a batch."""
        update = self._sketch.update
        distinct, counts = np.unique(keys, return_counts=True)
        for key, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            update(key, count)

    def log_q(self, keys: I64) -> F64:
        """Log of the estimated share of each key."""
        counts = np.array([self._sketch.get_estimate(key) for key in keys.tolist()])
        log_q: F64 = np.log(counts) - math.log(self._sketch.total_weight)
        return log_q


def zipf(items: int, events: int, exponent: float) -> I64:
    """Keys drawn from a Zipf law; the ids are consecutive numbers in random order of popularity."""
    rng = np.random.default_rng(0)
    return rng.permutation(items)[zipf_ranks(items, events, exponent, rng)[0]].astype(np.int64)


def batches(events: I64, size: int = BATCH) -> Iterator[I64]:
    """Consecutive pieces of a stream."""
    for start in range(0, events.size, size):
        yield events[start : start + size]


def fed(estimator: Any, events: I64, size: int = BATCH) -> Any:
    """Count a whole stream, batch by batch; return the estimator."""
    for batch in batches(events, size):
        estimator.update(batch)
    return estimator


def shares(events: I64) -> tuple[I64, F64]:
    """Return the distinct keys, and their shares of the stream."""
    keys, counts = np.unique(events, return_counts=True)
    return keys, counts / events.size


def error(estimator: Any, true: tuple[I64, F64]) -> float:
    """Return W, the occurrence-weighted mean absolute error of log Q."""
    keys, share = true
    return float((share * np.abs(estimator.log_q(keys) - np.log(share))).sum())


@app.command()
def speed(events: Events = 6_000_000, items: Items = 1_000_000) -> None:
    """Time updates of batches of 65,536 Zipf(1.05) keys; the estimators take turns of sixteen batches."""
    stream = zipf(items, events, 1.05)
    contenders: dict[str, Callable[[I64], None]] = {
        "Apache DataSketches, unique + weight": Peer(MIB, 4).update,
        "count-min, conservative": CountMinSketch(MIB, 4).update,
        "count-min, linear": CountMinSketch(MIB, 4, conservative=False).update,
        "exact": ExactCounter().update,
        "gap": GapEstimator(MIB, 4, 0.02).update,
        "bank of three": FrequencyBank([5e4, 2e5, 8e5], MIB, 4).update,
        "distinct (HyperLogLog++)": DistinctCounter().update,
    }
    seconds = dict.fromkeys(contenders, 0.0)
    for turn in batches(stream, 16 * BATCH):
        for name, update in contenders.items():
            start = time.process_time()
            for batch in batches(turn):
                update(batch)
            seconds[name] += time.process_time() - start
    peer = next(iter(seconds.values()))
    head("update, 2^20 x 4", "M events per CPU-second", "times the peer")
    for name, used in seconds.items():
        row(name, events / used / 1e6, peer / used)


@app.command()
def accuracy(events: Events = 10_000_000, items: Items = 1_000_000, mib: int = 4) -> None:
    """W on Zipf streams, every estimator in the same memory."""
    cells = mib * MIB // 4
    head("Zipf", "distinct", "conservative", "4 merged shards", "linear", "DataSketches", "gap, best alpha")
    for exponent in (0.8, 1.05, 1.3):
        stream = zipf(items, events, exponent)
        true = shares(stream)
        shards = merged(stream, np.arange(stream.size) * 4 // stream.size, cells // 4, batch=BATCH)
        rivals: list[Any] = [CountMinSketch(cells // 4), CountMinSketch(cells // 4, conservative=False)]
        rivals.append(Peer(cells // 8, 4))  # its cells take 8 bytes
        rivals += [GapEstimator(cells // 16, 4, alpha) for alpha in (0.01, 0.05, 0.2)]
        first, *errors = (error(fed(one, stream), true) for one in rivals)
        row(exponent, true[0].size, first, error(shards, true), *errors[:2], min(errors[2:]))


def drifting(items: int, epochs: int, epoch: int) -> Iterator[tuple[I64, F64]]:
    """Yield the events of each epoch, and the share in the epoch and the law of each event's item, (2, events).

    30 % of the items permute between epochs.
    """
    rng = np.random.default_rng(0)
    item_at = rng.permutation(items)
    for number in range(epochs):
        if number:
            moved = rng.choice(items, int(0.3 * items), replace=False)
            item_at[moved] = item_at[rng.permutation(moved)]
        ranks, law = zipf_ranks(items, epoch, 1.05, rng)
        yield item_at[ranks].astype(np.int64), np.stack([np.bincount(ranks)[ranks] / epoch, law[ranks]])


def drift_error(log_q: F64, truths: F64) -> F64:
    """Return the mean absolute error of log Q (n,) to each of two truths (2, n)."""
    errors: F64 = np.abs(log_q - np.log(truths)).mean(1)
    return errors


@app.command()
def drift(items: Items = 1_000_000, epochs: int = 10, epoch: int = 1_000_000, batch: int = 8192) -> None:
    """W of each batch just after it was counted, from the second epoch on; 30 % of the items permute every epoch."""
    stream = list(drifting(items, epochs, epoch))
    cells = MIB
    lives = [0.05 * epoch, 0.2 * epoch, 0.8 * epoch]
    head("4 MiB in all", "W to the share in the epoch", "W to the law")
    row("never decayed", *drift_errors(CountMinSketch(cells // 4), stream, batch, {}))
    for life in (*lives, 0.5 * epoch):
        bank = FrequencyBank([life], cells // 4)
        row(f"half-life {life / epoch:g} epochs", *drift_errors(bank, stream, batch, {"leave_one_out": True}))
    row("bank .05/.2/.8", *drift_errors(FrequencyBank(lives, cells // 8), stream, batch, {"leave_one_out": True}))
    row("bank, own occurrence kept", *drift_errors(FrequencyBank(lives, cells // 8), stream, batch, {}))


def drift_errors(estimator: Any, stream: list[tuple[I64, F64]], size: int, options: dict[str, bool]) -> list[float]:
    """Return errors to the epoch's shares and to the law, measured on every eighth batch."""
    errors = []
    for number, (events, truths) in enumerate(stream):
        for index, start in enumerate(range(0, events.size, size)):
            part = slice(start, start + size)
            estimator.update(events[part])
            if number and index % 8 == 0:
                errors.append(drift_error(estimator.log_q(events[part], **options), truths[:, part]))
    return [float(mean) for mean in np.mean(errors, axis=0)]


@app.command()
def windows(items: Items = 1_000_000, epochs: int = 10, epoch: int = 1_000_000, per_epoch: int = 20) -> None:
    """W of each window just after its sketch of 4 MiB was added to the view, from the second epoch on."""
    lives = [per_epoch * share for share in (0.05, 0.2, 0.8)]  # seconds, at one window a second
    views = {f"half-life {life:g} windows": FrequencyView(life) for life in lives}
    views["bank of the three"] = FrequencyView(tuple(lives))
    errors: dict[str, list[F64]] = {name: [] for name in views}
    for number, (events, truths) in enumerate(drifting(items, epochs, epoch)):
        for index, part in enumerate(np.array_split(np.arange(epoch), per_epoch)):
            sketch = CountMinSketch(MIB // 4)
            sketch.update(events[part])
            for name, view in views.items():
                view.add(sketch.to_bytes(), 1000 * (number * per_epoch + index))
                if number and index % 4 == 0:
                    log_q = log_probability(view.counts(events[part]), view.total, 0.5)
                    errors[name].append(drift_error(log_q, truths[:, part]))
    head(f"{per_epoch} windows per epoch", "W to the share in the epoch", "W to the law")
    for name, found in errors.items():
        row(name, *np.mean(found, axis=0).tolist())


def item_stream(data: Path, name: str) -> I64:
    """Keys of the items of a data set, in its order."""
    column = pq.read_table(data / name / "interactions.parquet", columns=["item_id"])["item_id"]
    return hash_ids(column.cast(pa.string()))


def shapes(data: Path) -> Iterator[tuple[str, I64]]:
    """Streams of different shapes; those of real data sets where they are at hand."""
    for exponent in (0.8, 1.05, 1.3):
        yield f"Zipf {exponent}", zipf(40_000, 300_000, exponent)
    rng = np.random.default_rng(0)
    yield "uniform", rng.integers(0, 20_000, 200_000)
    rare = rng.integers(10, 20_000, 300_000)
    yield "ten heavy", np.where(rng.random(rare.size) < 0.7, rng.integers(0, 10, rare.size), rare)
    for name in ("ml-small", "ml-1m", "gowalla"):
        if (data / name).is_dir():
            yield name, item_stream(data, name)


PARTS: dict[str, Callable[[I64], I64]] = {
    "whole": lambda stream: np.zeros(stream.size, dtype=np.int64),
    "by chance": lambda stream: np.random.default_rng(1).integers(0, 8, stream.size),
    "by time": lambda stream: np.arange(stream.size) * 8 // stream.size,
    "by key": lambda stream: stream * 2_654_435_761 >> 7 & 7,
}
"""Which of eight parts an event is counted in."""


@app.command()
def monitor(data: Data = DATA) -> None:
    """Compare the error estimated from phantoms with the true one: whole, and merged from eight parts."""
    head("stream", "cells per key", *(f"W, {how}" for how in PARTS), *(f"estimated / true, {how}" for how in PARTS))
    for name, stream in shapes(data):
        true = shares(stream)
        for cells_per_key in (1, 2, 4, 8):
            width = 1 << round(math.log2(cells_per_key * true[0].size / 4))
            made = [merged(stream, cut(stream), width) for cut in PARTS.values()]
            errors = [error(sketch, true) for sketch in made]
            ratios = [estimated_error(sketch) / found for sketch, found in zip(made, errors, strict=True)]
            row(name, 4 * width / true[0].size, *errors, *ratios)


def merged(stream: I64, part: I64, width: int, depth: int = 4, *, batch: int = 16_384) -> CountMinSketch:
    """Count every part apart, and merge."""
    whole = CountMinSketch(width, depth)
    for number in np.unique(part).tolist():
        whole.merge(fed(CountMinSketch(width, depth), stream[part == number], batch))
    return whole


@app.command()
def sizing(data: Data = DATA) -> None:
    """Compare what `sized_for` promises, from nothing or the counts of the stream, with what is reached."""
    head("stream", "promised", "counts", "KiB", "conservative W", "by key, merged", "linear W", "times the smallest")
    for name, stream in shapes(data):
        true = shares(stream)
        for promised in (0.2, 0.05, 0.01):
            smallest = smallest_bytes(stream, promised)
            for label, counts in (("unknown", None), ("known", true[1])):
                sized = CountMinSketch.sized_for(true[0].size, promised, counts=counts)
                linear = CountMinSketch(sized.width, sized.depth, conservative=False)
                by_key = merged(stream, PARTS["by key"](stream), sized.width, sized.depth)
                errors = [error(one, true) for one in (fed(sized, stream), by_key, fed(linear, stream))]
                row(name, promised, label, sized.nbytes >> 10, *errors, sized.nbytes / smallest)


def smallest_bytes(stream: I64, wanted: float) -> int:
    """Bytes of the smallest conservative sketch that happens to reach an error on a stream counted whole."""
    true = shares(stream)
    for cells, depth in sorted((depth << bits, depth) for depth in (2, 3, 4) for bits in range(4, 21)):
        sketch = CountMinSketch(cells // depth, depth)
        if error(fed(sketch, stream), true) <= wanted:
            return sketch.nbytes
    raise ValueError(f"no sketch of up to 16 MiB reaches {wanted}")


if __name__ == "__main__":
    app()
