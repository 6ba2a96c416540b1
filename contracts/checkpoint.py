"""The description of a checkpoint: ``checkpoints/<name>/CHECKPOINT.json``, written last.

The tensors' bytes (little-endian, each in C order), one tensor after another in the order of the mark, are cut into
the files that the mark lists. Names sort in the order of the stream. Checking a store needs the mark alone.
"""

import json
import math
from typing import Any, Final, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, model_validator

from contracts.documents import Document, decode_document
from contracts.errors import CorruptArtefactError
from contracts.storage import FileEntry, Store

__all__ = [
    "CHECKPOINT_MARK",
    "CheckpointMark",
    "FirstFormatError",
    "TensorEntry",
    "checkpoint_names",
    "read_checkpoint_mark",
]

CHECKPOINT_MARK: Final = "CHECKPOINT.json"
"""A directory without it is incomplete and is never read."""

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


class FirstFormatError(CorruptArtefactError):
    """A checkpoint as `torch.distributed.checkpoint` writes it, with pickled metadata, which is never loaded."""


class TensorEntry(Document):
    """The type and shape of one tensor."""

    dtype: Literal["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    shape: tuple[NonNegativeInt, ...]

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * _BYTES[self.dtype]


class CheckpointMark(Document):
    """A complete checkpoint: where it is in the stream, the settings that made it, its tensors and its files."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    format: Literal[2] = Field(default=2, description="how the files hold the tensors; readers refuse any other")
    step: int = Field(ge=0, description="steps since the beginning of training")
    sequence: int = Field(ge=0, description="commit number of the window that is being trained on, or comes next")
    batch: int = Field(ge=0, description="batches of that window done")
    trained_window: str = Field(alias="learnt", description="the newest window that any step has touched")
    settings: dict[str, Any] = Field(description="those that decide what is trained, flat")
    tensors: dict[str, TensorEntry]
    files: tuple[FileEntry, ...]

    @model_validator(mode="after")
    def _files_hold_the_tensors(self) -> Self:
        needed, held = sum(one.size for one in self.tensors.values()), sum(file.size for file in self.files)
        if needed != held:
            raise ValueError(f"its tensors take {needed} bytes, its files hold {held}")
        return self


def checkpoint_names(store: Store) -> list[str]:
    """Return the complete checkpoints, oldest first."""
    return [name.split("/")[1] for name in store.glob(f"checkpoints/*/{CHECKPOINT_MARK}")]


def read_checkpoint_mark(store: Store, name: str) -> CheckpointMark:
    """Return the mark of a checkpoint; raises `CorruptArtefactError`, `FirstFormatError` or `FileNotFoundError`."""
    path = f"checkpoints/{name}/{CHECKPOINT_MARK}"
    data = store.read(path)
    if _of_the_first_format(data):
        problem = (
            "was written by an earlier version, with metadata in a pickle, which is never loaded: "
            "remove checkpoints/, and all windows are trained on again"
        )
        raise FirstFormatError(store.path(path), problem)
    return decode_document(store.path(path), data, CheckpointMark)


def _of_the_first_format(data: bytes) -> bool:
    """Say whether the mark never had a checksum; one with a damaged checksum is of the second format."""
    try:
        fields = json.loads(data)
    except ValueError:
        return False
    return isinstance(fields, dict) and fields.keys() == {"step", "sequence", "batch", "learnt", "settings", "tensors"}
