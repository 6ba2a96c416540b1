"""How far one source partition has been read as of a commit."""

from collections.abc import Collection, Mapping
from typing import Final

from pydantic import Field

from weir.contracts.documents import Document
from weir.contracts.redaction import RewrittenLetters

__all__ = ["SPANS", "Inherited", "SourceSpan"]

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
