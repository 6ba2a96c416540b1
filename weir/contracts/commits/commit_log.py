"""The commit log: ``commits/<n>.json`` lists what commit n adds; files that no commit lists do not exist for readers.

Commits are numbered from 0 without gaps. A single writer creates number n, atomically and only if it is absent. A
follower asks for the next number and never lists. ``commits/HEAD`` is a hint: it names the newest commit, so that one
request tells a lost commit from one that does not exist yet. Each commit carries its own checksum and its
predecessor's.
"""

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from weir.contracts.base.errors import CorruptArtefactError, UserError
from weir.contracts.base.models import CommitRef
from weir.contracts.commits.commit import KNOWN, Commit
from weir.contracts.commits.retention_horizon import Horizon, RetiredError, stored_horizon
from weir.contracts.storage.documents import Document, decode_document, encode_document, write_document
from weir.contracts.storage.format import ensure_format, read_format
from weir.contracts.storage.store import Store, checksum

__all__ = ["HEAD", "CommitLog", "CommitTakenError", "Cursor", "Head", "LogMismatchError"]

HEAD: Final = "commits/HEAD"
_LOOKS_PER_HEAD: Final = 16
"""Of this number of polls without a new commit, one reads HEAD instead of the commit."""


class Head(Document):
    """``commits/HEAD``: the newest commit, the number of panes as of it, and the newest snapshot, if any.

    If windows have retired, there is a horizon, and `base` names the snapshot instead of `snapshot`: an older version,
    which does not know horizons, then looks for all commits and fails.
    """

    number: int
    sequence: int
    snapshot: int | None = None
    base: int | None = None
    horizon: Horizon | None = None

    @property
    def newest_snapshot(self) -> int | None:
        """The commit of the newest snapshot."""
        return self.snapshot if self.base is None else self.base


class Cursor(NamedTuple):
    """A position in the log: the next commit, the sequence of its first pane, and its predecessor's checksum.

    `checksum` is empty if it is unknown: at the start, and after a jump to a pane.
    """

    number: int = 0
    sequence: int = 0
    checksum: str = ""


class CommitTakenError(Exception):
    """Another writer has created the commit of this number: prepare the commit again, after the other one."""


Mismatch = Literal["log_ends_before", "other_commit"]


class LogMismatchError(UserError):
    """The log is not the log that `reader` has read: it ends before the reader's position, or has another commit there.

    `reason` tells the two cases apart.
    """

    def __init__(self, reader: str, problem: str, reason: Mismatch) -> None:
        super().__init__(f"{reader}: {problem}")
        self.reader = reader
        self.problem = problem
        self.reason = reason

    def __reduce__(self) -> tuple[type["LogMismatchError"], tuple[str, str, Mismatch]]:
        return type(self), (self.reader, self.problem, self.reason)


