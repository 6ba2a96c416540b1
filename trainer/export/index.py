"""The FAISS index of a bundle, chosen by the size of the catalogue.

Below 50,000 items a flat index answers in well under a millisecond and is exact. Above, inverted lists with 16-bit
vectors are used: about 4 sqrt(n) lists balance the search for lists against the search within them. Their centroids are
kept between exports (`weir.trainer.export.keeper`).
"""

import math
from typing import IO, Any, Final

import faiss

from weir.contracts import IndexFit, IndexInfo

__all__ = ["check_index", "empty_index", "factory", "info_of", "least_items", "write_index"]

_faiss: Any = faiss  # its stubs lack the writer

_FLAT_BELOW: Final = 50_000

_OPQ_CODES: Final = 256
"""Codes of the product quantiser by which FAISS trains a rotation (OPQ), whatever index follows it."""


def factory(items: int, wanted: str) -> str:
    """Return the factory string for a catalogue; `wanted` is a factory string, or ``auto``."""
    if wanted != "auto":
        return wanted
    return "Flat" if items < _FLAT_BELOW else f"IVF{round(4 * math.sqrt(items))},SQfp16"


def empty_index(dimension: int, kind: str) -> Any:
    """Return an untrained index for inner products.

    Raises
    ------
    RuntimeError
        From FAISS, for an unknown factory string.
    """
    return faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)


def check_index(wanted: str, dimension: int) -> None:
    """Raise `ValueError` for a factory string that FAISS does not accept for vectors of this dimension."""
    try:
        empty_index(dimension, factory(1, wanted))
    except RuntimeError as error:
        raise ValueError(
            f"index = {wanted}: FAISS makes no such index of vectors of tower.dimension = {dimension} numbers; "
            "expected auto or a factory string, such as Flat, IVF1024,SQfp16 or HNSW32"
        ) from error


def least_items(index: Any) -> int:
    """Return the least number of items for training an index: its lists, and the codes of its product quantisers."""
    inverted, inner = faiss.try_extract_index_ivf(index), faiss.downcast_index(index)
    counts = [1 if inverted is None else int(inverted.nlist)]
    while isinstance(inner, faiss.IndexPreTransform):
        chain: Any = inner.chain
        before = [_faiss.downcast_VectorTransform(chain.at(number)) for number in range(chain.size())]
        counts += [_OPQ_CODES for transform in before if isinstance(transform, _faiss.OPQMatrix)]
        inner = faiss.downcast_index(inner.index)
    stored = faiss.downcast_index(inner.storage) if isinstance(inner, faiss.IndexHNSW) else inner
    return max([*counts, stored.pq.ksub] if hasattr(stored, "pq") else counts)


def info_of(index: Any, kind: str, nprobe: int, fit: IndexFit | None = None) -> IndexInfo:
    """Return the description of an index; also sets its default search parameters."""
    parameters: dict[str, int | float] = {}
    if "IVF" in kind:
        inverted = faiss.extract_index_ivf(index)
        inverted.nprobe = min(nprobe, int(inverted.nlist))
        parameters["nprobe"] = int(inverted.nprobe)
    return IndexInfo(type=kind, parameters=parameters, fit=fit)


def write_index(index: Any, file: IO[bytes]) -> None:
    """Write an index block by block, as ``index.faiss``."""
    _faiss.write_index(index, _faiss.PyCallbackIOWriter(file.write))
