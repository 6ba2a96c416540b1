"""The FAISS index of a bundle, by the size of the catalogue.

Below 50,000 items a flat index answers in well under a millisecond and is exact. Above, inverted lists with 16-bit
vectors: about 4 sqrt(n) lists balance the search for lists against the search within them.
"""

import math
from typing import Final

import faiss
import numpy as np
import numpy.typing as npt

from contracts import IndexInfo

__all__ = ["build_index", "factory"]

_FLAT_BELOW: Final = 50_000


def factory(items: int, wanted: str) -> str:
    """Return the factory string for a catalogue; `wanted` is one itself, or ``auto``."""
    if wanted != "auto":
        return wanted
    return "Flat" if items < _FLAT_BELOW else f"IVF{round(4 * math.sqrt(items))},SQfp16"


def build_index(vectors: npt.NDArray[np.float32], wanted: str, nprobe: int) -> tuple[bytes, IndexInfo]:
    """Return the serialised index over vectors (n, d), compared by inner product, and what it is.

    Raises
    ------
    RuntimeError
        From FAISS, for a factory string that it does not know or that asks for more items than there are.
    """
    kind = factory(len(vectors), wanted)
    index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    parameters: dict[str, int | float] = {}
    if "IVF" in kind:
        inverted = faiss.extract_index_ivf(index)
        inverted.nprobe = min(nprobe, int(inverted.nlist))
        parameters["nprobe"] = int(inverted.nprobe)
    return faiss.serialize_index(index).tobytes(), IndexInfo(type=kind, parameters=parameters)