@dataclass
class CommitLog:
    """The commits of a store, read and appended one by one."""

    store: Store
    _vain: int = field(default=0, init=False, repr=False)
    _has_format: bool = field(default=False, init=False, repr=False)

    @staticmethod
    def name(number: int) -> str:
        """Return the file name of a commit, relative to the store."""
        return f"commits/{number:010d}.json"

    def next(self, at: Cursor) -> tuple[Commit, Cursor] | None:
        """Return the commit at a cursor and the cursor after it, with one request; None if it does not exist yet.

        Raises
        ------
        CorruptArtefactError
            If the commit is damaged, does not follow its predecessor, or is lost while later ones exist.
        LogMismatchError
            If the log ends before the cursor.
        RetiredError
            If the commit has retired and is removed.
        StoreFormatError
            If the store has a format that this version cannot read.
        """
        self._has_format = self._has_format or read_format(self.store) is not None
        if not self._has_format:
            return None
        # A poll without a new commit costs one request: mostly for the commit, at times for HEAD instead.
        looks = self._vain % _LOOKS_PER_HEAD == _LOOKS_PER_HEAD - 1
        head = self.head() if looks else None
        found = None if head and head.number < at.number else self._read(at.number)
        if found is None:
            if not self._vain:
                looks, head = True, self.head()
            self._vain += 1
            if head is None or head.number < at.number:
                if looks and (head is None or head.number < at.number - 1):
                    self._require_end(at)
                return None
            found = self._demand(at.number)
        self._vain = 0
        commit, digest = found
        self._check(commit, at)
        return commit, Cursor(at.number + 1, commit.sequence + len(commit.panes), digest)

    def head(self) -> Head | None:
        """Return the content of ``commits/HEAD``, a hint; None if it is missing or damaged."""
        try:
            return decode_document(self.store.path(HEAD), self.store.read(HEAD), Head)
        except (FileNotFoundError, CorruptArtefactError):
            return None

    def first(self) -> Cursor:
        """Return the cursor of the oldest commit that has not retired."""
        horizon = self.horizon()
        return Cursor() if horizon is None else Cursor(horizon.number, horizon.sequence, horizon.checksum)

    def horizon(self) -> Horizon | None:
        """Return the retention horizon; None before the first retirement."""
        head = self.head()
        horizon = None if head is None else head.horizon
        if head is None or not self.store.exists(self.name(horizon.number if horizon else 0)):
            # HEAD is only a hint.
            horizon = stored_horizon(self.store)
        return horizon

    def find(self, sequence: int) -> Cursor:
        """Return the cursor of the commit that has pane `sequence`, or of the next commit if no commit has it yet.

        Searches the commits by bisection. Raises as `next`; `LogMismatchError` if the log has fewer than `sequence`
        panes.
        """
        newest, first = self.newest(), self.first()
        if sequence < first.sequence:
            raise self._lost(f"pane {sequence}", first.number - 1)
        low, high = first.number, newest + 1
        while low < high:
            middle = (low + high) // 2
            commit, _ = self._demand(middle)
            if commit.sequence + len(commit.panes) <= sequence:
                low = middle + 1
            else:
                high = middle
        if low > newest:
            panes = self.at(low).sequence
            if sequence > panes:
                raise LogMismatchError(
                    self.store.url, f"pane {sequence - 1} was read, {_ends(panes)}", "log_ends_before"
                )
            return Cursor(low, sequence)
        return Cursor(low, self._demand(low)[0].sequence)

    def at(self, number: int) -> Cursor:
        """Return the cursor of commit `number`, which exists or is the next one; reads the commit before it.

        Raises `CorruptArtefactError`, or `RetiredError`.
        """
        if not number or self._read(number - 1) is None:
            first = self.first()
            if first.number == number:
                return first
            if not number:
                raise self._lost("commit 0", 0)
        commit, digest = self._demand(number - 1)
        return Cursor(number, commit.sequence + len(commit.panes), digest)

    def require(self, reader: str, sequence: int, ref: CommitRef | None = None) -> None:
        """Check that a reader which has read up to pane `sequence` has read this log.

        Parameters
        ----------
        reader
            The document that holds the reader's position, for the error.
        sequence
            The newest pane that the reader has read, -1 for none.
        ref
            The commit of that pane; None if unknown: then only numbers are compared.

        Raises
        ------
        LogMismatchError
            If the log ends before the pane, or has another commit there. Retired commits and panes count as read.
        CorruptArtefactError
            If a commit is damaged or lost.
        """
        if ref is not None and (found := self._read(ref.number)) is not None:
            self._compare(reader, ref, found[1])
            return
        first, newest = self.first(), self.newest()
        if ref is not None and ref.number < first.number:
            if ref.number == first.number - 1:
                self._compare(reader, ref, first.checksum)
            return
        if ref is not None and ref.number > newest:
            problem = f"commit {ref.number} was read, the log ends with commit {newest}"
            raise LogMismatchError(reader, problem, "log_ends_before")
        if ref is not None:
            self._demand(ref.number)
        if sequence >= (panes := self.at(newest + 1).sequence):
            raise LogMismatchError(reader, f"pane {sequence} was read, {_ends(panes)}", "log_ends_before")

    def _compare(self, reader: str, ref: CommitRef, there: str) -> None:
        if there != ref.checksum:
            problem = f"commit {ref.number} was read with checksum {ref.checksum}, the one in the log has {there}"
            raise LogMismatchError(reader, problem, "other_commit")

    def _require_end(self, at: Cursor) -> None:
        """Check that the commit before a cursor exists or has retired, if HEAD does not show it."""
        if at.number and self._read(at.number - 1) is None and self.first().number < at.number:
            raise LogMismatchError(
                self.store.url, f"commit {at.number - 1} was read, and is not there any more", "log_ends_before"
            )

    def newest(self) -> int:
        """Return the number of the newest commit, -1 without any; raises `CorruptArtefactError` for a lost one."""
        head = self.head()
        if head is not None:
            number = head.number
            self._demand(number)
        else:
            number = self._listed()
        # HEAD is written after its commit, so it may be one behind.
        while self._read(number + 1) is not None:
            number += 1
        return number

    def append(self, commit: Commit) -> Cursor:
        """Create a commit and return the cursor after it.

        An existing commit of this number by the same writer counts as created: its answer was lost. Raises
        `CommitTakenError` if it is another writer's, `UnfitStoreError` for a store without conditional create.
        """
        ensure_format(self.store)
        data = encode_document(commit)
        if not self.store.create(self.name(commit.number), data):
            found = self._read(commit.number)
            if found is None or found[0].writer != commit.writer:
                raise CommitTakenError(f"commit {commit.number} is {found[0].writer if found else 'unreadable'}'s")
            commit, digest = found
        else:
            digest = checksum(data)
        head = self.head()
        behind = Cursor(commit.number + 1, commit.sequence + len(commit.panes), digest)
        named = {} if head is None else head.model_dump(include={"snapshot", "base", "horizon"})
        self.point(Head.model_validate(named | {"number": commit.number, "sequence": behind.sequence}))
        return behind

    def point(self, head: Head) -> None:
        """Write ``commits/HEAD``."""
        write_document(self.store, HEAD, head)

    def get(self, number: int) -> Commit:
        """Return an existing commit; raises `CorruptArtefactError` or `RetiredError`."""
        return self._demand(number)[0]

    def _demand(self, number: int) -> tuple[Commit, str]:
        found = self._read(number)
        if found is None:
            raise self._lost(f"commit {number}", number)
        return found

    def _lost(self, what: str, number: int) -> CorruptArtefactError | RetiredError:
        """Return the error for a missing commit `number`, named `what` in the message: retired, or lost."""
        horizon = stored_horizon(self.store)
        if horizon is not None and number < horizon.number:
            return RetiredError(what, horizon)
        return CorruptArtefactError(self.store.path(self.name(number)), "is missing, but later commits exist")

    def _read(self, number: int) -> tuple[Commit, str] | None:
        path = self.store.path(self.name(number))
        try:
            data = self.store.read(self.name(number))
        except FileNotFoundError:
            return None
        commit = decode_document(path, data, Commit)
        if commit.number != number:
            raise CorruptArtefactError(path, f"is commit {commit.number}: it was put in the place of another")
        return commit, checksum(data)

    def _check(self, commit: Commit, at: Cursor) -> None:
        path = self.store.path(self.name(commit.number))
        if at.checksum and commit.predecessor != at.checksum:
            raise CorruptArtefactError(
                path, f"follows {commit.predecessor}, but commit {at.number - 1} is {at.checksum}"
            )
        if commit.sequence != at.sequence:
            raise CorruptArtefactError(path, f"starts at pane {commit.sequence}, but {at.sequence} are before it")
        if unknown := set(commit.requires) - KNOWN:
            raise CorruptArtefactError(
                path, f"needs {', '.join(sorted(unknown))}, unknown to this version: upgrade weir"
            )

    def _listed(self) -> int:
        """Find the newest commit without HEAD; raises `CorruptArtefactError` for a gap."""
        names = self.store.glob("commits/" + "[0-9]" * 10 + ".json")
        horizon = stored_horizon(self.store)
        first = horizon.number if horizon else 0
        numbers = [number for name in names if (number := int(name[8:18])) >= first]
        for expected, number in enumerate(numbers, start=first):
            if number != expected:
                self._demand(expected)
        return numbers[-1] if numbers else first - 1


def _ends(panes: int) -> str:
    return f"the log ends with pane {panes - 1}" if panes else "the log holds no pane"
