"""Started by torchrun: features that ranks share beside those of one that has all, through random windows."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from weir.contracts import FeatureNames
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.featured import FeaturedItems
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import FIRST_ITEM, TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.towers.features import FeatureInputs

NAMES = FeatureNames(categorical=["genre"], dense=["price"])
LISTS = pa.list_(pa.string())


def window(draw: np.random.Generator, capacity: int) -> tuple[TableRows, pa.Table]:
    """Return the features of some rows; lists get longer over time, and some values are not known."""
    rows = TableRows(draw.permutation(np.arange(FIRST_ITEM, capacity))[: capacity // 2])
    genres = [draw.choice(list("abcdef"), draw.integers(0, capacity // 8)).tolist() for _ in rows]
    known = draw.random((2, len(rows))) < 0.8
    columns = {
        "genre": pa.array([one if there else None for one, there in zip(genres, known[0], strict=True)], LISTS),
        "price": pa.array(np.where(known[1], draw.normal(size=len(rows)), np.nan)),
    }
    return rows, pa.table(columns)


def part(capacity: int, workers: Workers | None = None) -> FeaturedItems:
    """Return the features of a table of so many rows, or a rank's share of them."""
    places = Places(capacity, workers.rank, workers.world_size) if workers else Places(capacity)
    weight = torch.zeros(len(places.here), 4, dtype=torch.float64)
    return FeaturedItems.fresh(1 << 20, Embeddings(weight, places=places, workers=workers))


def fetched(features: FeaturedItems, rows: torch.Tensor) -> FeatureInputs:
    """Return the features of distinct rows, which all ranks ask for together."""
    return features.fetched(features.table.route(rows))


def same(mine: FeatureInputs, theirs: FeatureInputs) -> bool:
    return all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))


def main(out: str) -> None:
    with Workers.from_environment("cpu") as workers:
        capacity, draw = 16, np.random.default_rng(1)
        one, shared = part(capacity), part(capacity, workers)
        assert fetched(shared, torch.arange(3)).dense.shape[0] == 3
        for turn in range(8):
            if turn % 3 == 2:
                capacity *= 2
            rows, items = window(draw, capacity)
            gone, event_ms = TableRows(draw.permutation(capacity)[: capacity // 8]), int(draw.integers(4))
            for each in (one, shared):
                each.table.grow(capacity)
                each.table.forget(gone)
                each.table.update(rows, items, NAMES, event_ms)
            # Each asks for others, in an order of its own.
            asked = torch.from_numpy(np.random.default_rng((turn, workers.rank)).permutation(capacity)[: capacity // 2])
            assert same(fetched(shared, asked), one.kept(asked))
            own = asked[shared.table.places.own(asked)]
            assert same(shared.kept(own), one.kept(own))
        assert same(fetched(shared, torch.arange(capacity)), one.kept(torch.arange(capacity)))
        (Path(out) / f"rank{workers.rank}").write_text(str(len(shared.table.columns[0].values)))
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
