"""Histories from the windows: for shards whose files are lost or damaged, and for panes that no histories cover.

The windows are read once, in order. As in the stream, what they add is written as deltas that are merged on the way, so
that memory holds one batch of rows, whatever the store holds.
"""

import logging
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

import numpy as np
import pyarrow as pa

from weir.contracts import (
    CorruptArtefactError,
    HistoryFile,
    HistoryFiles,
    LogState,
    Store,
    UserKeys,
    WindowLog,
    columns,
    open_shard,
)
from weir.contracts.user_histories import open_file
from weir.pipelines.config import PipelineConfig
from weir.pipelines.merging import FileMerge, merge_plan
from weir.pipelines.user_state import TouchedUsers, write_delta

__all__ = ["broken_shards", "rebuilt"]

logger = logging.getLogger(__name__)

_ROWS: Final = 500_000
_READ: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.LABEL]


def broken_shards(store: Store, config: PipelineConfig, state: LogState) -> dict[int, str]:
    """Return the shards whose histories cannot be used, and why; reads no more than the header of each file."""
    files = state.histories
    if files.covered != state.cursor.sequence:
        problem = f"its log has histories of {files.covered} panes out of {state.cursor.sequence}"
        return dict.fromkeys(range(config.user_shards), problem)
    if files.length not in {None, config.kept_items}:
        problem = f"history_length and late_items are {config.kept_items} together, they were {files.length}"
        return dict.fromkeys(range(config.user_shards), problem)
    found = {}
    for file in files.files:
        try:
            open_file(store, file, config.cache)
        except CorruptArtefactError as error:
            found[file.shard] = str(error)
    return found


def rebuilt(
    store: Store, config: PipelineConfig, state: LogState, shards: Collection[int], run: str
) -> tuple[HistoryFile, ...]:
    """Write a base of each of the shards, which replaces all files of its own; one without users gets none.

    Raises `CorruptArtefactError` for a damaged window.
    """
    bases = {shard: _Base(store, config, shard, run) for shard in shards}
    for batch in _batches(WindowLog(store), state.cursor.sequence, shards):
        for shard, windows in batch.items():
            bases[shard].add(windows)
    found = []
    for shard, base in bases.items():
        if (file := base.merged()) is not None:
            names = tuple(old.name for old in state.histories.shards.get(shard, ()))
            found.append(file.model_copy(update={"replaces": names}))
    return tuple(found)


def _batches(log: WindowLog, stop: int, shards: Collection[int]) -> Iterator[dict[int, list[pa.Table]]]:
    """Yield shard -> the rows of its next windows, all shards together within bounds."""
    batch, rows = defaultdict[int, list[pa.Table]](list), 0
    for pane in takewhile(lambda pane: pane.sequence < stop, log.follow()):
        for shard in pane.examples.keys() & set(shards):
            batch[shard].append(log.examples(pane, shard, _READ))
            rows += len(batch[shard][-1])
        if rows >= _ROWS:
            yield batch
            batch, rows = defaultdict(list), 0
    yield batch


@dataclass
class _Base:
    """The files of one shard on the way to its base."""

    store: Store
    config: PipelineConfig
    shard: int
    run: str
    files: list[HistoryFile] = field(default_factory=list)

    def add(self, windows: list[pa.Table]) -> None:
        """Add what windows say, in order."""
        config = self.config
        before = open_shard(
            self.store, HistoryFiles(shards={self.shard: tuple(self.files)}), self.shard, config.kept_items,
            config.cache,
        )  # fmt: skip
        users = np.concatenate([rows[columns.USER_KEY].to_numpy() for rows in windows])
        touched = TouchedUsers.of(before, UserKeys(users), config.history_length)
        for rows in windows:
            touched.extend(rows)
        name = HistoryFile.path(self.shard, self.run, secrets.token_hex(4))
        rows = touched.delta(config.seen_items)
        self.files.append(write_delta(self.store, name, self.shard, rows, config.seen_items))
        self._merge(merge_plan([file.size for file in self.files]))

    def merged(self) -> HistoryFile | None:
        """Return the base, None without users."""
        if len(self.files) > 1:
            self._merge(len(self.files))
        return self.files[0] if self.files else None

    def _merge(self, count: int) -> None:
        if not count:
            return
        merge = FileMerge(self.store, self.config.cache, self.config.seen_items)
        merged = merge(self.files[-count:], self.run)
        for file in self.files[-count:]:
            self.store.remove(file.name)
        self.files[-count:] = [merged]
