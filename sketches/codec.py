"""Binary format of all estimators: one frame with header, parameters, payload and checksum.

Layout, little-endian throughout:

===========  =======  ==========================================================
field        bytes    meaning
===========  =======  ==========================================================
magic        8        ``b"WEIRSKCH"``
version      2        format version, now 1
kind         2        which estimator (`Kind`)
params size  4        bytes of the parameters
payload size 8        bytes of the payload
hash name    16       row hash, ASCII, padded with zero bytes
params       varies   parameters and small state, one struct per kind
payload      varies   cells, counts or registers
checksum     8        xxh3_64 of everything before it
===========  =======  ==========================================================
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

MAGIC: Final = b"WEIRSKCH"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sHHIQ16s")
_CHECKSUM: Final = struct.Struct("<Q")


class Kind(IntEnum):
    """Kinds of stored estimators; the numbers are part of the format and never reused."""

    COUNT_MIN = 1
    EXACT = 2
    GAP = 3
    BANK = 4
    DISTINCT = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """A stored estimator without header and checksum: its kind, hash name, packed parameters and payload."""

    kind: Kind
    hash_name: str
    params: bytes
    payload: bytes

    def unpack(self, params: struct.Struct) -> tuple[Any, ...]:
        """Unpack the parameters with the struct of the kind; raises `ValueError` if their size differs."""
        if len(self.params) != params.size:
            raise ValueError(f"{self.kind.name} parameters take {params.size} bytes, got {len(self.params)}")
        return params.unpack(self.params)

    def require_payload(self, size: int) -> bytes:
        """Return the payload; raises `ValueError` if it is not ``size`` bytes long."""
        if len(self.payload) != size:
            raise ValueError(f"{self.kind.name} payload must take {size} bytes, got {len(self.payload)}")
        return self.payload


def encode(frame: Frame) -> bytes:
    """Serialise a frame with header and checksum."""
    header = _HEADER.pack(
        MAGIC, VERSION, frame.kind, len(frame.params), len(frame.payload), frame.hash_name.encode("ascii")
    )
    body = b"".join((header, frame.params, frame.payload))
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def decode(data: bytes, *, kind: Kind | None = None, hash_name: str | None = None) -> Frame:
    """Parse a stored frame.

    Parameters
    ----------
    data
        Output of `encode`.
    kind, hash_name
        Required kind and row hash of the estimator; None accepts any.

    Raises
    ------
    ValueError
        For foreign, truncated or altered bytes, another format version, and another kind or hash than required.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError(f"not a stored sketch: expected {MAGIC!r} at the start, got {bytes(data[: len(MAGIC)])!r}")
    if len(data) < _HEADER.size:
        raise ValueError(f"truncated sketch: {len(data)} bytes do not hold the {_HEADER.size} bytes of the header")
    _, version, kind_code, params_size, payload_size, raw_name = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"sketch format version {version} cannot be read, only version {VERSION}")
    end = _HEADER.size + params_size + payload_size
    if len(data) != end + _CHECKSUM.size:
        raise ValueError(f"truncated or overlong sketch: {len(data)} bytes where {end + _CHECKSUM.size} were written")
    if _CHECKSUM.unpack_from(data, end)[0] != xxhash.xxh3_64_intdigest(memoryview(data)[:end]):
        raise ValueError("altered sketch: the checksum does not match the content")
    split = _HEADER.size + params_size
    name = raw_name.rstrip(b"\0").decode("ascii", errors="replace")
    frame = Frame(_kind_of(kind_code), name, bytes(data[_HEADER.size : split]), bytes(data[split:end]))
    if kind is not None and frame.kind is not kind:
        raise ValueError(f"a sketch of kind {frame.kind.name} came where {kind.name} was expected")
    if hash_name is not None and name != hash_name:
        raise ValueError(f"the sketch was built with the hash {name!r}, this code uses {hash_name!r}")
    return frame


def pack_cells(cells: npt.NDArray[np.uint32]) -> bytes:
    """Serialise cells (n,): all of them, or the positions and values of the non-zero cells, whichever is shorter."""
    used = np.flatnonzero(cells)
    if 2 * used.size >= cells.size or cells.size > 1 << 32:
        return cells.astype("<u4", copy=False).tobytes()
    return used.astype("<u4").tobytes() + cells[used].astype("<u4", copy=False).tobytes()


def unpack_cells(frame: Frame, size: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint32]]:
    """Parse a payload of `pack_cells` with `size` cells: positions of non-zero cells, ascending, and values, (n,) each.

    Raises `ValueError` for any other payload.
    """
    if len(frame.payload) >= 4 * size or len(frame.payload) % 8:
        cells = np.frombuffer(frame.require_payload(4 * size), dtype="<u4").astype(np.uint32)
        return np.flatnonzero(cells), cells[cells != 0]
    used, values = np.frombuffer(frame.payload, dtype="<u4").reshape(2, -1)
    if used.size and (used[-1] >= size or (used[1:] <= used[:-1]).any()):
        raise ValueError(f"{frame.kind.name} payload names cells that are out of order or not below {size}")
    return used.astype(np.intp), values.astype(np.uint32)


def _kind_of(code: int) -> Kind:
    """Return the kind with this number; raises `ValueError` for an unknown number."""
    try:
        return Kind(code)
    except ValueError:
        raise ValueError(f"unknown sketch kind {code}, known are {', '.join(k.name for k in Kind)}") from None
