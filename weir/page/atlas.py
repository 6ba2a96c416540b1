"""A two-dimensional map of the item vectors, turned to match the previous map."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weir.serving.client import RetrievalClient, by_item

__all__ = ["Atlas", "draw", "families", "project"]

Floats = npt.NDArray[np.float64]

MOST_ITEMS: Final = 2000
"""Most items on the map; of more items, the most popular ones are shown."""
_BATCH: Final = 64
_MOST_FAMILIES: Final = 24
_SEPARATORS: Final = "-_:/."


@dataclass(frozen=True)
class Atlas:
    """A map of a bundle's n most popular items: their ids by rank, and their `places` (n, 2).

    `shown` is the share of the vectors' variance that the map shows.
    """

    version: str
    ids: tuple[str, ...]
    places: Floats
    shown: float

    def as_json(self) -> dict[str, Any]:
        """Return the map for JSON; `family` is the number of each item's family (`families`)."""
        names, numbers = families(self.ids)
        return {
            "version": self.version,
            "ids": self.ids,
            "x": np.round(self.places[:, 0], 4).tolist(),
            "y": np.round(self.places[:, 1], 4).tolist(),
            "family": numbers,
            "families": names,
            "shown": self.shown,
        }


def draw(client: RetrievalClient, version: str, ids: Sequence[str], before: Atlas | None) -> Atlas:
    """Ask the server for the vectors of items, and map them to match the map `before`; raises `RetrievalError`."""
    known: list[str] = []
    vectors: list[npt.NDArray[np.float32]] = []
    for start in range(0, min(len(ids), MOST_ITEMS), _BATCH):
        group = ids[start : min(start + _BATCH, MOST_ITEMS)]
        for item, vector in zip(group, client.embed([by_item(item) for item in group]), strict=True):
            if vector is not None:
                known.append(item)
                vectors.append(vector)
    places, shown = project(np.array(vectors, np.float64).reshape(len(known), -1))
    return Atlas(version, tuple(known), _turned(known, places, before), shown)


def project(vectors: Floats) -> tuple[Floats, float]:
    """Return the two principal components of vectors (n, d) as (n, 2), and the share of the variance in them.

    Nearly all places lie between -1 and 1.
    """
    centred = vectors - vectors.mean(axis=0) if len(vectors) else vectors
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(vectors), 2))
    wide = min(2, len(values))
    places[:, :wide] = left[:, :wide] * values[:wide]
    total = float((values**2).sum())
    reach = float(np.quantile(np.abs(places), 0.99)) if len(places) else 0.0
    return places / reach if reach else places, float((values[:wide] ** 2).sum()) / total if total else 0.0


def _turned(ids: Sequence[str], places: Floats, before: Atlas | None) -> Floats:
    """Return places turned and mirrored to match the map `before` (orthogonal Procrustes), as axes have no meaning."""
    rows = {} if before is None else {item: row for row, item in enumerate(before.ids)}
    common = [(row, rows[item]) for row, item in enumerate(ids) if item in rows]
    if before is None or len(common) < 3:
        return places
    new, old = (list(side) for side in zip(*common, strict=True))
    left, _, right = np.linalg.svd(places[new].T @ before.places[old])
    turned: Floats = places @ (left @ right)
    return turned


def families(ids: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the distinct first parts of ids and each id's index among them; empty unless there are 2 to 24.

    Many catalogues have ids such as ``jazz-blue-note-042``, whose first part groups the items.
    """
    first = [next(_parts(item), item) for item in ids]
    names = sorted(set(first))
    if not 2 <= len(names) <= _MOST_FAMILIES:
        return [], []
    return names, [names.index(name) for name in first]


def _parts(item: str) -> Iterator[str]:
    at = min((place for sign in _SEPARATORS if (place := item.find(sign)) > 0), default=0)
    if at:
        yield item[:at]
