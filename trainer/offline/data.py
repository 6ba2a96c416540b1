"""Interactions from a log or a store: users and items as codes, rows in order of time.

A log is read by the rules of the pipeline (`weir.readers`), so the same rows are valid and the same events positive.
Also read are ``.txt`` (and ``.gz``) files with a user, a space and an item per line, each user's lines in order of
time.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import FeatureNames, Label, Store, WindowLog
from weir.contracts.base import columns
from weir.contracts.interactions.features import values_of
from weir.readers import (
    LOG_SUFFIXES,
    PAIR_SUFFIXES,
    DeadLetter,
    Letters,
    LogConfig,
    Partition,
    ValidatedBlock,
    discover,
    read_log,
    read_newest,
)
from weir.trainer.step.seeds import Purpose, derive

__all__ = [
    "SPLIT",
    "Interactions",
    "InteractionsError",
    "Ints",
    "TooFewError",
    "is_store",
    "read_interactions",
    "read_store",
    "sample_users",
]


logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
SPLIT: Final = "split"
"""Field of the log with the label of a predefined split."""

_SUFFIXES: Final = {**LOG_SUFFIXES, **PAIR_SUFFIXES}
_KEPT: Final = [columns.USER_ID, columns.ITEM_ID, columns.TIMESTAMP, columns.FEATURES]


_COMMITTED: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.LABEL]


class InteractionsError(ValueError):
    """Interactions cannot be used; the message names the source, the value found and the values allowed."""


class TooFewError(InteractionsError):
    """Too few interactions to train or to test; the message says which."""


@dataclass(frozen=True, eq=False)
class Interactions:
    """N positive interactions of U users with I items, stably sorted by time (in source order if there are no times).

    Codes number users and items by first occurrence.
    """

    source: str
    users: Ints
    """Codes 0 to U - 1, (N,)."""
    items: Ints
    """Codes 0 to I - 1, (N,)."""
    timestamps: Ints | None
    """(N,), ascending: milliseconds since 1970."""
    user_ids: npt.NDArray[Any]
    """The users' ids, (U,): objects of type str."""
    item_ids: npt.NDArray[Any]
    """The items' ids, (I,): objects of type str."""
    split: npt.NDArray[np.object_] | None = None
    """Labels of a predefined split, as in the source, (N,); None for a row without a label."""
    newest_rows: int | None = None
    """Number of rows read from the end of the log; None: all rows were read."""

    def __len__(self) -> int:
        return len(self.users)


def read_interactions(path: str, config: LogConfig | None = None, *, newest: int | None = None) -> Interactions:
    """Read the positive interactions of a file, a folder (recursively) or a glob; a local path or a URL.

    Rows that the pipeline would refuse are skipped with a warning. Times are optional, for splits that need none; but
    if some rows have a time, rows without one are skipped, too.

    Parameters
    ----------
    path
        Several files are read in order of name.
    config
        Names of the log's fields, meaning of its event types, and valid values; `log` and the item features are not
        used.
    newest
        Read only this many rows from the end of the log, or a few more (`weir.readers.read_newest`); None: all.

    Raises
    ------
    InteractionsError
        If the file does not exist or cannot be read, or there is no valid positive interaction.
    """
    # The label of a predefined split is read like a categorical feature.
    rules = (config or LogConfig()).model_copy(update={"item_features": FeatureNames(categorical=[SPLIT])})
    table, refused, rows = _read(path, rules, newest)
    timed = table.filter(table[columns.TIMESTAMP].is_valid())
    if len(timed):
        refused["no time"] += len(table) - len(timed)
        order = np.argsort(timed[columns.TIMESTAMP].to_numpy(), kind="stable")
        table = timed.take(order)
    if refused.total():
        reasons = ", ".join(f"{reason} {count}" for reason, count in refused.most_common() if count)
        logger.warning("%s: left out are %d rows (%s)", path, refused.total(), reasons)
    users, user_ids = _encode(table[columns.USER_ID])
    items, item_ids = _encode(table[columns.ITEM_ID])
    timestamps = table[columns.TIMESTAMP].to_numpy() if len(timed) else None
    return Interactions(path, users, items, timestamps, user_ids, item_ids, _labels(table), rows)


