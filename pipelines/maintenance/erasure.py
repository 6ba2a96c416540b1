"""Redaction: remove users from a store with one commit.

Every pane, file of dead letters and user file is searched, and copies without the users are written. Then one commit
replaces the files by their copies. If another writer commits first, only its additions are searched, so a redaction
finishes beside a busy pipeline.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import Field

from weir.contracts import (
    Commit,
    CommitLog,
    CommitTakenError,
    CorruptArtefactError,
    HistoryFile,
    LetterFile,
    LogState,
    Store,
    read_format,
)
from weir.contracts.base.models import FrozenModel
from weir.contracts.commits.commit import HISTORIES, RedactedPane, RewrittenLetters, requirements
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.commits.window import WindowManifest
from weir.contracts.commits.window_log import as_redacted
from weir.pipelines.config import PipelineConfig
from weir.pipelines.maintenance.erased_files import (
    Forgotten,
    forget_served,
    letters_without,
    pane_without,
    users_file_without,
)
from weir.pipelines.runs.run_registry import (
    forget,
    is_marked,
    mark,
    new_run,
    only_redaction,
    remove_drafts,
    sweep_redactions,
    unmark,
)
from weir.pipelines.sources.source import MovedStoreError, check_arrived

__all__ = ["RedactionReport", "forget_users"]

logger = logging.getLogger(__name__)


class RedactionReport(FrozenModel):
    """The result of a redaction; `commit` is None if the store held none of the users."""

    held: tuple[str, ...] = Field(default=(), description="ids that the store held")
    commit: int | None = None
    panes: int = Field(default=0, description="panes written again")
    rows: int = Field(default=0, description="examples that are gone")
    history_files: int = Field(default=0, description="files of users written again, or removed")
    letters: int = Field(default=0, description="files of dead letters written again")
    served_files: int = Field(default=0, description="files of served lists written again, or removed")
    served_lists: int = Field(default=0, description="served lists that are gone")


def forget_users(
    store: Store, config: PipelineConfig, users: Forgotten, progress: Callable[[int, int], None] | None = None
) -> RedactionReport:
    """Replace all files that hold the users by copies without them, in one commit, and remove their served lists.

    No commit is made if the store holds none of the users. Replaced files stay until
    `weir.pipelines.maintenance.cleanup.Erasure` removes them. `progress` is called with the number of commits searched
    and their total. Raises `BusyStoreError` if another redaction is running, `MovedStoreError` if the store is in the
    middle of a cut-over, and `CorruptArtefactError` for a damaged file: then nothing is forgotten.
    """
    with only_redaction(store):
        sweep_redactions(store)
        remove_drafts(store)
        while True:
            redaction = _Redaction(store, config, users, progress)
            mark(store, redaction.run, redacts=True)
            try:
                report = redaction.make()
            except _SweptError:
                logger.warning("this redaction has taken so long that a pipeline took it for killed: it starts again")
                forget(store, redaction.run)
                continue
            except (CorruptArtefactError, MovedStoreError):
                forget(store, redaction.run)
                raise
            if report.commit is None:
                forget(store, redaction.run)
            else:
                unmark(store, redaction.run)
            return _without_lists(store, users, report)


def _without_lists(store: Store, users: Forgotten, report: RedactionReport) -> RedactionReport:
    """Remove the served lists of the users; return the report with their ids and counts added."""
    removed = forget_served(store, users.keys)
    keys: list[int] = users.keys.tolist()
    served = {user for user, key in zip(users.ids, keys, strict=True) if key in removed.users}
    held = tuple(user for user in users.ids if user in served or user in report.held)
    changes = {"held": held, "served_files": removed.files, "served_lists": removed.lists}
    return report.model_copy(update=changes)


class _SweptError(Exception):
    """A pipeline has removed the uncommitted copies of this redaction, which must start again."""


@dataclass
class _Redaction:
    """A redaction in progress: searches the store, writes copies without the users, and commits them.

    The copies wait for the commit in `_panes` (by sequence), `_letters` and `_files` (by the replaced file's name; None
    for a user file that no user remains in). `_rows` are the removed examples of each pane, `_clean` the user files
    without any of the users, `_held` the ids found so far.
    """

    store: Store
    config: PipelineConfig
    users: Forgotten
    progress: Callable[[int, int], None] | None
    run: str = field(default_factory=new_run)
    _panes: dict[int, RedactedPane] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)
    _letters: dict[str, RewrittenLetters] = field(default_factory=dict)
    _files: dict[str, HistoryFile | None] = field(default_factory=dict)
    _clean: set[str] = field(default_factory=set)
    _held: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._log, self._state = CommitLog(self.store), LogState.open(self.store)
        form = read_format(self.store)
        self._shards = self.users.by_shard(form.layout.user_shards) if form and form.layout else {}
        self._ids = dict(zip(self.users.keys.tolist(), self.users.ids, strict=True))

    def make(self) -> RedactionReport:
        """Write the copies and commit them; search the additions after each commit of another writer.

        Raises `_SweptError` if a pipeline has removed the copies.
        """
        self._search(self._log.first())
        while True:
            self._search_user_files()
            if not (self._panes or self._letters or self._files):
                return RedactionReport()
            if not is_marked(self.store, self.run):
                raise _SweptError
            try:
                commit = self._commit()
                self._log.append(commit)
            except CommitTakenError:
                before = self._state.cursor
                self._state.catch_up(self._log)
                self._search(before)
            else:
                return self._report(commit)

    def _search(self, at: Cursor) -> None:
        """Search the panes and letters that commits from a cursor on have added, and drop useless copies."""
        check_arrived(self.store, self._state)  # a redaction moves rows, and a rebuild counts them by position
        rewritten = self._rewritten()
        while at.number < self._state.cursor.number and (step := self._log.next(at)) is not None:
            commit, at = step
            for pane in commit.panes:
                if self._has_retired(pane):
                    continue
                self._search_pane(as_redacted(self._log, pane, self._state.redacted))
            for pane in (redacted.pane for redacted in commit.redacts if redacted.pane.sequence in self._panes):
                self._search_pane(as_redacted(self._log, pane, self._state.redacted))
            for file in (*commit.letters, *commit.rewritten):
                if file.name not in rewritten:
                    self._search_letters(file)
            for name in (letters.replaces for letters in commit.rewritten):
                self._discard(self._letters.pop(name, None))
            if self.progress is not None:
                self.progress(at.number, self._state.cursor.number)
        self._drop_retired()

    def _rewritten(self) -> set[str]:
        """Return the names of the files of dead letters that earlier redactions have replaced."""
        replaced, number, first = set[str](), self._state.redaction, self._log.first().number
        while number >= first:
            commit = self._log.get(number)
            replaced |= {file.replaces for file in commit.rewritten}
            number = commit.redaction
        return replaced

    def _search_pane(self, pane: WindowManifest) -> None:
        """Write a copy of a pane that holds the users, unless its current folder has a copy already."""
        copied = self._panes.get(pane.sequence)
        if copied is not None and copied.replaces == pane.folder:
            return
        if copied is not None:
            self._drop_pane(pane.sequence)
        found = pane_without(self.store, pane, self._shards, self.run)
        if found is not None:
            self._panes[pane.sequence], keys = found
            self._rows[pane.sequence] = pane.counts.events - found[0].pane.counts.events
            self._held |= {self._ids[key] for key in keys.tolist()}

    def _search_letters(self, file: LetterFile) -> None:
        """Write a copy of a file of dead letters that name the users."""
        found = letters_without(self.store, file, self.users, self.run)
        if found is not None:
            self._letters[file.name], ids = found
            self._held |= ids

    def _search_user_files(self) -> None:
        """Write copies of the new user files that hold the users; drop copies of files that are gone."""
        files = {file.name: file for shard in self._shards for file in self._state.histories.shards.get(shard, ())}
        for name in self._files.keys() - files.keys():
            self._discard(self._files.pop(name))
        for name in files.keys() - self._files.keys() - self._clean:
            file = files[name]
            found = users_file_without(self.store, file, self.config.cache, self._shards[file.shard], self.run)
            if found is None:
                self._clean.add(name)
            else:
                self._files[name], keys = found
                self._held |= {self._ids[key] for key in keys.tolist()}

    def _drop_retired(self) -> None:
        """Drop the copies of panes that have retired."""
        for sequence in [at for at, copied in self._panes.items() if self._has_retired(copied.pane)]:
            self._drop_pane(sequence)

    def _has_retired(self, pane: WindowManifest) -> bool:
        horizon = self._state.horizon
        return horizon is not None and horizon.has_retired(pane.sequence, pane.start_ms)

    def _drop_pane(self, sequence: int) -> None:
        self.store.remove(self._panes.pop(sequence).pane.folder)
        del self._rows[sequence]

    def _discard(self, file: HistoryFile | RewrittenLetters | None) -> None:
        if file is not None:
            self.store.remove(file.name)

    def _commit(self) -> Commit:
        at, state = self._state.cursor, self._state
        return Commit(
            number=at.number,
            writer=self.run,
            predecessor=at.checksum,
            committed_at=time.time(),
            sequence=at.sequence,
            forgets=len(self._held),
            redacts=tuple(self._panes[sequence] for sequence in sorted(self._panes)),
            rewritten=tuple(self._letters[name] for name in sorted(self._letters)),
            histories=tuple(file for _, file in sorted(self._files.items()) if file is not None),
            removed=tuple(name for name, file in sorted(self._files.items()) if file is None),
            redaction=state.redaction,
            requires=requirements(HISTORIES, redaction=at.number),
        )

    def _report(self, commit: Commit) -> RedactionReport:
        return RedactionReport(
            held=tuple(user for user in self.users.ids if user in self._held),
            commit=commit.number,
            panes=len(self._panes),
            rows=sum(self._rows.values()),
            history_files=len(self._files),
            letters=len(self._letters),
        )
