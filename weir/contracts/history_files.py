"""The files of histories that the commits add up to: for each user shard a base and the deltas after it.

A delta holds the complete record of every user whom its commit touched, and of the seen items only the new ones. A
merged file takes the place of a run of files next to each other. Those it replaces stay for a time of grace, for
readers that have not seen the merge; a later commit drops their names.
"""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field

from weir.contracts.errors import CorruptArtefactError
from weir.contracts.storage import FileEntry

if TYPE_CHECKING:
    from weir.contracts.commit import Commit

__all__ = ["HISTORIES", "HistoryFile", "HistoryFiles"]

HISTORIES: Final = "histories"
"""What commits with histories require of a reader."""


class HistoryFile(FileEntry):
    """A file of users (`weir.contracts.user_file`); its `name` is relative to the store, `rows` are its users.

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
