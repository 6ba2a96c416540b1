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
"""How long a follower far behind the newest commit may not know of a redaction; replaced files stay for longer."""


@dataclass
class RedactedPanes:
    """What a follower knows of redactions: all up to commit `_newest`, and that there is one in commit `_told`."""

    store: Store
    _commits: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _newest: int = field(default=-1, init=False)
    _told: int = field(default=-1, init=False)
    _next_look: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)

    def take_in(self, commit: Commit) -> None:
        """Note what a commit redacts that the follower passes."""
        if commit.forgets and commit.redaction == self._newest:
            self._commits |= {one.pane.sequence: commit.number for one in commit.redacts}
            self._newest = commit.number
        self._told = max(self._told, commit.newest_redaction)

    def current(self, panes: Iterable[WindowManifest], number: int) -> tuple[WindowManifest, ...]:
        """Return the panes of a commit as the newest redactions have left them; raises `CorruptArtefactError`."""
        if time.monotonic() >= self._next_look:
            self._look()
        if self._told > max(self._newest, number):
            # Those before the commit are of other panes.
            state = LogState.open(self.store)
            self._commits, self._newest = dict(state.redacted), state.redaction
        return tuple(as_redacted(self._log, pane, self._commits) for pane in panes)

    def _look(self) -> None:
        try:
            self._told = max(self._told, self._log.get(self._log.newest()).newest_redaction)
        except CorruptArtefactError:
            # The follower is told when it comes to the damaged commit.
            return
        self._next_look = time.monotonic() + LOOK_SECONDS


def as_redacted(log: CommitLog, pane: WindowManifest, commits: Mapping[int, int]) -> WindowManifest:
    """Return a pane with its files of now, given the newest commit that redacts each pane (`LogState.redacted`).

    Raises `CorruptArtefactError`.
    """
    number = commits.get(pane.sequence)
    if number is None:
        return pane
    return next(one.pane for one in log.get(number).redacts if one.pane.sequence == pane.sequence)


@dataclass
class WindowLog:
    """The committed panes of a store, in commit order; it remembers its position in the log, and which are redacted."""

    store: Store
    _at: Cursor | None = field(default=None, init=False, repr=False)
    _last: CommitRef | None = field(default=None, init=False, repr=False)
    _after: int | None = field(default=None, init=False, repr=False)
    _horizon: Horizon | None = field(default=None, init=False, repr=False)
    _next_look: float = field(default=-math.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        self._commits, self._redacted = CommitLog(self.store), RedactedPanes(self.store)

    def committed(self, after: int = -1) -> list[WindowManifest]:
        """Return all panes that `follow` yields, in one list: for few panes, of small stores."""
        return list(self.follow(after))

    def follow(self, after: int = -1) -> Iterator[WindowManifest]:
        """Yield the panes committed after a sequence that have not retired, in order; -1: all of them.

        Commits are read one by one: those before a damaged one come before its error.

        Raises
        ------
        CorruptArtefactError
            If a commit is damaged or lost.
        LogMismatchError
            If the log ends before that sequence.
        RetiredError
            If the commit of the next pane has retired.
        StoreFormatError
            If the store has another format.
        """
        while found := self.next(after):
            yield from found
            after = found[-1].sequence

    def next(self, after: int = -1) -> tuple[WindowManifest, ...]:
        """Return the panes of the next commit that has any left after a sequence; none if there is none yet.

        Panes that have retired from a commit whose other panes stay are left out. Polling for what follows the last
        pane costs one request while there is nothing. Raises what `follow` raises.
        """
        if self._at is None or (after + 1 != self._at.sequence and after != self._after):
            self._at = self._commits.first() if after < 0 else self._commits.find(after + 1)
            self._next_look = -math.inf
        # What follows `_after` is at `_at`: not known where an error comes between the two.
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
            # A later commit may have retired some; their files stay for longer than until the next look.
            self._horizon = self._commits.horizon() or self._horizon
            self._next_look = time.monotonic() + LOOK_SECONDS
        if (horizon := self._horizon) is None:
            return panes
        return tuple(pane for pane in panes if not horizon.has_retired(pane.sequence, pane.start_ms))

    @property
    def last(self) -> CommitRef | None:
        """The commit of the panes that `next` has returned last, None before."""
        return self._last

    def newest(self, count: int) -> list[WindowManifest]:
        """Return so many of the newest panes, fewer where there are no more, in order; raises what `follow` raises."""
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
        """Return a sequence, or the last one that has retired if that is later: what follows it can be read."""
        return max(after, self._commits.first().sequence - 1)

    def commit(self, *panes: WindowManifest, writer: str = "", **fields: Any) -> Commit:
        """Append panes as one commit; their files must have been written. Raises what `CommitLog.append` raises.

        `fields` are further fields of the `Commit`. The panes' sequences are set by their place in the log.
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
        """Yield `rows` of the examples of all shards, shard by shard, all if None, some at a time.

        Files that hold none of them are not read. Raises `CorruptArtefactError`.
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
        """Return how many examples all shards have."""
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
