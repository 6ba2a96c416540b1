"""The second phase at serving time: an ONNX graph from users, items and who is a candidate of whom to scores."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.serving.index import Exact
from weir.serving.tower import session

__all__ = ["Scorer"]

Floats = npt.NDArray[np.float32]

_INPUTS: Final = ("candidates", "items", "user")
_OUTPUT: Final = "score"

_PAIRS: Final = 1 << 16
"""Pairs of a query and a candidate that are scored at a time: 64 MB with the default settings."""


class Scorer:
    """Runs ``scorer.onnx`` (`weir.contracts.bundle_manifest.BundleFile`), in so many `threads`.

    Raises
    ------
    ValueError
        Where the bytes of the graph are no model, or one with other inputs and outputs.
    """

    def __init__(self, graph: bytes, threads: int = 1) -> None:
        self._session: Any = session(graph, threads, _INPUTS, _OUTPUT)

    def __call__(self, queries: Floats, exact: Exact, rows: IndexRows) -> Floats:
        """Return the scores (n, N) of `rows` (n, N) for `queries` (n, dimension); what -1 means has any score."""
        if not rows.size:
            return np.empty(rows.shape, np.float32)
        size = max(1, _PAIRS // rows.shape[1])
        parts = (slice(at, at + size) for at in range(0, len(rows), size))
        return np.concatenate([self._scores(queries[part], exact, IndexRows(rows[part])) for part in parts])

    def _scores(self, queries: Floats, exact: Exact, rows: IndexRows) -> Floats:
        # A batch has many candidates in common, whose vectors are gathered and read once.
        known, places = np.unique(rows.clip(min=0), return_inverse=True)
        items = np.ascontiguousarray(exact.vectors[known], np.float32)
        asked = {"user": queries, "items": items, "candidates": places.reshape(rows.shape)}
        scores: Floats = self._session.run([_OUTPUT], asked)[0]
        return scores
