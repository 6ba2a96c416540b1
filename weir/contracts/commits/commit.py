"""One commit: the windows, source positions, histories and erasures that it adds to the log.

Commits are immutable. Erasure (redaction) rewrites files of a pane: the pane keeps its number, and a later commit names
a new folder, which replaces the folder of the first. Replaced files stay for a while for their readers, and are then
removed.

A new history file (delta) holds the complete records of the users of its commit, but only their new seen items. A
merged file replaces several adjacent files, which stay for a grace period; a later commit drops their names.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.base.models import CommitRef
from weir.contracts.commits.retention_horizon import RETENTION, WINDOWS, Retirement
from weir.contracts.commits.window import WindowManifest
from weir.contracts.storage.documents import Document
from weir.contracts.storage.store import FileEntry

__all__ = [
    "HISTORIES",
    "KNOWN",
    "MOVED",
    "REDACTION",
    "SPANS",
    "Commit",
    "CommitRef",
    "HistoryFile",
    "HistoryFiles",
    "Inherited",
    "LetterFile",
    "RedactedPane",
    "RewrittenLetters",
    "SourceSpan",
    "requirements",
]

HISTORIES: Final = "histories"
"""Required of readers by commits with histories."""
MOVED: Final = "moved"
"""Required of readers by the last commit of a moved store, and by the commit with which the other store continues
it."""
REDACTION: Final = "redaction"
"""Required of readers by a commit that erases users, and by every later one."""
SPANS: Final = "spans"
"""Required of readers by a commit in which `SourceSpan.counted` has a position below `SourceSpan.stop`."""
KNOWN: Final[frozenset[str]] = frozenset({HISTORIES, MOVED, REDACTION, RETENTION, SPANS, WINDOWS})
"""Requirements of commits (`Commit.requires`) that this version supports."""


class RedactedPane(Document):
    """A committed pane without the rows of erased users; `replaces` is the folder of its files before the erasure."""

    pane: WindowManifest
    replaces: str = Field(description="folder relative to the store")


class LetterFile(FileEntry):
    """A file of dead letters: `name` is relative to the store, `rows` counts letters, `reasons` also by reason."""

    partition: str
    reasons: dict[str, int]


class RewrittenLetters(LetterFile):
    """A file of dead letters without the texts of erased users; it takes the place of the file `replaces`."""

    replaces: str


class Inherited(Document):
    """Rows of a partition that another store had counted before the log moved here.

    A row at position x, in the window that starts at s (of `window_ms`), is in the panes that were taken over from that
    store if x < counted[s].
    """

    window_ms: int
    counted: dict[int, int] = Field(description="window start (ms) -> stop")


class SourceSpan(Document):
    """How far one source partition has been read as of a commit.

    Positions are byte offsets (JSON Lines), row numbers or offsets of a topic. Every row below `resume` is accounted
    for. A row in [resume, stop) is accounted for if its window has been committed since (`LogState.counted`); a restart
    reads the other rows again. `size` (bytes), `modified_ms` and `fingerprint` describe the file at that time. `dead`
    counts its dead letters so far. `letters` are the dead-letter files with rows beyond `resume` (name -> last
    position), and `letter_checksums` their checksums: a row that was refused stays refused, and counts once.
    `inherited` are rows from `resume` on that came with the windows of another store. For a topic, `size` is the end
    offset of the partition, `first` the first offset read, and `skipped` the number of messages without a value so far.

    A run on one machine has all rows below `stop`. Under an engine the rows of a partition arrive window by window: the
    commit also lists the rows that still wait (`open`), and the position up to which each window is counted (`bound`).
    """

    start: int
    stop: int
    resume: int
    size: int
    dead: int = 0
    modified_ms: int | None = None
    fingerprint: str = ""
    letters: dict[str, int] = Field(default_factory=dict)
    letter_checksums: dict[str, str] = Field(default_factory=dict)
    inherited: tuple[Inherited, ...] = ()
    first: int = 0
    skipped: int = 0
    counted: dict[int, int] = Field(
        default_factory=dict,
        description="window start (ms) of a pane of the commit -> position below which its rows are counted, "
        "where that is not `stop`",
    )
    open: dict[int, dict[int, int]] = Field(
        default_factory=dict,
        description="window start (ms) -> of each batch with rows of it that wait, the highest position -> the lowest",
    )
    unlisted: int | None = Field(default=None, description="position from which on rows of any window may wait")
    job: str = Field(default="", description="the job of an engine that read it last, empty for a bounded run")
    reached: int = Field(default=0, description="position up to which that job has read, `stop` at most")

    @property
    def is_done(self) -> bool:
        """Whether all rows below `stop` are accounted for."""
        return self.resume >= self.stop

    @property
    def listed(self) -> int:
        """Position below which `open` lists all waiting rows; `resume` if `open` lists none."""
        if self.unlisted is not None:
            return self.unlisted
        return self.stop if self.open else self.resume

    def bound(self, start_ms: int) -> int:
        """Return the position below which a window is counted, provided that the commit has a pane of it."""
        return self.counted.get(start_ms, self.stop)

    def without_letters(self, gone: Collection[str]) -> "SourceSpan":
        """Return the span without the dead-letter files `gone`."""
        fields = {
            name: {file: value for file, value in getattr(self, name).items() if file not in gone}
            for name in ("letters", "letter_checksums")
        }
        return self.model_copy(update=fields)

    def with_letters(self, new: Mapping[str, RewrittenLetters]) -> "SourceSpan":
        """Return the span with rewritten dead-letter files in place of old ones; `new` maps the old names."""
        letters, sums = dict(self.letters), dict(self.letter_checksums)
        for name in new.keys() & letters.keys():
            letters[new[name].name], sums[new[name].name] = letters.pop(name), new[name].checksum
            sums.pop(name, None)
        return self.model_copy(update={"letters": letters, "letter_checksums": sums})


class HistoryFile(FileEntry):
    """A file of users (`weir.contracts.histories.user_file`): `name` is relative to the store, `rows` counts users.

    `length` is the number of items of a record. `replaces` names the files that this one replaces, oldest first.
    """

    shard: int = Field(ge=0)
    length: int = Field(ge=1)
    replaces: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, file: FileEntry, shard: int, length: int, replaces: tuple[str, ...] = ()) -> "HistoryFile":
        """Return the entry of a file written as `name`, which is relative to the store."""
        fields = file.model_dump() | {"name": name}
        return cls(**fields, shard=shard, length=length, replaces=replaces)

    @staticmethod
    def path(shard: int, run: str, token: str) -> str:
        """Return the name of a run's history file for a shard; `token` distinguishes repeated attempts."""
        return f"histories/{shard:05d}/{run}-{token}.users"


