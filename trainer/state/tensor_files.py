"""Arrays of the state in files: the parts of the state as named arrays, and plain files of a bounded size.

Parts have the methods `state_dict` and `load_state_dict` of `torch.nn.Module`. A checkpoint stores the arrays of all
parts, by flat names ``<part>.<name>``.

The files have no headers; the checkpoint's mark describes them (`weir.contracts.bundles.checkpoint`). Loading executes
nothing. Sharded arrays are written in chunks as they arrive, and a rank reads only the files with its rows.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts import FileEntry, Store
from weir.contracts.bundles.checkpoint import TensorEntry
from weir.trainer.items.rows import TableRows
from weir.trainer.items.shard_reader import ShardSelection
from weir.trainer.items.stored import SharedLines

__all__ = [
    "ROWS",
    "Delta",
    "Stateful",
    "StatefulRows",
    "array_of",
    "describe",
    "flatten",
    "group",
    "read_tensors",
    "write_tensors",
]


ROWS: Final = "rows"
"""First tensor of a delta: the table rows that it stores."""

Arrays = Mapping[str, Tensor | npt.NDArray[Any]]


_FILE_BYTES: Final = 16 << 20
"""Most bytes per file; bounds the memory that saving and loading need in addition to the tensors."""

_AT_ONCE: Final = 1 << 20
"""Bytes processed at a time: each line takes several temporary numbers."""

Bytes = npt.NDArray[np.uint8]


class Stateful(Protocol):
    """A part of the state with named arrays."""

    def state_dict(self) -> Arrays:
        """Return the part's arrays by name, which may share memory with the part."""
        ...

    def load_state_dict(self, state: dict[str, Tensor], /) -> object:
        """Load the result of `state_dict`."""
        ...


@runtime_checkable
class StatefulRows(Stateful, Protocol):
    """A part of the state whose arrays have a line per table row."""

    def state_of(self, rows: TableRows, /) -> Arrays:
        """Return the result of `state_dict` for some rows (n,) only."""
        ...

    def load_rows(self, rows: TableRows, state: dict[str, Tensor], /) -> None:
        """Load the result of `state_of` for rows of this rank; all other rows stay."""
        ...


class Delta(NamedTuple):
    """A delta checkpoint: `tensors` by flat name, for the rows `listed` (n,).

    For the parts in `own`, the tensors have this rank's rows only.
    """

    tensors: dict[str, Tensor]
    listed: TableRows
    own: Mapping[str, TableRows]

    def rows(self, part: str) -> TableRows:
        """Return the table rows of the lines of a part's tensors."""
        return self.own.get(part, self.listed)


def flatten(parts: Mapping[str, Stateful], rows: TableRows | None = None) -> dict[str, Tensor]:
    """Return the arrays of all parts as tensors by ``<part>.<name>``, in order; at some `rows` only, if given."""
    return {
        f"{part}.{name}": torch.as_tensor(value)
        for part, stateful in parts.items()
        for name, value in _arrays(stateful, rows).items()
    }


