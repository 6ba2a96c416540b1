"""The committed windows of a store: follow them in commit order, and read their files."""

import math
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa

from weir.contracts.base import columns
from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.base.models import CommitRef
from weir.contracts.commits.commit import Commit, requirements
from weir.contracts.commits.commit_log import CommitLog, Cursor
from weir.contracts.commits.log_state import LogState
from weir.contracts.commits.retention_horizon import Horizon
from weir.contracts.commits.window import ITEMS_SCHEMA, WindowManifest, WindowName, examples_schema
from weir.contracts.storage.artefacts import read_batches, read_table
from weir.contracts.storage.store import FileEntry, Store

__all__ = ["LOOK_SECONDS", "RedactedPanes", "WindowLog", "as_redacted"]


LOOK_SECONDS: Final = 600.0
"""Longest delay until a follower that is far behind learns of a redaction; replaced files stay longer."""


@dataclass
class RedactedPanes:
    """Tracks redactions for a reader of the log, and names the redacted files of its panes (`current`).

    `_commits` are the redactions up to commit `_newest`, `_told` is the newest redaction heard of.
    """

    store: Store
    _commits: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _newest: int = field(default=-1, init=False)
    _told: int = field(default=-1, init=False)
    _next_look: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)

    def take_in(self, commit: Commit) -> None:
        """Record the redactions of a commit that the follower passes."""
        if commit.forgets and commit.redaction == self._newest:
            self._commits |= {one.pane.sequence: commit.number for one in commit.redacts}
            self._newest = commit.number
        self._told = max(self._told, commit.newest_redaction)

    def current(self, panes: Iterable[WindowManifest], number: int) -> tuple[WindowManifest, ...]:
        """Return the panes of commit `number` with their redacted files; raises `CorruptArtefactError`."""
        if time.monotonic() >= self._next_look:
            self._look()
        if self._told > max(self._newest, number):
            # Redactions before the commit concern other panes.
            state = LogState.open(self.store)
            self._commits, self._newest = dict(state.redacted), state.redaction
        return tuple(as_redacted(self._log, pane, self._commits) for pane in panes)

    def _look(self) -> None:
        try:
            self._told = max(self._told, self._log.get(self._log.newest()).newest_redaction)
        except CorruptArtefactError:
            # The follower raises it when it reaches the damaged commit.
            return
        self._next_look = time.monotonic() + LOOK_SECONDS


def as_redacted(log: CommitLog, pane: WindowManifest, commits: Mapping[int, int]) -> WindowManifest:
    """Return a pane with its current files, given the newest commit that redacts each pane (`LogState.redacted`).

    Raises `CorruptArtefactError`.
    """
    number = commits.get(pane.sequence)
    if number is None:
        return pane
    return next(one.pane for one in log.get(number).redacts if one.pane.sequence == pane.sequence)


