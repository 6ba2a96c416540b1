"""Item ids as plain arrays, for the checkpoint: the bytes of all ids in UTF-8, one after another, and their sizes."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["pack_ids", "unpack_ids"]

Ids = npt.NDArray[np.object_]


def pack_ids(ids: Ids) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the sizes (n,) of ids (n,) in bytes, -1 where there is none, and the bytes of all of them."""
    packed = pa.array(ids, pa.large_string())
    if not len(ids):
        return np.empty(0, np.int32), np.empty(0, np.uint8)
    valid, offsets, data = packed.buffers()
    sizes = np.diff(np.frombuffer(offsets, np.int64, len(ids) + 1)).astype(np.int32)
    if valid is not None:
        sizes[packed.is_null().to_numpy(zero_copy_only=False)] = -1
    used = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8, int(sizes.clip(0).sum()))
    # Arrow's buffers are read-only, tensors are not.
    return sizes, used.copy()


def unpack_ids(sizes: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> Ids:
    """Return what `pack_ids` has packed."""
    offsets = np.concatenate([[0], np.cumsum(sizes.clip(0), dtype=np.int64)])
    packed = pa.LargeStringArray.from_buffers(len(sizes), pa.py_buffer(offsets), pa.py_buffer(data))
    ids: Ids = packed.to_numpy(zero_copy_only=False).astype(object)
    ids[sizes < 0] = None
    return ids
