"""One commit: what it adds to the log, and what it requires of readers."""

from typing import Final

from pydantic import Field

from weir.contracts.documents import Document
from weir.contracts.history_files import HISTORIES, HistoryFile
from weir.contracts.horizon import RETENTION, WINDOWS, Retirement
from weir.contracts.models import StoredModel
from weir.contracts.redaction import REDACTION, LetterFile, RedactedPane, RewrittenLetters
from weir.contracts.source_span import SPANS, SourceSpan
from weir.contracts.window import WindowManifest

__all__ = ["KNOWN", "MOVED", "Commit", "CommitRef", "requirements"]

MOVED: Final = "moved"
"""Required by the last commit of a store that has moved, and by the commit with which the other store goes on."""

KNOWN: Final[frozenset[str]] = frozenset({HISTORIES, MOVED, REDACTION, RETENTION, SPANS, WINDOWS})
"""What commits may require of a reader (`Commit.requires`) and this version supports."""


class CommitRef(StoredModel):
    """One certain commit: its number, and its checksum, which stands for all commits up to it."""

    number: int = Field(ge=0)
    checksum: str


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