def array_of(value: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array on the CPU; floating-point numbers as float32."""
    array: npt.NDArray[Any] = (value.float() if value.is_floating_point() else value).detach().cpu().numpy()
    return array


def _arrays(part: Stateful, rows: TableRows | None) -> Arrays:
    """Return the arrays of a part, at some rows if given and the part has rows."""
    return part.state_of(rows) if rows is not None and isinstance(part, StatefulRows) else part.state_dict()


def group(flat: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a flat mapping by part, then by name."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in flat.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = value
    return parts


def describe(tensors: Mapping[str, Tensor | SharedLines]) -> dict[str, TensorEntry]:
    """Return the entries of tensors in a checkpoint's mark: dtype and shape by name."""
    return {
        name: TensorEntry.model_validate(
            {"dtype": str(value.dtype).removeprefix("torch."), "shape": tuple(value.shape)}
        )
        for name, value in tensors.items()
    }


def write_tensors(
    store: Store,
    folder: str,
    tensors: Mapping[str, Tensor | SharedLines],
    file_bytes: int = _FILE_BYTES,
    stem: str = "tensors",
) -> tuple[FileEntry, ...]:
    """Write the bytes of all tensors, in their order, to ``<stem>-<number>.bin``; return the files' entries."""
    parts = (part for tensor in tensors.values() for part in ([tensor] if isinstance(tensor, Tensor) else tensor))
    pieces = (_bytes_of(part.detach().cpu().contiguous()) for part in parts)
    return tuple(
        store.write(f"{folder}/{stem}-{number:05d}.bin", part) for number, part in enumerate(_cut(pieces, file_bytes))
    )


def read_tensors(
    store: Store,
    folder: str,
    entries: Mapping[str, TensorEntry],
    files: tuple[FileEntry, ...],
    own: Mapping[str, ShardSelection] | None = None,
) -> dict[str, Tensor]:
    """Return the tensors of `entries`, on the CPU; for names in `own`, only this rank's rows.

    Raises
    ------
    CorruptArtefactError
        If a file that is needed is missing, or differs from its entry in size or checksum; names the file.
    """
    run, tensors, first = _Run(store, folder, files), dict[str, Tensor](), 0
    for name, entry in entries.items():
        lines = (own or {}).get(name)
        tensors[name] = _whole(run, first, entry) if lines is None else _own(run, first, entry, lines)
        first += entry.size
    return tensors


@dataclass
class _Run:
    """The files of a checkpoint as one sequence of bytes; each file is verified before its bytes are used."""

    store: Store
    folder: str
    files: tuple[FileEntry, ...]
    _last: tuple[str, Bytes] = field(default=("", np.empty(0, np.uint8)))

    def pieces(self, first: int, last: int) -> Iterator[Bytes]:
        """Yield the bytes [first, last) in chunks."""
        start = 0
        for file in self.files:
            low, high = max(first - start, 0), min(last - start, file.size)
            for at in range(low, high, _AT_ONCE):
                yield self._read(file)[at : min(at + _AT_ONCE, high)]
            start += file.size

    def _read(self, file: FileEntry) -> Bytes:
        # Keep the last file: a tensor often ends in the file where the next one starts.
        if self._last[0] != file.name:
            self._last = file.name, np.frombuffer(self.store.read_verified(self.folder, file), np.uint8)
        return self._last[1]


def _whole(run: _Run, first: int, entry: TensorEntry) -> Tensor:
    """Read a whole tensor that starts at byte `first`."""
    tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
    target, at = _bytes_of(tensor), 0
    for piece in run.pieces(first, first + entry.size):
        target[at : at + len(piece)] = piece
        at += len(piece)
    return tensor


def _own(run: _Run, first: int, entry: TensorEntry, own: ShardSelection) -> Tensor:
    """Read the rank's own lines of a tensor that starts at byte `first`, whole lines at a time."""
    number, shape = own.wanted.start, entry.shape[1:]
    tensor = torch.empty(own.count, *shape, dtype=getattr(torch, entry.dtype))
    size = tensor.element_size() * math.prod(shape)
    rest: Bytes = np.empty(0, np.uint8)
    for piece in run.pieces(first + size * own.wanted.start, first + size * own.wanted.stop):
        buffer = np.concatenate([rest, piece])
        count = len(buffer) // size
        own.take(number, torch.from_numpy(buffer[: count * size]).view(tensor.dtype).view(count, *shape), tensor)
        number, rest = number + count, buffer[count * size :]
    return tensor


def _bytes_of(tensor: Tensor) -> Bytes:
    """Return the memory of a contiguous CPU tensor as bytes."""
    memory: Bytes = tensor.view(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    return memory


def _cut(pieces: Iterator[Bytes], size: int) -> Iterator[bytes]:
    """Concatenate the pieces and cut them into parts of `size` bytes; only the last part may be shorter."""
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
