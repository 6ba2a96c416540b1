"""Streams of different shapes, generated and real, and sketches that were merged in the ways that occur."""

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.sketches.support import I64, zipf
from weir.sketches import CountMinSketch

DATA: Final = Path(os.environ.get("WEIR_DATA", "../shared/data"))
BATCH: Final = 16_384


def _few_heavy() -> I64:
    """Ten items with 70 % of the events."""
    rng = np.random.default_rng(0)
    rare = rng.integers(10, 20_000, 300_000)
    return np.where(rng.random(rare.size) < 0.7, rng.integers(0, 10, rare.size), rare)


GENERATED: Final[dict[str, Callable[[], I64]]] = {
    "zipf .8": lambda: zipf(40_000, 300_000, 0.8),
    "zipf 1.05": lambda: zipf(40_000, 300_000, 1.05),
    "zipf 1.3": lambda: zipf(40_000, 300_000, 1.3),
    "uniform": lambda: np.random.default_rng(0).integers(0, 20_000, 200_000),
    "few heavy": _few_heavy,
}
LOGS: Final = {
    "gowalla": DATA / "gowalla" / "interactions.parquet",
    "ml-1m": DATA / "ml-1m" / "interactions.parquet",
    "ml-small": DATA / "ml-small" / "interactions.parquet",
    "amazon-beauty": DATA / "amazon-beauty" / "leave-one-out-order.txt.gz",
}

NAMES: Final = [
    *GENERATED,
    *(
        pytest.param(
            name,
            marks=[
                pytest.mark.data,
                pytest.mark.skipif(
                    not path.exists(), reason=f"{path} is absent; point WEIR_DATA at the folder of the data sets"
                ),
            ],
        )
        for name, path in LOGS.items()
    ),
]


def stream(name: str) -> I64:
    """Return the item keys of a stream in its order."""
    if name in GENERATED:
        return GENERATED[name]()
    path = LOGS[name]
    if path.suffix == ".gz":
        with gzip.open(path, "rt") as lines:
            return np.array([int(line.split()[1]) for line in lines], dtype=np.int64)
    items: I64 = pq.read_table(path, columns=["item_id"])["item_id"].to_numpy().astype(np.int64)
    return items


def parts(events: I64, how: str) -> list[I64]:
    """Cut a stream into what is counted apart: not at all, by chance, by time, or by key."""
    if how == "whole":
        return [events]
    if how == "windows":
        return np.array_split(events, 8)
    of = np.random.default_rng(1).integers(0, 8, events.size) if how == "shards" else (events * 2_654_435_761 >> 7) % 8
    return [events[of == part] for part in range(8)]


def counted(events: I64, how: str, make: Callable[[], CountMinSketch]) -> CountMinSketch:
    """Count the parts of a stream apart and merge them."""
    whole = make()
    for number, part in enumerate(parts(events, how)):
        sketch = make() if number else whole
        for batch in _batches(part):
            sketch.update(batch)
        if number:
            whole.merge(sketch)
    return whole


def _batches(events: I64) -> Iterator[I64]:
    for start in range(0, events.size, BATCH):
        yield events[start : start + BATCH]
