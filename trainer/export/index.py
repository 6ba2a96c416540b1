"""The FAISS index of a bundle, by the size of the catalogue.

Below 50,000 items a flat index answers in well under a millisecond and is exact. Above, inverted lists with 16-bit
vectors: about 4 sqrt(n) lists balance the search for lists against the search within them. Their centroids are kept
between exports (`trainer.export.keeper`).
"""

import math
from typing import IO, Any, Final

import faiss

from contracts import IndexFit, IndexInfo

__all__ = ["empty_index", "factory", "info_of", "write_index"]

_faiss: Any = faiss  # its stubs lack the writer

_FLAT_BELOW: Final = 50_000


def factory(items: int, wanted: str) -> str:
    """Return the factory string for a catalogue; `wanted` is one itself, or ``auto``."""
    if wanted != "auto":
        return wanted
    return "Flat" if items < _FLAT_BELOW else f"IVF{round(4 * math.sqrt(items))},SQfp16"


def empty_index(dimension: int, kind: str) -> Any:
    """Return an untrained index that compares by inner product.

    Raises
    ------
    RuntimeError
        From FAISS, for a factory string that it does not know.
    """
    return faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)


def info_of(index: Any, kind: str, nprobe: int, fit: IndexFit | None = None) -> IndexInfo:
    """Return what an index is, with its search parameters, which it gets as its defaults, too."""
    parameters: dict[str, int | float] = {}
    if "IVF" in kind:
        inverted = faiss.extract_index_ivf(index)
        inverted.nprobe = min(nprobe, int(inverted.nlist))
        parameters["nprobe"] = int(inverted.nprobe)
    return IndexInfo(type=kind, parameters=parameters, fit=fit)


def write_index(index: Any, file: IO[bytes]) -> None:
    """Write an index, block by block, as ``index.faiss``."""
    _faiss.write_index(index, _faiss.PyCallbackIOWriter(file.write))
