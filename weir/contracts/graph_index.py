"""How far a walk through the graph of an index goes. Importing it needs FAISS, so `contracts` itself does not."""

from typing import Any, Final

import faiss

__all__ = ["is_graph", "widen_walks"]

_faiss: Any = faiss  # its stubs lack these

_LEAST: Final = 64
_FOR_EACH: Final = 2
"""Rows that a walk keeps as candidates, and how many for each row that is wanted. FAISS keeps 16 whatever is wanted:
such a walk ends before it has found a thousand rows."""


def is_graph(index: Any) -> bool:
    """Say whether an index is searched by walks through a graph (HNSW), of vectors as they are or transformed."""
    inner = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    return isinstance(inner, faiss.IndexHNSW)


def widen_walks(index: Any, k: int, at_least: int = 0) -> None:
    """Let the next walks through the graph of an index find `k` rows, with `at_least` so many candidates."""
    _faiss.ParameterSpace().set_index_parameter(index, "efSearch", max(_LEAST, at_least, _FOR_EACH * k))