class HistoryFiles(BaseModel):
    """The history files that all commits so far add up to.

    `covered` is the number of panes whose events they hold, less than all panes if a writer added panes without
    histories. `shards` has the files of each user shard, oldest first; `replaced` maps a file out of use to the time of
    its replacement (wall clock, seconds).
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    covered: int = 0
    shards: dict[int, tuple[HistoryFile, ...]] = Field(default_factory=dict)
    replaced: dict[str, float] = Field(default_factory=dict)

    def after(self, commit: "Commit") -> "HistoryFiles":
        """Return the history files after a further commit; raises `CorruptArtefactError` if the commit does not fit."""
        if not (commit.covered or commit.histories or commit.dropped or commit.removed):
            return self
        shards = dict(self.shards)
        replaced = {name: since for name, since in self.replaced.items() if name not in commit.dropped}
        for file in commit.histories:
            known = shards.get(file.shard, ())
            place = _place(known, file.replaces)
            if place is None:
                problem = f"replaces {', '.join(file.replaces)}, which are not next to each other in the state before"
                raise CorruptArtefactError(file.name, problem)
            replaced |= dict.fromkeys(file.replaces, commit.committed_at)
            kept = file.model_copy(update={"replaces": ()})
            shards[file.shard] = (*known[:place], kept, *known[place + len(file.replaces) :])
        if commit.removed:
            gone = set(commit.removed)
            left = {shard: tuple(file for file in files if file.name not in gone) for shard, files in shards.items()}
            shards = {shard: files for shard, files in left.items() if files}
            replaced |= dict.fromkeys(commit.removed, commit.committed_at)
        return HistoryFiles(covered=commit.covered or self.covered, shards=shards, replaced=replaced)

    def fits(self, file: HistoryFile) -> bool:
        """Return whether the files that `file` replaces are still adjacent."""
        return _place(self.shards.get(file.shard, ()), file.replaces) is not None

    def expired(self, before: float) -> list[str]:
        """Return the names of files that were replaced before a time (wall clock, seconds)."""
        return [name for name, since in self.replaced.items() if since < before]

    @property
    def files(self) -> Iterator[HistoryFile]:
        """All files in use."""
        return chain.from_iterable(self.shards.values())

    @property
    def names(self) -> set[str]:
        """Names of all files that may exist: files in use, and replaced files in their grace period."""
        return {file.name for file in self.files} | self.replaced.keys()

    @property
    def length(self) -> int | None:
        """The number of items of a record, None without files."""
        return next((file.length for file in self.files), None)


def _place(known: tuple[HistoryFile, ...], replaced: tuple[str, ...]) -> int | None:
    """Return the index for a new file, None if the files that it replaces are not adjacent in `known`."""
    names = [file.name for file in known]
    if not replaced:
        return len(names)
    first = names.index(replaced[0]) if replaced[0] in names else len(names)
    return first if tuple(names[first : first + len(replaced)]) == replaced else None


class Commit(Document):
    """``commits/<n>.json``.

    `sequence` is the number of panes committed before; pane i of `panes` has sequence `sequence` + i. A commit may have
    no pane, only dead letters and positions, merged histories, or additions of later formats. A reader must not pass a
    commit unless it supports all of `requires`. For `covered`, `histories` and `dropped` see `HistoryFiles`. In a
    commit that `forgets` users, `redacts`, `rewritten`, `histories` and `removed` list the replaced files and their
    replacements.
    """

    number: int = Field(ge=0)
    writer: str = Field(description="the run that made it; no two runs have the same")
    predecessor: str = Field(description="checksum of the commit before, empty for the first")
    committed_at: float = Field(description="wall clock, seconds since 1970")
    sequence: int = Field(ge=0)
    panes: tuple[WindowManifest, ...] = ()
    sources: dict[str, SourceSpan] = Field(default_factory=dict)
    letters: tuple[LetterFile, ...] = ()
    covered: int = Field(default=0, ge=0, description="panes whose events the histories hold; 0: as before")
    histories: tuple[HistoryFile, ...] = ()
    dropped: tuple[str, ...] = Field(default=(), description="replaced files that are gone")
    retires: Retirement | None = None
    forgets: int = Field(default=0, ge=0, description="users whom it forgets")
    redacts: tuple[RedactedPane, ...] = ()
    rewritten: tuple[RewrittenLetters, ...] = ()
    removed: tuple[str, ...] = Field(default=(), description="history files that held forgotten users only")
    redaction: int = Field(default=-1, ge=-1, description="the newest commit before it that forgets users, -1: none")
    requires: tuple[str, ...] = ()
    moved_to: str = Field(default="", description="the store in which the log goes on: no pipeline commits here again")
    moved_from: str = Field(default="", description="the store whose windows were taken over, and whose `sources` are")

    @property
    def replaced_by_redaction(self) -> tuple[str, ...]:
        """The pane folders and dead-letter files that the commit replaces by redacted ones."""
        return (*(one.replaces for one in self.redacts), *(one.replaces for one in self.rewritten))

    @property
    def newest_redaction(self) -> int:
        """The number of the newest commit up to this one that erases users, -1 without one."""
        return self.number if self.forgets else self.redaction


def requirements(*wanted: str, redaction: int) -> tuple[str, ...]:
    """Return the requirements `wanted` of a commit, plus `REDACTION` after an earlier redaction (`Commit.redaction`).

    Readers that start after a redaction must support it, too: earlier panes may have files in other folders.
    """
    return wanted if redaction < 0 else (*wanted, REDACTION)
