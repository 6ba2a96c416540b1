"""The mark of a checkpoint, ``checkpoints/<name>/CHECKPOINT.json``: written last, it lists tensors and files.

The tensors' bytes (little-endian, C order), in the order of the mark, are cut into the files that the mark lists. Names
sort in the order of the stream. Verifying a store reads only the marks.

A checkpoint with a `parent` is a delta. Its first tensor, ``rows``, has the table rows that changed since the parent;
tensors with one entry per table row hold the entries of these rows, other tensors are whole.
"""

import math
from typing import Any, Final, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, model_validator

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.base.models import CommitRef, StoredModel
from weir.contracts.storage.documents import Document, decode_document
from weir.contracts.storage.store import FileEntry, Store, checksum

__all__ = [
    "CHECKPOINT_MARK",
    "CURRENT_FORMAT",
    "WITH_USER_FEATURES",
    "CheckpointFormatError",
    "CheckpointMark",
    "CheckpointRef",
    "TensorEntry",
    "checkpoint_names",
    "mark_path",
    "read_checkpoint_chain",
    "read_checkpoint_mark",
]

CHECKPOINT_MARK: Final = "CHECKPOINT.json"
"""Readers ignore a directory without it: it is incomplete."""

CURRENT_FORMAT: Final = 6

WITH_USER_FEATURES: Final = 7
"""`CURRENT_FORMAT` plus user features; checkpoints without user features keep `CURRENT_FORMAT`."""

_BYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


class CheckpointFormatError(CorruptArtefactError):
    """A checkpoint of another format; the message says which formats this version reads and what to do."""


class TensorEntry(Document):
    """Type and shape of a tensor."""

    dtype: Literal["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    shape: tuple[NonNegativeInt, ...]

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * _BYTES[self.dtype]


class CheckpointRef(StoredModel):
    """Reference to a checkpoint: its name, and the checksum of its mark."""

    name: str
    checksum: str


class CheckpointMark(Document):
    """A complete checkpoint: its position in the stream, the settings that made it, its tensors and its files."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    format: Literal[6, 7] = Field(default=6, description="what the files hold; 7: user features, too")
    step: int = Field(ge=0, description="steps since the beginning of training")
    sequence: int = Field(ge=0, description="number of the pane that is being trained on, or comes next")
    batch: int = Field(ge=0, description="batches of that window done")
    trained_window: str = Field(alias="learnt", description="the newest window that any step has touched")
    trained_commit: CommitRef | None = Field(
        default=None, description="the commit of that window; none: an earlier version wrote the checkpoint"
    )
    settings: dict[str, Any] = Field(description="those that decide what is trained, flat")
    tensors: dict[str, TensorEntry]
    files: tuple[FileEntry, ...]
    parent: CheckpointRef | None = Field(default=None, description="what this one continues; none: it is whole")

    @model_validator(mode="after")
    def _files_hold_the_tensors(self) -> Self:
        needed, held = sum(one.size for one in self.tensors.values()), sum(file.size for file in self.files)
        if needed != held:
            raise ValueError(f"its tensors take {needed} bytes, its files hold {held}")
        return self


def checkpoint_names(store: Store) -> list[str]:
    """Return the complete checkpoints, oldest first."""
    return [name.split("/")[1] for name in store.glob(f"checkpoints/*/{CHECKPOINT_MARK}")]


def mark_path(name: str) -> str:
    """Return the path of a checkpoint's mark, relative to the store."""
    return f"checkpoints/{name}/{CHECKPOINT_MARK}"


def read_checkpoint_chain(store: Store, name: str) -> list[tuple[CheckpointRef, CheckpointMark]]:
    """Return a checkpoint with all its ancestors, starting at the whole one.

    Raises as `read_checkpoint_mark`, and `CorruptArtefactError` if a parent is missing or has been replaced.
    """
    found = store.read(mark_path(name))
    chain = [(CheckpointRef(name=name, checksum=checksum(found)), _decode(store.path(mark_path(name)), found))]
    while (parent := chain[0][1].parent) is not None:
        path, child = mark_path(parent.name), chain[0][0].name
        try:
            data = store.read(path)
        except FileNotFoundError:
            raise CorruptArtefactError(store.path(path), f"is missing, but checkpoints/{child} continues it") from None
        mark = _decode(store.path(path), data)
        if checksum(data) != parent.checksum:
            raise CorruptArtefactError(store.path(path), f"is not what checkpoints/{child} continues")
        chain.insert(0, (parent, mark))
    return chain


def read_checkpoint_mark(store: Store, name: str) -> CheckpointMark:
    """Return the mark of a checkpoint.

    Raises `CorruptArtefactError`, its subclass `CheckpointFormatError` for another format, or `FileNotFoundError`.
    """
    return _decode(store.path(mark_path(name)), store.read(mark_path(name)))


class _Format(Document):
    format: int = CURRENT_FORMAT


def _decode(path: str, data: bytes) -> CheckpointMark:
    found = decode_document(path, data, _Format).format
    if found not in (CURRENT_FORMAT, WITH_USER_FEATURES):
        later = found > WITH_USER_FEATURES
        remedy = "upgrade weir" if later else "remove checkpoints/, and all windows are trained on again"
        known = f"this version reads {CURRENT_FORMAT} and {WITH_USER_FEATURES}"
        raise CheckpointFormatError(path, f"has format {found}, {known}: {remedy}")
    return decode_document(path, data, CheckpointMark)
