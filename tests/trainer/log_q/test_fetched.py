import torch

from weir.trainer.items.places import Places
from weir.trainer.log_q.fetched import FetchedCounts


def test_counts_are_found_by_row_in_the_order_of_places() -> None:
    places = Places(16, 1, 3)
    rows, _ = places.distinct(torch.tensor([3, 0, 12, 7]))
    counts = FetchedCounts(places, places.key(rows), 10.0 * rows)
    assert counts[torch.tensor([[7, 7], [0, 12]]).T].tolist() == [[70, 0], [70, 120]]
