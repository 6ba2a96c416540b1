"""The index of a bundle as a server holds it: one, in which every delta is applied."""

import time
from dataclasses import dataclass, field
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import BundleFile, BundleLog, BundleManifest
from weir.contracts.bundle_delta import BundleDelta
from weir.contracts.bundle_files import BundleFiles
from weir.contracts.index_delta import apply_delta, with_row_ids

__all__ = ["ServedIndex"]


@dataclass
class ServedIndex:
    """Follows the bundles of a store; `first` is as the first one was."""

    log: BundleLog
    first: Any = None
    index: Any = None
    known: list[BundleManifest] = field(default_factory=list)

    def follow(self, made: BundleManifest) -> None:
        """Go on to a bundle, by its deltas where it builds on the one before."""
        chain = [BundleFiles(self.log, one) for one in self.log.chain(made, self.known)]
        if chain[0].manifest not in self.known:
            self.index = with_row_ids(chain[0].decode(BundleFile.INDEX, _index))
        for files in chain[1:]:
            apply_delta(self.index, BundleDelta.read(files))
        self.known = [made]
        if self.first is None:
            self.first = faiss.clone_index(self.index)

    def query_cost(self, queries: npt.NDArray[np.float32], k: int) -> float:
        """Return the CPU of queries (n, d), one by one, against what they cost the first bundle's index now."""
        for index in (self.first, self.index):
            index.search(queries, k)
        at_first, now = (_spent(index, queries, k) for index in (self.first, self.index))
        return now / at_first


def _spent(index: Any, queries: npt.NDArray[np.float32], k: int) -> float:
    before = time.process_time()
    for query in queries:
        index.search(query[None], k)
    return time.process_time() - before


def _index(data: bytes) -> Any:
    return faiss.deserialize_index(np.frombuffer(data, np.uint8))
