"""Redaction: a commit that forgets users replaces the files that hold them; what replaces what is said here.

A commit is never changed. A pane keeps its number, and a later commit names the folder whose files are read in place of
the first one's. The replaced files stay for a while, for readers that are at them, and are then removed for good.
"""

from typing import Final

from pydantic import Field

from weir.contracts.documents import Document
from weir.contracts.storage import FileEntry
from weir.contracts.window import WindowManifest

__all__ = ["REDACTION", "LetterFile", "RedactedPane", "RewrittenLetters"]

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
