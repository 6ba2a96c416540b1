"""A bundle in memory: user tower, second phase, index, ids and vectors as one object.

A `LoadedBundle` is one complete version: a swap is one assignment, and the old version's memory is freed when the last
request that started with it is answered. It is immutable, with two exceptions: a delta applied in place turns its index
into that of the next version (`weir.serving.bundles.watcher`), and the catalogue's view of its rows is replaced
(`BundleState`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from weir.contracts import BundleManifest, IndexRows, ItemKeys
from weir.contracts.base.arrays import Layers
from weir.contracts.bundles.faiss_index import keeps_places
from weir.contracts.bundles.rows import BundleRows, ItemRows, tower_rows
from weir.contracts.interactions.features import FeatureWeights
from weir.serving.errors import NoBundleError
from weir.serving.index.cold import ColdItems, WithCold
from weir.serving.index.eligibility import CatalogueView, Eligibility
from weir.serving.index.index import AnnIndex, Exact, Index
from weir.serving.index.popular import Popular

__all__ = ["BundleState", "IndexTransfer", "LoadedBundle", "Scorer", "Tower", "session"]

Floats = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

_INPUTS: Final = ("history", "mask")
_OUTPUT: Final = "user"

_TINY: Final = np.finfo(np.float64).tiny


class Tower:
    """Runs ``tower.onnx``.

    Parameters
    ----------
    graph
        The serialised model: inputs ``history`` float32 (batch, length, dimension) and ``mask`` bool
        (batch, length), output ``user`` float32 (batch, dimension).
    threads
        Threads of one run.

    Raises
    ------
    ValueError
        If `graph` is not a model, or has other inputs or outputs.
    """

    def __init__(self, graph: bytes, threads: int = 1) -> None:
        self._session: Any = session(graph, threads, _INPUTS, _OUTPUT)

    def __call__(self, history: Floats, mask: Bool) -> Floats:
        """Return the users' vectors, (batch, dimension); raises the errors of ONNX Runtime."""
        vectors: Floats = self._session.run([_OUTPUT], {"history": history, "mask": mask})[0]
        return vectors


