"""Trainer states of any size, as after a first window."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness import I64
from weir.contracts import FeatureNames, ItemKeys, WindowManifest, hash_ids
from weir.sketches import CountMinSketch
from weir.trainer.config import TrainerConfig
from weir.trainer.items.table import RowChanges, TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.starting import start_features
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.seeds import Purpose, generator

_FEATURES: Final = FeatureNames(categorical=("tags",), dense=("price",))


def item_id(number: int) -> str:
    """Return the id of an item of a filled state."""
    return f"item-{number:08d}"


def filled(
    config: TrainerConfig, items: int, events: I64 | None = None, workers: Workers | None = None
) -> tuple[TrainerState, bytes]:
    """Return a state that knows so many items, and the sketch of its only window.

    In the window each item occurred once, or as often as its number occurs in `events`.
    """
    state = TrainerState.fresh(config, workers.device if workers else None, workers=workers)
    ids = np.array([item_id(number) for number in range(items)], object)
    keys, sketch = ItemKeys(hash_ids(ids.tolist())), CountMinSketch(1 << 16)
    sketch.update(keys if events is None else keys[events])
    admit(state, keys, ids, 0)
    state.frequencies.add(sketch.to_bytes(), 0)
    state.counts.read_all()
    state.position.trained_sequence = 0
    return state, sketch.to_bytes()


def count(state: TrainerState, sketch: bytes, keys: ItemKeys, event_ms: int, changes: RowChanges) -> None:
    """Take in the sketch of a window with the items `keys`, which all have rows."""
    state.frequencies.add(sketch, event_ms)
    state.counts.follow(state.table.rows(keys), state.frequencies.estimates(keys), changes)


def describe(state: TrainerState, keys: ItemKeys, changes: RowChanges) -> None:
    """Let a window say of items, which all have rows, that each has one to three tags and a price."""
    featured = state.featured or start_features(state)
    tags, counts = np.char.add("tag", (keys % 1000).astype(str)).astype(object), keys % 3 + 1
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    items = pa.table({"tags": pa.ListArray.from_arrays(offsets, np.repeat(tags, counts)), "price": keys % 97 / 7})
    window = WindowManifest.model_construct(item_features=_FEATURES, max_event_ms=0)  # type: ignore[call-arg]
    featured.ingest_window(window, state.table.rows_alike(keys), items, changes, state.table.capacity)


def admit(state: TrainerState, keys: ItemKeys, ids: npt.NDArray[np.object_], sequence: int) -> TableRows:
    """Give rows and fresh embeddings to the items that have none; return these rows."""
    admitted = state.table.admit(keys, ids, sequence)
    state.embeddings.grow(state.table.capacity)
    state.embeddings.initialise(admitted, generator(state.config.seed, Purpose.ROWS, sequence))
    return admitted
