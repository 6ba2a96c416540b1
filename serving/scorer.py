"""The scorer of the second phase (re-scoring): runs an ONNX graph on users and their candidate items."""

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
"""Query-candidate pairs scored per run: 64 MB with the default settings."""


class Scorer:
    """Runs ``scorer.onnx`` (`weir.contracts.bundle_manifest.BundleFile`) with `threads` threads.

    Raises
    ------
    ValueError
        If `graph` is not a model, or has other inputs or outputs.
    """

    def __init__(self, graph: bytes, threads: int = 1) -> None:
        self._session: Any = session(graph, threads, _INPUTS, _OUTPUT)

    def __call__(self, queries: Floats, exact: Exact, rows: IndexRows) -> Floats:
        """Return the scores (n, N) of `rows` (n, N) for `queries` (n, dimension); arbitrary ones for rows of -1."""
        if not rows.size:
            return np.empty(rows.shape, np.float32)
        size = max(1, _PAIRS // rows.shape[1])
        parts = (slice(at, at + size) for at in range(0, len(rows), size))
        return np.concatenate([self._scores(queries[part], exact, IndexRows(rows[part])) for part in parts])

    def _scores(self, queries: Floats, exact: Exact, rows: IndexRows) -> Floats:
        # Queries of a batch share many candidates: each vector is gathered once.
        known, places = np.unique(rows.clip(min=0), return_inverse=True)
        items = np.ascontiguousarray(exact.vectors[known], np.float32)
        asked = {"user": queries, "items": items, "candidates": places.reshape(rows.shape)}
        scores: Floats = self._session.run([_OUTPUT], asked)[0]
        return scores