@dataclass
class WindowLog:
    """The committed panes of a store, in commit order; tracks its position in the log, and redactions."""

    store: Store
    _at: Cursor | None = field(default=None, init=False, repr=False)
    _last: CommitRef | None = field(default=None, init=False, repr=False)
    _after: int | None = field(default=None, init=False, repr=False)
    _horizon: Horizon | None = field(default=None, init=False, repr=False)
    _next_look: float = field(default=-math.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        self._commits, self._redacted = CommitLog(self.store), RedactedPanes(self.store)

    def committed(self, after: int = -1) -> list[WindowManifest]:
        """Return all panes that `follow` yields as a list; for small stores."""
        return list(self.follow(after))

    def follow(self, after: int = -1) -> Iterator[WindowManifest]:
        """Yield the panes after sequence `after` that have not retired, in order; -1: from the start.

        Commits are read one by one: the panes before a damaged commit come before its error.

        Raises
        ------
        CorruptArtefactError
            If a commit is damaged or lost.
        LogMismatchError
            If the log ends before `after`.
        RetiredError
            If the commit of the next pane has retired.
        StoreFormatError
            If the store has another format.
        """
        while found := self.next(after):
            yield from found
            after = found[-1].sequence

    def next(self, after: int = -1) -> tuple[WindowManifest, ...]:
        """Return the panes after sequence `after` of the next commit that has any left; () if there is none yet.

        Retired panes are left out. A poll after the last pane costs one request. Raises as `follow`.
        """
        if self._at is None or (after + 1 != self._at.sequence and after != self._after):
            self._at = self._commits.first() if after < 0 else self._commits.find(after + 1)
            self._next_look = -math.inf
        # `_at` is the position after `_after`; if an error interrupts, it is unknown.
        self._after = None
        while (found := self._commits.next(self._at)) is not None:
            commit, self._at = found
            self._redacted.take_in(commit)
            if panes := self._left(commit, after):
                self._last = CommitRef(number=commit.number, checksum=self._at.checksum)
                current = self._redacted.current(panes, commit.number)
                self._after = panes[-1].sequence
                return current
        self._after = after
        return ()

    def _left(self, commit: Commit, after: int) -> tuple[WindowManifest, ...]:
        """Return the panes of a commit after a sequence that have not retired."""
        if commit.retires is not None and (self._horizon is None or commit.retires.ms >= self._horizon.ms):
            self._horizon = commit.retires
        panes = tuple(pane for pane in commit.panes if pane.sequence > after)
        if panes and time.monotonic() >= self._next_look:
            # A later commit may have retired some; their files stay until after the next look.
            self._horizon = self._commits.horizon() or self._horizon
            self._next_look = time.monotonic() + LOOK_SECONDS
        if (horizon := self._horizon) is None:
            return panes
        return tuple(pane for pane in panes if not horizon.has_retired(pane.sequence, pane.start_ms))

    @property
    def last(self) -> CommitRef | None:
        """The commit of the panes that `next` returned last, or None."""
        return self._last

    def newest(self, count: int) -> list[WindowManifest]:
        """Return the `count` newest panes (or all, if fewer) in order; raises as `follow`."""
        head = self._commits.head()
        total = self._commits.at(self._commits.newest() + 1).sequence if head is None else head.sequence
        first, looked = self._commits.first().sequence, count
        while True:
            found = list(self.follow(max(total - looked, first) - 1))[-count:]
            if len(found) == count or total - looked <= first:
                return found
            # Some of the newest have retired.
            looked *= 4

    def left(self, after: int) -> int:
        """Return `after`, or the last retired sequence if that is later: later panes can be read."""
        return max(after, self._commits.first().sequence - 1)

    def commit(self, *panes: WindowManifest, writer: str = "", **fields: Any) -> Commit:
        """Append panes, whose files have been written, as one commit. Raises as `CommitLog.append`.

        `fields` are further fields of the `Commit`. The panes get their sequences from their place in the log.
        """
        number = self._commits.newest() + 1
        before = self._commits.at(number)
        redaction = self._commits.get(number - 1).newest_redaction if number else -1
        commit = Commit(
            number=number,
            writer=writer or secrets.token_hex(8),
            predecessor=before.checksum,
            committed_at=time.time(),
            sequence=before.sequence,
            panes=tuple(
                pane.model_copy(update={"sequence": before.sequence + place}) for place, pane in enumerate(panes)
            ),
            redaction=redaction,
            **fields | {"requires": requirements(*fields.get("requires", ()), redaction=redaction)},
        )
        self._commits.append(commit)
        return commit

    def shards(self, manifest: WindowManifest) -> list[int]:
        """Return the user shards that have examples in this window."""
        return list(manifest.examples)

    def examples(self, manifest: WindowManifest, shard: int, columns: list[str] | None = None) -> pa.Table:
        """Return one shard's examples in order of time; raises `CorruptArtefactError`."""
        return read_table(self.store, manifest.folder, _examples(manifest, shard), columns)

    def example_batches(
        self, manifest: WindowManifest, columns: list[str], rows: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield `rows` (None: all) of the examples of all shards, shard by shard, in batches.

        Only files with such rows are read. Raises `CorruptArtefactError`.
        """
        first = 0
        for entry in map(partial(_examples, manifest), self.shards(manifest)):
            here = range(entry.rows)
            if rows is not None:
                here = here[max(rows.start - first, 0) : max(rows.stop - first, 0)]
            if here:
                yield from read_batches(self.store, manifest.folder, entry, columns, here)
            first += entry.rows

    def example_rows(self, manifest: WindowManifest) -> int:
        """Return the number of examples of all shards."""
        return sum(_examples(manifest, shard).rows for shard in self.shards(manifest))

    def all_examples(self, manifest: WindowManifest, columns: list[str] | None = None) -> pa.Table:
        """Return the examples of all shards, shard by shard; raises `CorruptArtefactError`."""
        tables = [self.examples(manifest, shard, columns) for shard in self.shards(manifest)]
        if tables:
            return pa.concat_tables(tables)
        schema = examples_schema(manifest.history_length, manifest.exposed_items, manifest.user_features.names)
        return (schema if columns is None else pa.schema([schema.field(name) for name in columns])).empty_table()

    def items(self, manifest: WindowManifest) -> pa.Table:
        """Return the window's items (`ITEMS_SCHEMA`); raises `CorruptArtefactError`."""
        return self._items(manifest, ITEMS_SCHEMA.names)

    def item_features(self, manifest: WindowManifest) -> pa.Table:
        """Return `item_key` and the newest known value of every feature of the window's items.

        Raises `CorruptArtefactError`.
        """
        return self._items(manifest, [columns.ITEM_KEY, *manifest.item_features.all])

    def _items(self, manifest: WindowManifest, wanted: list[str]) -> pa.Table:
        return read_table(self.store, manifest.folder, manifest.file(WindowName.items()), wanted)

    def sketch(self, manifest: WindowManifest) -> bytes:
        """Return the window's serialised frequency estimator; raises `CorruptArtefactError`."""
        return self.store.read_verified(manifest.folder, manifest.file(WindowName.sketch()))

    def user_sketch(self, manifest: WindowManifest) -> bytes:
        """Return the serialised estimator of positives by user key; raises `CorruptArtefactError`."""
        return self.store.read_verified(manifest.folder, manifest.file(WindowName.user_sketch()))

    def __iter__(self) -> Iterator[WindowManifest]:
        return self.follow()


def _examples(manifest: WindowManifest, shard: int) -> FileEntry:
    return manifest.examples.get(shard) or manifest.file(WindowName.examples(shard))
