"""Tensors as plain files: their bytes, one tensor after another, cut into files of a bounded size.

Nothing in a file says what it means; the checkpoint's mark does (`contracts.checkpoint`). Loading executes nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts import FileEntry, Store
from contracts.checkpoint import TensorEntry

__all__ = ["describe", "read_tensors", "write_tensors"]

_FILE_BYTES: Final = 16 << 20
"""Bytes of a file at most, which bounds what saving and loading hold beside the tensors."""

Bytes = npt.NDArray[np.uint8]


def describe(tensors: Mapping[str, Tensor]) -> dict[str, TensorEntry]:
    """Return type and shape of each tensor."""
    return {
        name: TensorEntry.model_validate({"dtype": str(one.dtype).removeprefix("torch."), "shape": tuple(one.shape)})
        for name, one in tensors.items()
    }


def write_tensors(
    store: Store, folder: str, tensors: Mapping[str, Tensor], file_bytes: int = _FILE_BYTES
) -> tuple[FileEntry, ...]:
    """Write the bytes of all tensors, in their order, to ``tensors-<number>.bin``; return the files' entries."""
    pieces = (_bytes_of(tensor.detach().cpu().contiguous()) for tensor in tensors.values())
    return tuple(
        store.write(f"{folder}/tensors-{number:05d}.bin", part) for number, part in enumerate(_cut(pieces, file_bytes))
    )


def read_tensors(
    store: Store, folder: str, entries: Mapping[str, TensorEntry], files: tuple[FileEntry, ...]
) -> dict[str, Tensor]:
    """Return the tensors of `entries`, on the CPU, once every file matches its entry.

    Raises
    ------
    CorruptArtefactError
        If a file is missing, or differs from its entry in size or checksum; it names the file.
    """
    tensors = {name: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype)) for name, entry in entries.items()}
    targets = iter([_bytes_of(tensor) for tensor in tensors.values()])
    target: Bytes = np.empty(0, np.uint8)
    for file in files:
        part = np.frombuffer(store.read_verified(folder, file), np.uint8)
        while len(part):
            target = target if len(target) else next(targets)
            taken = min(len(part), len(target))
            target[:taken] = part[:taken]
            part, target = part[taken:], target[taken:]
    return tensors


def _bytes_of(tensor: Tensor) -> Bytes:
    """Return the memory of a contiguous CPU tensor."""
    found: Bytes = tensor.view(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    return found


def _cut(pieces: Iterator[Bytes], size: int) -> Iterator[bytes]:
    """Join the pieces and cut them into parts of `size` bytes; only the last one may be shorter."""
    held: list[Any] = []
    room = size
    for piece in pieces:
        rest = piece
        while len(rest):
            held.append(rest[:room])
            rest, room = rest[room:], room - len(held[-1])
            if not room:
                yield b"".join(held)
                held, room = [], size
    if held:
        yield b"".join(held)
