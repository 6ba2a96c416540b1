"""Read interactions from a store: the committed windows of the pipeline, each event once."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts import Label, Store, WindowLog, columns
from weir.trainer.offline.data import Interactions, InteractionsError

__all__ = ["is_store", "read_store"]

_COMMITTED: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.LABEL]


def is_store(path: str) -> bool:
    """Return whether a path or URL is a store rather than a log."""
    return Store(path).exists("STORE.json")


def read_store(path: str, *, newest: int | None = None) -> Interactions:
    """Return the positive interactions of all retained windows, in order of time.

    Users are identified by their keys, since windows do not store their ids; items by their ids.

    Parameters
    ----------
    newest
        Return only this many of the newest events; None: all.

    Raises
    ------
    InteractionsError
        If no window has a positive interaction.
    CorruptArtefactError
        If a file is missing or corrupt.
    """
    log, examples, named = WindowLog(Store(path)), list[pa.Table](), dict[int, str]()
    for manifest in log.follow():
        examples.append(log.all_examples(manifest, _COMMITTED))
        items = log.items(manifest).select([columns.ITEM_KEY, columns.ITEM_ID])
        named.update(zip(*(column.to_pylist() for column in items.columns), strict=True))
    events = pa.concat_tables(examples) if examples else None
    if events is not None:
        events = events.filter(pa.array(events[columns.LABEL].to_numpy() == int(Label.POSITIVE)))
    if events is None or not len(events):
        raise InteractionsError(f"{path}: the store has no window with a positive interaction; at least one is needed")
    order = np.argsort(events[columns.TIMESTAMP].to_numpy(), kind="stable")
    kept = order if newest is None else order[-newest:]
    user_keys, item_keys, times = (events[name].to_numpy()[kept] for name in _COMMITTED[:3])
    users, user_ids = _numbered(user_keys)
    items, item_ids = _numbered(item_keys)
    return Interactions(
        path,
        users,
        items,
        times,
        user_ids.astype(str).astype(np.object_),
        np.array([named[key] for key in item_ids.tolist()], np.object_),
        newest_rows=None if len(kept) == len(order) else len(kept),
    )


def _numbered(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return codes by first occurrence, (N,), and the keys of the codes."""
    encoded = pa.array(keys).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_numpy()