def _read(path: str, rules: LogConfig, newest: int | None) -> tuple[pa.Table, Counter[str], int | None]:
    """Return the valid positive interactions, refused rows by reason, and the number of rows read (None: all)."""
    batches, letters = list[pa.RecordBatch](), list[DeadLetter]()
    refused = Counter[str]()
    try:
        blocks, rows = _blocks(path, rules, newest)
        for block, dead in blocks:
            batches.append(block.rows.filter(pc.equal(block.rows[columns.LABEL], int(Label.POSITIVE))).select(_KEPT))
            refused.update(letter.reason for letter in dead.letters)
            letters += dead.letters[: 1 - len(letters)]
    except OSError as error:
        raise InteractionsError(f"{path}: cannot be read: {error}") from error
    if not sum(map(len, batches)):
        why = f"; {letters[0].partition}, position {letters[0].position}: {letters[0].detail}" if letters else ""
        raise InteractionsError(f"{path}: has no valid positive interaction; at least one is needed{why}")
    return pa.Table.from_batches(batches), refused, rows


def _blocks(
    path: str, rules: LogConfig, newest: int | None
) -> tuple[Iterable[tuple[ValidatedBlock, Letters]], int | None]:
    """Return blocks of validated rows with their refused rows, and the number of rows read (None: all)."""
    if newest is None:
        return read_log(_partitions(path), rules), None
    end = read_newest(_partitions(path), rules, newest)
    return end.blocks, None if end.is_whole else end.rows


def _partitions(path: str) -> list[Partition]:
    """Return the files of a path; raises `InteractionsError` if there are none."""
    try:
        partitions = discover(path, _SUFFIXES)
    except FileNotFoundError:
        partitions, problem = [], "there is no such file"
    else:
        problem = "there is no file of a format that can be read"
    if not partitions:
        raise InteractionsError(f"{path}: {problem}; allowed are files, folders and globs of *{', *'.join(_SUFFIXES)}")
    return partitions


def _encode(column: pa.ChunkedArray) -> tuple[Ints, npt.NDArray[Any]]:
    """Return the codes of ids, numbered by first occurrence, and the id of each code."""
    encoded = column.cast(pa.large_string()).combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_numpy(zero_copy_only=False)


def _labels(table: pa.Table) -> npt.NDArray[np.object_] | None:
    """Return each row's label of a predefined split; None if no row has one."""
    lists = pc.struct_field(table[columns.FEATURES], SPLIT).combine_chunks()
    if lists.null_count == len(lists):
        return None
    labels = np.full(len(lists), None, np.object_)
    places, values = values_of(lists)
    labels[places] = values.to_numpy(zero_copy_only=False)
    return labels


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
    rows = order if newest is None else order[-newest:]
    user_keys, item_keys, times = (events[name].to_numpy()[rows] for name in _COMMITTED[:3])
    users, user_ids = _numbered(user_keys)
    items, item_ids = _numbered(item_keys)
    return Interactions(
        path,
        users,
        items,
        times,
        user_ids.astype(str).astype(np.object_),
        np.array([named[key] for key in item_ids.tolist()], np.object_),
        newest_rows=None if len(rows) == len(order) else len(rows),
    )


def _numbered(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the codes of keys (N,), numbered by first occurrence, and the key of each code."""
    encoded = pa.array(keys).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_numpy()


def sample_users(interactions: Interactions, at_most: int) -> Interactions:
    """Return the interactions of a fixed random sample of users, at most `at_most` interactions in total.

    At least one user is kept. If all interactions fit, they are returned unchanged.
    """
    if len(interactions) <= at_most:
        return interactions
    counts = np.bincount(interactions.users)
    order = np.random.default_rng(derive(0, Purpose.EVALUATION, 1)).permutation(len(counts))
    fitting = int(np.searchsorted(np.cumsum(counts[order]), at_most, side="right"))
    is_chosen = np.zeros(len(counts), np.bool_)
    is_chosen[order[: max(fitting, 1)]] = True
    rows = np.flatnonzero(is_chosen[interactions.users])
    users, user_codes = np.unique(interactions.users[rows], return_inverse=True)
    items, item_codes = np.unique(interactions.items[rows], return_inverse=True)
    return replace(
        interactions,
        users=user_codes,
        items=item_codes,
        timestamps=None if interactions.timestamps is None else interactions.timestamps[rows],
        user_ids=interactions.user_ids[users],
        item_ids=interactions.item_ids[items],
        split=None if interactions.split is None else interactions.split[rows],
    )
