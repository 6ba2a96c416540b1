"""A version as its builder shares it, and as a process that answers opens it: all that is large is mapped."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, cast

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import BundleFile, BundleLog, BundleManifest
from weir.contracts.base.arrays import Layers
from weir.contracts.base.string_arrays import Texts
from weir.contracts.bundles.files import BundleFiles
from weir.contracts.bundles.rows import BundleRows
from weir.contracts.interactions.features import FeatureWeights
from weir.serving.bundles.bundle import LoadedBundle, Scorer, Tower
from weir.serving.bundles.loading import warm_scorer, warm_users
from weir.serving.index.index import AnnIndex, Index, exact_index
from weir.serving.index.popular import Popular
from weir.serving.processes.arrays import SharedArrays, StoredFile

__all__ = ["Models", "SharedIndex", "SharedVersion"]

_faiss: Any = faiss  # its stubs lack these
_NO_MAP = _faiss.DirectMap.NoMap


class Models(NamedTuple):
    """The bytes of a bundle's models; it may have no scorer."""

    tower: bytes
    scorer: bytes | None = None

    @classmethod
    def read(cls, log: BundleLog, manifest: BundleManifest) -> Self:
        """Read those of a bundle."""
        files = BundleFiles(log, manifest)
        scorer = log.read(manifest, BundleFile.SCORER) if files.has(BundleFile.SCORER) else None
        return cls(log.read(manifest, BundleFile.TOWER), scorer)


@dataclass(frozen=True)
class SharedIndex:
    """A FAISS index: where it is written, and what `weir.serving.index.index.AnnIndex` needs to search it."""

    file: StoredFile
    parameters: Mapping[str, int | float]
    lists: int
    graph: bool
    assigned: Layers[np.int32] | None

    @classmethod
    def of(cls, index: AnnIndex, arrays: SharedArrays) -> Self:
        """Write an index on the CPU to a file in memory."""
        return cls(
            arrays.store(lambda path: _write(index.index, path)),
            index.parameters,
            index.lists,
            index.graph,
            index.assigned,
        )

    def opened(self) -> AnnIndex:
        """Map it: the lists of an IVF index are not read, and cost this process no memory."""
        index = faiss.read_index(self.file.path, _faiss.IO_FLAG_MMAP_IFC)
        space = faiss.ParameterSpace()
        return AnnIndex(index, self.parameters, space, lists=self.lists, graph=self.graph, assigned=self.assigned)


@dataclass(frozen=True)
class SharedVersion:
    """What a `weir.serving.bundles.bundle.LoadedBundle` is made of; `index` is None where the rows are searched."""

    manifest: BundleManifest
    tower: npt.NDArray[np.uint8]
    scorer: npt.NDArray[np.uint8] | None
    rows: BundleRows
    popular: Popular
    index: SharedIndex | None
    key_secret: str
    size: int
    servable_at: float
    features: FeatureWeights | None
    user_features: FeatureWeights | None

    @classmethod
    def of(cls, bundle: LoadedBundle, models: Models, arrays: SharedArrays) -> Self:
        """Take a bundle apart, whose models are given as they are stored, and write its index."""
        index = bundle.index
        return cls(
            manifest=bundle.manifest,
            tower=np.frombuffer(models.tower, np.uint8),
            scorer=None if models.scorer is None else np.frombuffer(models.scorer, np.uint8),
            rows=_mappable(bundle.rows),
            popular=bundle.popular,
            index=SharedIndex.of(index, arrays) if isinstance(index, AnnIndex) else None,
            key_secret=bundle.key_secret,
            size=bundle.size,
            servable_at=bundle.servable_at,
            features=bundle.features,
            user_features=bundle.user_features,
        )

    def opened(self, threads: int) -> LoadedBundle:
        """Put the version together, and run tower and search once."""
        exact = exact_index(self.rows.vectors)
        index: Index = exact if self.index is None else self.index.opened()
        bundle = LoadedBundle(
            manifest=self.manifest,
            tower=Tower(self.tower.tobytes(), threads),
            index=index,
            exact=exact,
            rows=self.rows,
            popular=self.popular,
            key_secret=self.key_secret,
            size=self.size,
            servable_at=self.servable_at,
            features=self.features,
            user_features=self.user_features,
            scorer=None if self.scorer is None else Scorer(self.scorer.tobytes(), threads),
        )
        for batch in (1, 2):
            users = warm_users(bundle, batch)
            if bundle.items:
                bundle.index.search(users, 1)
                warm_scorer(bundle, users)
        return bundle

    def kept(self, bundle: LoadedBundle) -> LoadedBundle:
        """Return the bundle that this is, with these arrays for its own, and its index as it is."""
        exact = exact_index(self.rows.vectors)
        index: Index = exact
        if isinstance(bundle.index, AnnIndex) and self.index is not None:
            index = replace(bundle.index, assigned=self.index.assigned)
        return replace(bundle, rows=self.rows, popular=self.popular, exact=exact, index=index)


def _mappable(rows: BundleRows) -> BundleRows:
    """Return rows whose ids lie in arrays that can be mapped; those that came by deltas are few, and stay."""
    ids = rows.ids
    if isinstance(ids.base, Texts):
        return rows
    column = cast("npt.NDArray[np.object_]", Texts.of(ids.base))
    return replace(rows, ids=Layers(column, ids.over, ids.gone, ids.count))


def _write(index: Any, path: str) -> None:
    """Write an index without the places of its rows: only who changes it needs them, and they cannot be mapped."""
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is None:
        faiss.write_index(index, path)
        return
    places, kind = inverted.direct_map, inverted.direct_map.type
    places.type = _NO_MAP
    try:
        faiss.write_index(index, path)
    finally:
        places.type = kind
