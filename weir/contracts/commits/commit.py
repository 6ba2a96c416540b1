"""One commit: the windows, positions, histories and erasures that it adds to the log.

A commit is never changed. A pane keeps its number, and a later commit names the folder whose files are read in place of
the first one's. The replaced files stay for a while, for readers that are at them, and are then removed for good.

A delta holds the complete record of every user whom its commit touched, and of the seen items only the new ones. A
merged file takes the place of a run of files next to each other. Those it replaces stay for a time of grace, for
readers that have not seen the merge; a later commit drops their names.
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


REDACTION: Final = "redaction"
"""What a commit that forgets users, and every one after it, requires of its readers."""


class RedactedPane(Document):
    """A committed pane without the rows of forgotten users; `replaces` is the folder of the files before."""

    pane: WindowManifest
    replaces: str = Field(description="folder relative to the store")


class LetterFile(FileEntry):
    """A file of dead letters: its `name` is relative to the store, `rows` are its letters, counted by reason."""

    partition: str
    reasons: dict[str, int]


class RewrittenLetters(LetterFile):
    """A file of dead letters of which some have lost their text; it takes the place of the file `replaces`."""

    replaces: str


SPANS: Final = "spans"
"""Required by a commit in which `SourceSpan.counted` says less than `SourceSpan.stop`."""


class Inherited(Document):
    """The rows of a partition that another store had counted before the log moved here.

    A row at position x whose window there (of `window_ms`, starting at s) has x < counted[s] is in the panes that
    were taken from that store.
    """

    window_ms: int
    counted: dict[int, int] = Field(description="window start (ms) -> stop")


class SourceSpan(Document):
    """How far one source partition has been read as of a commit.

    Positions are byte offsets (JSON Lines) or row numbers. Every row below `resume` is accounted for. Of the rows in
    [resume, stop) those of windows committed since are (`LogState.counted`); the others are still in the log, and a
    restart reads them again. `size` (bytes), `modified_ms` and `fingerprint` describe the file at that time. `dead`
    counts its dead letters so far; `letters` are their files (name -> last position) that reach beyond `resume`, so
    that a row that was refused once stays refused, and is counted once; `letter_checksums` are theirs. `inherited`
    are rows from `resume` on that came with the windows of another store. Of a topic positions are offsets, `size`
    is the offset at which the partition ended, `first` the one at which it was read first, and `skipped` counts the
    messages without a value so far.

    A run on one machine has all rows below `stop` at hand. Under an engine rows of one partition come window by window,
    so that a commit also says which are still on their way (`open`), and up to where it has counted a window (`bound`).
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
        """Whether nothing below `stop` is left to count."""
        return self.resume >= self.stop

    @property
    def listed(self) -> int:
        """The position below which `open` lists all rows that wait: `resume` where nobody has listed any."""
        if self.unlisted is not None:
            return self.unlisted
        return self.stop if self.open else self.resume

    def bound(self, start_ms: int) -> int:
        """Return the position below which a window is counted, if the commit has a pane of it."""
        return self.counted.get(start_ms, self.stop)

    def without_letters(self, gone: Collection[str]) -> "SourceSpan":
        """Return the span without some files of dead letters."""
        fields = {
            name: {file: value for file, value in getattr(self, name).items() if file not in gone}
            for name in ("letters", "letter_checksums")
        }
        return self.model_copy(update=fields)

    def with_letters(self, new: Mapping[str, RewrittenLetters]) -> "SourceSpan":
        """Return the span with other files of dead letters in place of some, by the name of the file before."""
        letters, sums = dict(self.letters), dict(self.letter_checksums)
        for name in new.keys() & letters.keys():
            letters[new[name].name], sums[new[name].name] = letters.pop(name), new[name].checksum
            sums.pop(name, None)
        return self.model_copy(update={"letters": letters, "letter_checksums": sums})


HISTORIES: Final = "histories"
"""What commits with histories require of a reader."""


class HistoryFile(FileEntry):
    """A file of users (`weir.contracts.histories.user_file`): `name` is relative to the store, `rows` counts users.

    `length` is the number of items of a record. `replaces` names the files whose place it takes, oldest first.
    """

    shard: int = Field(ge=0)
    length: int = Field(ge=1)
    replaces: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, file: FileEntry, shard: int, length: int, replaces: tuple[str, ...] = ()) -> "HistoryFile":
        """Return the entry of a file that was written under a name relative to the store."""
        fields = file.model_dump() | {"name": name}
        return cls(**fields, shard=shard, length=length, replaces=replaces)

    @staticmethod
    def path(shard: int, run: str, token: str) -> str:
        """Return the name of a run's file of a shard; `token` distinguishes repeated attempts at it."""
        return f"histories/{shard:05d}/{run}-{token}.users"


class HistoryFiles(BaseModel):
    """The sum of the history files of all commits so far.

    `covered` is the number of panes whose events they hold: fewer than were committed where a writer of panes wrote no
    histories. `shards` has the files of each user shard, oldest first; `replaced` says since when (wall clock, seconds)
    a file has been out of use.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    covered: int = 0
    shards: dict[int, tuple[HistoryFile, ...]] = Field(default_factory=dict)
    replaced: dict[str, float] = Field(default_factory=dict)

    def after(self, commit: "Commit") -> "HistoryFiles":
        """Return the files after the next commit; raises `CorruptArtefactError` where they do not fit."""
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
        """Say whether the files that one replaces are still next to each other."""
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
        """All files that may exist: those in use, and those in their time of grace."""
        return {file.name for file in self.files} | self.replaced.keys()

    @property
    def length(self) -> int | None:
        """The number of items of a record, None without files."""
        return next((file.length for file in self.files), None)


def _place(known: tuple[HistoryFile, ...], replaced: tuple[str, ...]) -> int | None:
    """Return where a file goes, None where those it replaces are not a run of those known."""
    names = [file.name for file in known]
    if not replaced:
        return len(names)
    first = names.index(replaced[0]) if replaced[0] in names else len(names)
    return first if tuple(names[first : first + len(replaced)]) == replaced else None


MOVED: Final = "moved"
"""Required by the last commit of a store that has moved, and by the commit with which the other store goes on."""

KNOWN: Final[frozenset[str]] = frozenset({HISTORIES, MOVED, REDACTION, RETENTION, SPANS, WINDOWS})
"""What commits may require of a reader (`Commit.requires`) and this version supports."""


class Commit(Document):
    """``commits/<n>.json``.

    `sequence` is the number of panes committed before; pane i of `panes` has sequence `sequence` + i. A commit may
    add no pane: dead letters and positions, merged histories, and whatever later formats add. A reader that does not
    know all of `requires` must not go past this commit. `covered`, `histories` and `dropped` are explained at
    `HistoryFiles`. A commit that `forgets` users says by `redacts`, `rewritten`, `histories` and `removed` what takes
    the place of which files.
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
        """The folders of panes and the files of dead letters in whose place it puts others."""
        return (*(one.replaces for one in self.redacts), *(one.replaces for one in self.rewritten))

    @property
    def newest_redaction(self) -> int:
        """The newest commit up to this one that forgets users, -1 for none."""
        return self.number if self.forgets else self.redaction


def requirements(*wanted: str, redaction: int) -> tuple[str, ...]:
    """Return what a commit requires of readers, given the newest redaction before it (`Commit.redaction`).

    Whoever starts behind a redaction has to know it, too: panes from before may have files in other folders.
    """
    return wanted if redaction < 0 else (*wanted, REDACTION)
