import pytest
import torch

from trainer.items.places import Places
from trainer.items.route import Route
from trainer.log_q.fetched import FetchedCounts, with_counts
from trainer.ranks.workers import Workers


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_embeddings_and_counts_keep_their_bits_on_the_way(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    for size in (0, 1, 5):
        embeddings = torch.randn(size, 3, generator=draw).to(dtype)
        # The bits of some are no number where they lie in pieces.
        counts = torch.tensor([0.0, 1 / 3, -(2.0**-1074), 1e300, torch.nan], dtype=torch.float64)[:size]
        route = Route.of(torch.arange(size), Places(size), Workers())
        own, found = with_counts(route, embeddings, counts)
        assert torch.equal(own, embeddings)
        assert torch.equal(found.view(torch.int64), counts.view(torch.int64))


def test_counts_are_found_by_row_in_the_order_of_places() -> None:
    places = Places(16, 1, 3)
    rows = places.distinct(torch.tensor([3, 0, 12, 7]))
    counts = FetchedCounts(places, places.key(rows), 10.0 * rows)
    assert counts[torch.tensor([[7, 7], [0, 12]]).T].tolist() == [[70, 0], [70, 120]]
