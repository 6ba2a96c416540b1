"""Started by torchrun: vectors of items that ranks share, with drawn features, beside those of one that has all."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tests.trainer.items.features_of_ranks import NAMES, window
from tests.trainer.state.test_items import CAPACITY, DIMENSION, TOWER
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.featured import FeaturedItems
from weir.trainer.items.placement import Places
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.items import ItemVectors


def items(weight: Tensor, workers: Workers | None, *, features: bool) -> ItemVectors:
    """Return items with these embeddings, (capacity, d), and with features; a rank has its share of them."""
    places = Places(CAPACITY, workers.rank, workers.world_size) if workers else Places(CAPACITY)
    own = weight[places.rows_at(torch.arange(len(places.here)))].clone()
    embeddings = Embeddings(own, places=places, workers=workers)
    if not features:
        return ItemVectors(embeddings, None, TOWER)
    torch.manual_seed(1)
    featured = FeaturedItems.fresh(1 << 10, embeddings)
    featured.table.update(*window(np.random.default_rng(2), CAPACITY), NAMES, 1)
    torch.nn.init.normal_(featured.tower.dense.weight)
    return ItemVectors(embeddings, featured, TOWER)


@torch.no_grad()
def compare(workers: Workers, *, features: bool) -> int:
    """Read vectors in each way; return how many."""
    weight = torch.randn(CAPACITY, DIMENSION, generator=torch.Generator().manual_seed(0))
    shared, alone = (items(weight, one, features=features) for one in (workers, None))
    wanted = alone.kept(torch.arange(CAPACITY))
    # Each asks for other rows, one for a single row.
    draw = np.random.default_rng(workers.rank)
    asked = torch.from_numpy(draw.permutation(CAPACITY)[: 1 if workers.rank == 1 else CAPACITY // 3])
    assert torch.equal(shared.both(shared.together, asked)[0], wanted[asked])
    assert torch.equal(shared.searched(asked), alone.searched(torch.arange(CAPACITY))[asked])
    own = shared.embeddings.places.own(asked)
    assert torch.equal(shared.both(shared.kept, asked[own])[0], wanted[asked[own]])
    found: list[Tensor] = []
    workers.first(lambda: found.append(shared.fetch(asked)), lambda question: answered(shared, question))
    assert all(torch.equal(one, wanted[asked]) for one in found)
    return len(asked)


def answered(vectors: ItemVectors, question: str) -> None:
    assert vectors.answer(question)


def main(out: str) -> None:
    with Workers.from_environment("cpu") as workers:
        count = compare(workers, features=False) + compare(workers, features=True)
        (Path(out) / f"rank{workers.rank}").write_text(str(count))
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