def session(graph: bytes, threads: int, inputs: tuple[str, ...], output: str) -> Any:
    """Return an ONNX Runtime session for the model `graph`, run with `threads` threads.

    Raises `ValueError` unless the model has exactly these `inputs` (sorted by name) and this `output`.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    try:
        found = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime errors share no narrower base class
        raise ValueError(f"ONNX Runtime cannot read it: {error}") from error
    names, outputs = tuple(sorted(node.name for node in found.get_inputs())), [one.name for one in found.get_outputs()]
    if names != inputs or output not in outputs:
        raise ValueError(f"has inputs {names} and outputs {outputs}, expected {inputs} and {output!r}")
    return found


_SCORER_INPUTS: Final = ("candidates", "items", "user")
_SCORER_OUTPUT: Final = "score"

_PAIRS: Final = 1 << 16
"""Query-candidate pairs scored per run: 64 MB with the default settings."""


class Scorer:
    """Runs ``scorer.onnx`` (`weir.contracts.bundles.manifest.BundleFile`) with `threads` threads.

    Raises
    ------
    ValueError
        If `graph` is not a model, or has other inputs or outputs.
    """

    def __init__(self, graph: bytes, threads: int = 1) -> None:
        self._session: Any = session(graph, threads, _SCORER_INPUTS, _SCORER_OUTPUT)

    def __call__(self, queries: Floats, exact: Exact, rows: IndexRows) -> Floats:
        """Return the scores (n, N) of the items in `rows` (n, N) for `queries` (n, dimension).

        `exact` has the items' vectors. The score of a row of -1 is arbitrary.
        """
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
        scores: Floats = self._session.run([_SCORER_OUTPUT], asked)[0]
        return scores


@dataclass
class IndexTransfer:
    """What in-place deltas have done to a bundle's index; written and read by the search thread.

    `to` is the later version that the index belongs to now; None: still this bundle. `damaged`: a delta failed midway.
    """

    to: "LoadedBundle | None" = None
    damaged: bool = False


@dataclass
class BundleState:
    """The mutable part of a loaded bundle.

    `view` is the catalogue's view of the bundle's rows, None without a catalogue; the threads that follow bundles and
    catalogue replace it. `eligibility`, the rows that may be returned now, belongs to the search thread.
    """

    view: CatalogueView | None = None
    eligibility: Eligibility | None = None


@dataclass(frozen=True, eq=False)
class LoadedBundle:
    """One bundle version in memory, ready to answer queries.

    `index` searches the items, `exact` compares with every vector, and `popular` ranks the rows by popularity.
    `key_secret` is the store's secret of keys (`weir.contracts.base.keys`). `size` estimates the memory in bytes.
    `features` and `user_features` are the weights of item and user features, None if the model has none. `scorer`
    re-scores the best items of the index, None without a second phase. The last `cold` rows are cold items, which are
    not part of the bundle (`weir.serving.index.cold`).
    """

    manifest: BundleManifest
    tower: Tower
    index: Index
    exact: Exact
    rows: BundleRows
    popular: Popular
    key_secret: str = ""
    size: int = 0
    features: FeatureWeights | None = None
    user_features: FeatureWeights | None = None
    scorer: Scorer | None = None
    cold: int = 0
    servable_at: float = field(default_factory=time.time)
    transfer: IndexTransfer = field(default_factory=IndexTransfer)
    state: BundleState = field(default_factory=BundleState)

    @property
    def version(self) -> str:
        """The bundle's version."""
        return self.manifest.version

    @property
    def items(self) -> int:
        """Number of items that can be returned, cold items included."""
        return self.manifest.items + self.cold

    @property
    def rescored(self) -> int:
        """Number of candidates per query that the second phase re-scores; 0 without a second phase."""
        return 0 if self.scorer is None else self.manifest.rescored or 0

    @property
    def ids(self) -> Layers[np.object_]:
        """Item id by row, strings."""
        return self.rows.ids

    @property
    def embeddings(self) -> Layers[np.float32]:
        """Item embeddings that the tower reads, (2 + rows, dimension)."""
        return self.rows.embeddings

    @property
    def item_rows(self) -> ItemRows:
        """Map from item keys to rows."""
        return self.rows.item_rows

    @property
    def popularity(self) -> Layers[np.float64]:
        """Decayed counts by row; minus infinity for rows without an item."""
        return self.rows.popularity

    @property
    def has_catalogue(self) -> bool:
        """Whether a catalogue with the items' tags is loaded."""
        return self.state.view is not None

    @property
    def changeable(self) -> AnnIndex | None:
        """The bundle's index if deltas can be applied to it in place, else None."""
        index = self.index
        return index if isinstance(index, AnnIndex) and index.keep is None and keeps_places(index.index) else None

    def answering(self) -> "LoadedBundle":
        """Return the bundle that the index belongs to now: this one, or a later one after in-place deltas.

        Raises `NoBundleError` if an in-place delta has damaged the index.
        """
        bundle = self
        while bundle.transfer.to is not None:
            bundle = bundle.transfer.to
        if bundle.transfer.damaged:
            raise NoBundleError
        return bundle

    def with_cold(self, items: ColdItems) -> "LoadedBundle":
        """Return a copy of the bundle that also returns cold items."""
        is_exact = self.index is self.exact
        index: Index = items.exact if is_exact else WithCold(self.index, items.vectors, items.first)
        return replace(self, rows=items.rows, popular=items.popular, exact=items.exact, index=index, cold=len(items))

    def rows_of(self, keys: ItemKeys) -> IndexRows:
        """Return the index row of each key, in the shape of `keys`; -1 for padding and for unknown items."""
        return self.item_rows.look_up(keys)

    def users(self, histories: ItemKeys) -> Floats:
        """Return the tower's vectors (n, dimension) of histories (n, any length), left-padded, oldest first.

        Only the newest known items count, up to the number that the model was trained to read.
        """
        rows, mask = self.item_rows.tower_inputs(histories, self.manifest.newest, self.manifest.history_length)
        return self.normalised(self.tower(self.embeddings[rows], mask))

    def users_at(self, histories: Sequence[IndexRows], said: Floats | None = None) -> Floats:
        """Return the tower's vectors (n, dimension) of histories given as rows of known items, oldest first.

        A history must not be longer than the model reads. `said` (n, dimension) are feature vectors of the users, which
        are added.
        """
        rows, mask = tower_rows(histories, self.manifest.history_length)
        users = self.tower(self.embeddings[rows], mask)
        return self.normalised(users if said is None else users + said)

    def normalised(self, vectors: Floats) -> Floats:
        """Return vectors (n, dimension) ready for search: of length 1 if the metric is cosine."""
        if self.manifest.metric != "cosine":
            return vectors
        # In 32-bit floats the square of a length overflows from 1.8e19 on.
        wide = vectors.astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        wide /= np.maximum(lengths, _TINY, out=lengths)[:, None]
        return wide.astype(np.float32)
